"""Whatever workers do and in whatever order, no shard is lost, handed out twice or finished by a stranger."""

import hypothesis.strategies as st
from hypothesis import stateful

from springtide.data import ledger
from springtide.domain.samples import DatasetCard

WORKERS = 3


class LedgerHistory(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        samples=st.integers(0, 200), batch=st.integers(1, 20), per_shard=st.integers(1, 4), epochs=st.integers(1, 3)
    )
    def open(self, samples, batch, per_shard, epochs):
        self.card = DatasetCard(samples=samples, batch_size=batch, shard_batches=per_shard, epochs=epochs)
        self.book = ledger.Book(workers=WORKERS)
        self.held = {worker: [] for worker in range(WORKERS)}
        self.trained = []

    @stateful.rule(worker=st.integers(0, WORKERS - 1))
    def lease(self, worker):
        match self.book.lease(worker, self.card):
            case ledger.Grant() as grant:
                self.held[worker].append(grant)
            case ledger.Nothing.WAIT:
                assert any(self.held[other] for other in self.held if other != worker)
            case ledger.Nothing.END:
                assert not any(self.held[other] for other in self.held if other != worker)
                held = {grant.shard for grant in self.held[worker]}
                assert len(held) + len(self.trained) == self.card.epochs * self.card.shards

    @stateful.rule(worker=st.integers(0, WORKERS - 1), which=st.randoms(use_true_random=False), again=st.booleans())
    def finish(self, worker, which, again):
        if self.held[worker]:
            grant = self.held[worker].pop(which.randrange(len(self.held[worker])))
            self.trained.append(grant)
            for _ in range(1 + again):
                self.book.finish(worker, grant.shard)

    @stateful.invariant()
    def nothing_is_lost_or_doubled(self):
        if not hasattr(self, "book"):
            return
        for book in self.book.passes:
            book.check()
        shards = [(grant.epoch, grant.index) for grant in self.trained]
        shards += [(grant.epoch, grant.index) for grants in self.held.values() for grant in grants]
        assert len(shards) == len(set(shards))
        totals = self.book.totals()
        assert totals.done == len(self.trained)


TestLedgerHistory = LedgerHistory.TestCase
