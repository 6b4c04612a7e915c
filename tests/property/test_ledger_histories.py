"""Random worker histories: no sample is lost or leased twice, and all are done in the end."""

import collections

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings, stateful

from springtide.data.ledger.job_ledger import JobLedger, JobLedgerState
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data.leases import Grant, LeaseHolder, LeaseKey, NoLease, Progress, ReadFailure, ShrinkRequest
from springtide.domain.data.samples import DatasetCard
from tests.oracles import ledger_invariants

WORKERS = 3
RANKS = st.integers(0, WORKERS - 1)
CHANCE = st.randoms(use_true_random=False)


class HeldLease:
    """A lease as its holder knows it."""

    def __init__(self, grant: Grant):
        self.shard, self.first, self.end, self.offset = grant.shard, grant.first, grant.end, grant.first

    @property
    def key(self):
        return LeaseKey(self.shard, self.first)

    @property
    def word(self):
        return Progress(self.shard, self.first, self.offset, self.end)


class LedgerHistory(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        samples=st.integers(0, 300), batch=st.integers(1, 9), per_shard=st.integers(1, 16), epochs=st.integers(1, 3)
    )
    def open(self, samples, batch, per_shard, epochs):
        self.card = DatasetCard(samples=samples, batch_size=batch, shard_batches=per_shard, epochs=epochs)
        self.book = JobLedger(workers=WORKERS, lease_s=10)
        self.journal = []
        self.now = 0.0
        self.incarnation = dict.fromkeys(range(WORKERS), 0)
        self.hands: dict[LeaseHolder, dict[LeaseKey, HeldLease]] = collections.defaultdict(dict)
        self.trained: collections.Counter = collections.Counter()
        self.notes = [(self.book.note(), set())]

    def call(self, name, *arguments):
        """Call the ledger and journal the call if it changed anything."""
        before = self.book.changes
        answer = getattr(self.book, name)(*arguments)
        if self.book.changes != before:
            self.journal.append((name, arguments))
        return answer

    def living(self, rank):
        return LeaseHolder(rank, self.incarnation[rank])

    def say(self, holder, words):
        """A report by a living holder, which does as the verdict says."""
        hands = self.hands[holder]
        held = {key: (lease.offset, lease.end) for _, key, lease in self.book.leases() if lease.holder == holder}
        verdict = self.call("report", holder, words, self.now)
        assert not verdict.fenced
        for word in words:
            key = LeaseKey(word.shard, word.first)
            if key in held:
                before, end = held[key]
                agreed = min(end, word.end)
                self.trained.update((word.shard, n) for n in range(before, min(word.offset, agreed)))
                if word.offset >= word.end:
                    hands.pop(key, None)
        for key in verdict.revoked:
            assert key not in held
            hands.pop(key, None)
        return verdict

    def tried_by(self, rank):
        failures = [of for ledger in self.book.ledgers() for of in ledger.failures.values()]
        return any(rank in tried for of in failures for tried in of.values())

    def another_gets_some(self, rank):
        """Whether another worker would get a lease now, or is still to join."""
        if len(self.book.holders.living) < self.book.holders.expected:
            return True
        others = [LeaseHolder(*one) for one in self.book.holders.living.items() if one[0] != rank]
        copies = ((JobLedger.from_state(self.book.to_state()), other) for other in others)
        return any(not isinstance(book.lease(other, self.card, 1, self.now), NoLease) for book, other in copies)

    @stateful.rule(rank=RANKS, most=st.integers(1, 20))
    def lease(self, rank, most):
        holder = self.living(rank)
        match self.call("lease", holder, self.card, most, self.now):
            case NoLease.WAIT:
                others_hold = any(lease.holder != holder for _, _, lease in self.book.leases())
                if self.book.todo_samples and not any(rank in ledger.asked_back for ledger in self.book.passes):
                    assert self.book.holders.read_failures or self.tried_by(rank), "who has read everything is refused"
                    assert others_hold or self.another_gets_some(rank), "there is work, and nobody gets it"
                else:
                    assert others_hold or self.book.todo_samples
            case NoLease.END:
                assert all(lease.holder == holder for _, _, lease in self.book.leases())
                assert self.book.todo_samples == 0
            case grants:
                assert 1 <= len(grants) <= 16
                for grant in grants:
                    assert grant.first % self.card.batch_size == 0
                    self.hands[holder][LeaseKey(grant.shard, grant.first)] = HeldLease(grant)

    @stateful.rule(rank=RANKS, chance=CHANCE)
    def an_answer_is_lost(self, rank, chance):
        """Leases missing from the holder's report are granted again."""
        holder = self.living(rank)
        self.lease(rank, 4)
        hands = self.hands[holder]
        known = [key for key in hands if hands[key].offset > key.first or chance.random() < 0.5]
        mine = {key for _, key, lease in self.book.leases() if lease.holder == holder}
        answer = self.call("lease", holder, self.card, 4, self.now, known)
        if mine - set(known):
            assert {LeaseKey(grant.shard, grant.first) for grant in answer} == mine - set(known)
        elif not isinstance(answer, NoLease):
            hands.update({LeaseKey(grant.shard, grant.first): HeldLease(grant) for grant in answer})

    @stateful.rule(rank=RANKS, chance=CHANCE, share=st.floats(0, 1))
    def train_and_report(self, rank, chance, share):
        holder = self.living(rank)
        for hand in self.hands[holder].values():
            if chance.random() < share:
                grid = self.card.batch_size
                hand.offset = min(hand.end, hand.offset + grid * chance.randrange(0, 4))
        self.say(holder, [hand.word for hand in self.hands[holder].values()])

    @stateful.rule(rank=RANKS)
    def give_all_back(self, rank):
        holder = self.living(rank)
        for hand in self.hands[holder].values():
            hand.end = hand.offset
        self.say(holder, [hand.word for hand in self.hands[holder].values()])

    @stateful.rule(chance=CHANCE)
    def wish(self, chance):
        leases = self.book.leases()
        if leases:
            _, key, lease = chance.choice(leases)
            end = chance.randrange(lease.first, lease.end + 1)
            self.call("wish", ShrinkRequest(*key, end))

    @stateful.rule(rank=RANKS, begun=st.integers(0, 3))
    def answer_wishes(self, rank, begun):
        holder = self.living(rank)
        for wish in self.say(holder, ()).wishes:
            hand = self.hands[holder].get(LeaseKey(wish.shard, wish.first))
            if hand:
                hand.end = min(hand.end, max(wish.end, hand.offset + begun * self.card.batch_size))
        self.say(holder, [hand.word for hand in self.hands[holder].values()])

    @stateful.rule(rank=RANKS, relaunch=st.booleans())
    def fence(self, rank, relaunch):
        """Fence a lost worker; its next incarnation joins at once, or with its next message."""
        if relaunch:
            self.call("fence", rank, self.incarnation[rank])
        self.incarnation[rank] += 1

    @stateful.rule(rank=RANKS, chance=CHANCE, back=st.integers(1, 3))
    def a_dead_one_speaks(self, rank, chance, back):
        old = LeaseHolder(rank, self.incarnation[rank] - back)
        self.say(self.living(rank), ())
        if old.incarnation >= 0:
            state = self.book.to_state()
            words = [hand._replace(offset=hand.end) for hand in (one.word for one in self.hands[old].values())]
            assert self.call("report", old, words, self.now).fenced
            assert self.call("lease", old, self.card, 3, self.now) is NoLease.FENCED
            for word in words:
                assert not self.call("fail", old, ReadFailure(word.shard, word.first, word.first, "too late"))
            assert self.book.to_state() == state

    @stateful.rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds):
        self.now += seconds
        self.call("take_back", self.book.expired(self.now))

    @stateful.rule(rank=RANKS, chance=CHANCE)
    def fail(self, rank, chance):
        holder = self.living(rank)
        self.say(holder, [hand.word for hand in self.hands[holder].values()])
        if self.hands[holder]:
            hand = chance.choice(list(self.hands[holder].values()))
            offset = chance.randrange(hand.offset, hand.end + 1)
            offset -= offset % self.card.batch_size
            self.call("fail", holder, ReadFailure(hand.shard, hand.first, offset, "unreadable"))
            hand.end = max(hand.offset, min(hand.end, offset))
            if hand.end == hand.offset:
                del self.hands[holder][hand.key]

    @stateful.rule(rank=RANKS, halvings=st.integers(0, 2), workers=st.integers(1, 5))
    def decide(self, rank, halvings, workers):
        self.call("resize", rank, halvings)
        self.call("expect", workers)

    @stateful.rule()
    def a_checkpoint_begins(self):
        note = msgspec.msgpack.decode(msgspec.msgpack.encode(self.book.note()), type=JobProgress)
        self.notes.append((note, set(self.trained)))

    @stateful.rule(chance=CHANCE)
    def a_server_is_restored(self, chance):
        """Roll back to any checkpoint in any order; trained counts are in all of them, and no lease is held."""
        note, then = chance.choice(self.notes)
        era = self.book.era
        gone = self.call("restore", note)
        kept = self.trained.keys() & then
        assert gone == len(self.trained) - len(kept)
        self.trained = collections.Counter(kept)
        assert not self.book.leases()
        state = self.book.to_state()
        for rank in range(WORKERS):
            holder = self.living(rank)
            words = [hand.word._replace(offset=hand.end) for hand in self.hands[holder].values()]
            if self.book.holders.living.get(rank) == holder.incarnation and rank not in self.book.holders.fenced:
                self.call("report", holder, words, self.now, era)
            self.hands[holder].clear()
        assert self.book.to_state() == state, "a word on a lease of an earlier era has changed something"

    @stateful.rule()
    def the_master_is_restarted(self):
        plain = msgspec.msgpack.encode(self.book.to_state())
        again = JobLedger.from_state(msgspec.msgpack.decode(plain, type=JobLedgerState))
        assert again.to_state() == self.book.to_state()
        again.changes = self.book.changes
        self.book = again
        ledger_invariants.check(self.book)

    @stateful.invariant()
    def nothing_is_lost_or_doubled(self):
        if hasattr(self, "book"):
            ledger_invariants.check(self.book)
            assert max(self.trained.values(), default=0) <= 1
            assert self.book.totals().samples_done == len(self.trained)

    def teardown(self):
        if not hasattr(self, "book"):
            return
        replayed = JobLedger(workers=WORKERS, lease_s=10)
        for name, arguments in self.journal:
            getattr(replayed, name)(*arguments)
        for one in (replayed, self.book):
            one.renew(0.0)
        assert replayed.to_state() == self.book.to_state()
        self.finish()

    def finish(self):
        """One worker survives and trains the rest."""
        for rank in range(WORKERS):
            self.call("fence", rank, self.incarnation[rank])
            self.incarnation[rank] += 1
        last = self.living(0)
        while not isinstance(grants := self.call("lease", last, self.card, 16, self.now), NoLease):
            for grant in grants:
                self.hands[last][LeaseKey(grant.shard, grant.first)] = hand = HeldLease(grant)
                hand.offset = hand.end
            self.say(last, [hand.word for hand in self.hands[last].values()])
        assert grants is NoLease.END
        ledger_invariants.check(self.book)
        given_up = {(each.shard, n) for each in self.book.poisoned() for n in range(each.first, each.end)}
        assert not given_up & self.trained.keys()
        assert len(self.trained) + len(given_up) == self.card.epochs * self.card.samples_used
        totals = self.book.totals()
        assert totals.leased == 0 and totals.done + totals.poisoned == totals.total


LedgerHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLedgerHistory = LedgerHistory.TestCase


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_sample_is_lost_or_leased_twice_in_thousands_of_histories():
    stateful.run_state_machine_as_test(LedgerHistory, settings=settings(max_examples=5000, stateful_step_count=30))


@settings(max_examples=100, deadline=None)
@given(
    length=st.integers(0, 400),
    batch=st.integers(1, 7),
    per_shard=st.integers(1, 8),
    turns=st.lists(st.tuples(RANKS, st.integers(1, 6), st.booleans(), st.booleans()), max_size=40),
)
def test_dataset_of_unknown_length_ends_where_its_end_is_found(length, batch, per_shard, turns):
    length -= length % batch
    card = DatasetCard(samples=10**6 * batch, batch_size=batch, shard_batches=per_shard, endless=True)
    book, trained = JobLedger(workers=WORKERS, lease_s=10), collections.Counter()

    def work(rank, count, *, finish):
        holder, words = LeaseHolder(rank), []
        answer = book.lease(holder, card, count, 0.0)
        for grant in () if isinstance(answer, NoLease) else answer:
            beyond = length - grant.nth * card.shard_size
            end = grant.end if finish else min(grant.end, grant.first + batch)
            offset = max(grant.first, min(end, beyond))
            trained.update((grant.shard, n) for n in range(grant.first, offset))
            words.append(Progress(grant.shard, grant.first, offset, grant.end))
        book.report(holder, words, 0.0)
        ledger_invariants.check(book)
        return answer

    for rank, count, finish, fence in turns:
        work(rank, count, finish=finish)
        if fence:
            book.fence(rank, 0)
            break
    teller = LeaseHolder(WORKERS)
    assert book.end(teller, card, length)
    assert not book.end(teller, card, length + batch), "the first counts"
    ledger_invariants.check(book)
    again = JobLedger.from_state(book.to_state())
    assert again.to_state() == book.to_state()
    for rank in range(WORKERS):
        book.fence(rank, 0)
    while not isinstance(work(WORKERS, 4, finish=True), NoLease):
        ledger_invariants.check(book)
    assert sum(trained.values()) == len(trained) == length
    assert book.totals().done == book.totals().total == -(-length // card.shard_size)
