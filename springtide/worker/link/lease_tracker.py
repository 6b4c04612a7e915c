"""Tracks the leases of one worker: batches that the loop has claimed, batches that are trained, and the end of each
lease.

In: grants and revocations from the link's thread, claims of worker/input/batch_plan.py, and acknowledgements of
worker/step. Out: batches to read, and progress for the master. All methods are thread-safe.
"""

import itertools
import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide.domain.data.leases import Grant, LeaseKey, Progress, ReadFailure, ShrinkRequest
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut
from springtide.telemetry.output import redact


class BatchClaim(NamedTuple):
    """Samples `begin` to `end` of a shard. The loop got these samples as one batch of the lease that starts at
    `first`."""

    shard: int
    first: int
    begin: int
    end: int
    era: int = 0
    """Era of the lease. After a server is lost, acknowledgements for earlier eras do not count."""


@dataclass(slots=True)
class HeldLease:
    """A lease that this worker holds."""

    grant: Grant
    end: int
    claimed: int
    offset: int
    trained: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Batches that are acknowledged although an earlier batch is not. Maps the begin of a batch to its end and its
    number of void offsets."""
    cuts: set[int] = field(default_factory=set)
    """Ends of partial batches of a stream partition, as the master has recorded them."""
    void: int = 0
    """Number of offsets before `offset` without a record to train."""

    @property
    def progress(self) -> Progress:
        return Progress(self.grant.shard, self.grant.first, self.offset, self.end, self.void)

    @property
    def is_done(self) -> bool:
        return self.offset == self.end


class LeaseTail(NamedTuple):
    """The part of a partition's lease that is not claimed yet, from `begin` on, with the known cuts after `begin`."""

    grant: Grant
    begin: int
    end: int
    offset: int
    """End of the trained samples."""
    cuts: tuple[int, ...] = ()


class LeaseReport(NamedTuple):
    """Progress and failures for the master. Pass the report to `LeaseTracker.on_reported` once the master has received
    it."""

    progress: tuple[Progress, ...] = ()
    failures: tuple[ReadFailure, ...] = ()
    era: int = 0


