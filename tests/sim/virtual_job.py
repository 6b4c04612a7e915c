"""A job on a virtual clock: real ledger, leases and decisions; training a batch only takes time.

In: how fast each worker is. Out: when the last batch was trained, and the decisions on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data.leases import LeaseHolder, LeaseKey, NoLease
from springtide.domain.data.samples import DatasetCard
from springtide.master.data.leases import LeaseBalancer
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker
from tests.oracles import ledger_invariants

STEP_S = 0.05
LEAD_S = 12.0


@dataclass
class VirtualWorker:
    rank: int
    batch_s: float
    """Seconds a batch."""
    tracker: LeaseTracker = field(default_factory=LeaseTracker)
    doing: BatchClaim | None = None
    ready_at: float = 0.0
    beat_at: float = 0.0
    ask_at: float = 0.0
    batches: int = 0
    apply: Callable[[BatchClaim], None] = lambda claim: None
    """What the servers do with a batch."""

    def go(self, book, card, now):
        """One step of time: train, ask, report."""
        while self.ready_at <= now:
            if self.doing is not None:
                self.apply(self.doing)
                self.tracker.acknowledge([self.doing])
                self.batches += 1
            claimed = self.tracker.claim(card.batch_size)
            self.doing = claimed[1] if claimed else None
            if self.doing is None:
                break
            self.ready_at = max(self.ready_at, now - STEP_S) + self.batch_s
        if self.ready_at <= now:
            self.ready_at = now
        if now >= self.ask_at and self.tracker.unclaimed * self.batch_s / card.batch_size < LEAD_S:
            self.ask(book, card, now)
        if now >= self.beat_at:
            self.beat_at = now + 1.0
            words = self.tracker.report()
            verdict = book.report(LeaseHolder(self.rank), words.progress, now, words.era)
            self.tracker.on_reported(words)
            self.tracker.apply_changes(verdict.revoked, verdict.wishes, era=book.era)

    def ask(self, book, card, now):
        words = self.tracker.report()
        book.report(LeaseHolder(self.rank), words.progress, now, words.era)
        self.tracker.on_reported(words)
        known = [LeaseKey(word.shard, word.first) for word in words.progress]
        answer = book.lease(LeaseHolder(self.rank), card, 2, now, known, words.era)
        if isinstance(answer, NoLease):
            self.ask_at = now + 0.1
        else:
            self.tracker.add_grants(card, answer, book.era)


@dataclass
class VirtualJob:
    """`speeds` are parts of full speed; a full-speed worker needs `batch_s` for a batch."""

    card: DatasetCard
    speeds: list[float]
    batch_s: float = 0.02
    balanced: bool = True
    resizes: list = field(default_factory=list)
    cuts: list = field(default_factory=list)

    def run(self, change=lambda job, now: None):
        """Seconds until everything is trained."""
        self.book = JobLedger(workers=len(self.speeds))
        self.workers = [VirtualWorker(rank, self.batch_s / speed) for rank, speed in enumerate(self.speeds)]
        for worker in self.workers:
            worker.tracker.begin_pass(self.card)
        balance, now, tick = LeaseBalancer(), 0.0, 0
        while self.book.samples_done < self.card.epochs * self.card.samples_used:
            now = tick * STEP_S
            change(self, now)
            for worker in self.workers:
                worker.go(self.book, self.card, now)
            if self.balanced:
                self.apply(balance.poll(self.book, range(len(self.workers)), now), now)
            tick += 1
            assert now < 1e5, "never ends"
        ledger_invariants.check(self.book)
        trained = sum(worker.batches for worker in self.workers)
        assert trained == self.card.batches or self.book.era, "a batch was trained twice"
        return now

    def apply(self, moves, now):
        for resize in moves.resizes:
            self.book.resize(resize.rank, resize.halvings)
            self.resizes.append((now, resize))
        for cut in moves.cuts:
            if self.book.wish(cut.wish):
                self.cuts.append((now, cut))

    @property
    def ideal_s(self):
        """Work over total capacity."""
        return self.card.batches * self.batch_s / sum(self.speeds)

    @property
    def static_s(self):
        """Seconds with equal parts for all workers: the slowest decides."""
        return self.card.batches / len(self.speeds) * self.batch_s / min(self.speeds)