class LeaseTracker:
    """All leases of this worker in the order of their arrival. Leases that other workers have returned come first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._card: DatasetCard | None = None
        self._held: dict[LeaseKey, HeldLease] = {}
        self._unclaimed: deque[HeldLease] = deque()
        self._failures: list[ReadFailure] = []
        self._void: dict[BatchClaim, int] = {}
        """Void offsets of stream batches that the loop has claimed."""
        self._begin = LeaseKey(0, 0)
        self.era = 0
        """Number of rollbacks of the master's ledger. All leases in the tracker were granted in this era."""
        self.ends: int | None = None
        """Samples of the epoch, once the reader has found the end of a data set without a length."""
        self.short = 0
        """Samples missing in mini-batches that are not full. `ends` counts these mini-batches as full."""
        self.hurry = False
        """Whether the master has a returned lease, so that the worker requests one more lease even if it holds many."""

    # ---- the loop ----

    def begin_pass(self, card: DatasetCard) -> None:
        """Begin a pass over this data set, and return the leases of other data sets to the master."""
        with self._lock:
            self._card, self.ends, self.short = card, None, 0

    def end_at(self, samples: int, *, short: int = 0) -> None:
        with self._lock:
            assert self._card is not None
            self.ends, self.short = samples, short
            for held in self._held.values():
                beyond = samples - held.grant.nth * self._card.shard_size
                held.end = min(held.end, max(held.offset, beyond))
                held.claimed = min(held.claimed, held.end)

    def claim(self, samples: int, *, group: int = 1) -> tuple[Grant, BatchClaim] | None:
        """Claim the next batch of at most `samples`. If fewer than `group` samples would remain, they join the
        batch."""
        with self._lock:
            while self._unclaimed:
                held = self._unclaimed[0]
                begin = held.claimed
                if begin >= held.end:
                    self._unclaimed.popleft()
                    continue
                end = begin + samples
                if end + group > held.end:
                    end = held.end
                held.claimed = end
                return held.grant, BatchClaim(held.grant.shard, held.grant.first, begin, end, self.era)
            return None

    def tails(self) -> list[LeaseTail]:
        with self._lock:
            if self._card is None or self._card.stream is None:
                return []
            return [
                LeaseTail(held.grant, held.claimed, held.end, held.offset, tuple(sorted(held.cuts)))
                for held in self._held.values()
            ]

    def claim_run(self, tail: LeaseTail, end: int) -> BatchClaim | None:
        """Claim the batch from `tail.begin` to `end` of a partition. Return None if the lease no longer covers these
        offsets.
        """
        with self._lock:
            held = self._held.get(LeaseKey(tail.grant.shard, tail.grant.first))
            if held is None or held.claimed != tail.begin or not held.claimed < end <= held.end:
                return None
            held.claimed = end
            held.cuts = {at for at in held.cuts if at > end}
            return BatchClaim(held.grant.shard, held.grant.first, tail.begin, end, self.era)

    def end_run(self, partition: int, end: int) -> None:
        with self._lock:
            for held in self._held.values():
                if held.grant.nth == partition:
                    held.end = min(held.end, max(held.claimed, held.offset, end))

    def holds(self, claim: BatchClaim) -> bool:
        """Return True while this worker may train the batch: its lease is not revoked, and not cut before the batch."""
        with self._lock:
            held = self._of(claim)
            return held is not None and claim.begin < held.end

    def acknowledge(self, claims: Iterable[BatchClaim]) -> None:
        with self._lock:
            for claim in claims:
                held = self._of(claim)
                # the batch is already acknowledged, because two workers may train the same batch of a stream
                if held is None or claim.end <= held.offset:
                    continue
                held.trained.setdefault(claim.begin, (claim.end, self._void.pop(claim, 0)))
                while held.offset in held.trained:
                    end, void = held.trained.pop(held.offset)
                    held.offset, held.void = min(held.end, end), held.void + void

    def note_void(self, claim: BatchClaim, offsets: int) -> None:
        """Record how many offsets of a batch have no record to train. Call this method before the batch is
        acknowledged.
        """
        with self._lock:
            self._void.pop(claim, None)
            if offsets and claim.era == self.era:
                self._void[claim] = offsets

    def void_of(self, claim: BatchClaim) -> int:
        with self._lock:
            return self._void.get(claim, 0)

    def fail(self, claim: BatchClaim, error: str) -> None:
        """End the lease before a batch that cannot be read, so that other workers try the rest of the lease."""
        with self._lock:
            held = self._of(claim)
            if held is not None and claim.begin < held.end:
                held.end = held.claimed = max(held.offset, claim.begin)
                self._failures.append(ReadFailure(claim.shard, claim.first, claim.begin, redact(error)))

    def release_all(self) -> None:
        """Return all untrained samples, after the loop has ended and all its pushes are acknowledged."""
        with self._lock:
            self._card = None
            self._unclaimed.clear()
            for held in self._held.values():
                held.end = held.claimed = held.offset

    def skip_to(self, shard: int, first: int) -> None:
        """Skip everything before this sample, because the group trained it before this rank joined."""
        with self._lock:
            self._begin = LeaseKey(shard, first)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def unclaimed(self) -> int:
        with self._lock:
            return sum(max(0, held.end - held.claimed) for held in self._unclaimed)

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return any(not held.is_done for held in self._held.values())

    # ---- the master ----

    def add_grants(
        self, card: DatasetCard, grants: Iterable[Grant], era: int = 0, cuts: Iterable[BatchCut] = ()
    ) -> None:
        """Add granted leases. A lease for any data set but the present one is returned immediately, and a lease of an
        earlier era is dropped.
        """
        with self._lock:
            self._enter(era)
            if era < self.era:
                return
            new: list[HeldLease] = []
            for grant in grants:
                key = LeaseKey(grant.shard, grant.first)
                if key in self._held:
                    continue
                wanted = card == self._card
                first = min(grant.end, self._first_of(grant))
                held = HeldLease(grant, grant.end if wanted else first, first, first)
                self._held[key] = held
                if wanted and (card.stream is None or card.in_step):
                    new.append(held)
            self._note(cuts)
            self._line_up(new)

    def note_cuts(self, cuts: Iterable[BatchCut], era: int) -> None:
        """Store the cuts that the master has recorded, for leases of this era that this worker still holds."""
        with self._lock:
            if era == self.era:
                self._note(cuts)

    def report(self) -> LeaseReport:
        with self._lock:
            return LeaseReport(tuple(held.progress for held in self._held.values()), tuple(self._failures), self.era)

    def on_reported(self, report: LeaseReport) -> None:
        """Forget the leases that are done according to this report, because the master has received the report."""
        with self._lock:
            if report.era != self.era:
                return
            self._failures = [failure for failure in self._failures if failure not in report.failures]
            for progress in report.progress:
                key = LeaseKey(progress.shard, progress.first)
                held = self._held.get(key)
                if progress.offset == progress.end and held is not None and held.progress == progress:
                    del self._held[key]

    def apply_changes(
        self, revoked: Collection[LeaseKey], wishes: Iterable[ShrinkRequest], *, hurry: bool = False, era: int = 0
    ) -> bool:
        """Drop revoked leases. Shorten leases at the master's request, but never to before a claimed batch.

        Return True if a lease was shortened. The caller should then report immediately, because other workers wait
        for the rest of the lease. A message of an earlier era changes nothing; a message of a new era drops all
        leases.
        """
        granted = False
        with self._lock:
            self._enter(era)
            if era < self.era:
                return False
            self.hurry = hurry
            for key in revoked:
                held = self._held.pop(LeaseKey(*key), None)
                if held is not None:
                    held.end = held.claimed = held.offset
            for wish in wishes:
                held = self._held.get(LeaseKey(wish.shard, wish.first))
                if held is not None:
                    end = max(held.claimed, held.offset, min(held.end, wish.end))
                    granted |= end < held.end
                    held.end = end
        return granted

    # ---- internal, with the lock held ----

    def _line_up(self, new: Iterable[HeldLease]) -> None:
        for held in new:
            if held.grant.returned:
                ahead = sum(1 for _ in itertools.takewhile(lambda other: other.grant.returned, self._unclaimed))
                self._unclaimed.insert(ahead, held)
            else:
                self._unclaimed.append(held)

    def _first_of(self, grant: Grant) -> int:
        """Return the first sample of a lease that the group had not yet trained when this worker joined."""
        if grant.shard < self._begin.shard:
            return grant.end
        return max(grant.first, self._begin.first if grant.shard == self._begin.shard else 0)

    def _note(self, cuts: Iterable[BatchCut]) -> None:
        for cut in cuts:
            held = self._held.get(LeaseKey(cut.shard, cut.first))
            if held is not None and cut.at > held.claimed:
                held.cuts.add(cut.at)

    def _of(self, claim: BatchClaim) -> HeldLease | None:
        return self._held.get(LeaseKey(claim.shard, claim.first)) if claim.era == self.era else None

    def _enter(self, era: int) -> None:
        if era > self.era:
            self.era = era
            self._held.clear()
            self._unclaimed.clear()
            self._failures.clear()
            self._void.clear()
