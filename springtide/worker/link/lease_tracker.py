"""The leases in a worker's hands: what of them the loop has been given, what is trained, where each is to end.

In: grants, revocations and wishes from the link (which has its own thread), claims of worker/input/batch_plan.py,
acknowledgements of worker/step/step.py. Out: batches to read, and words for the master. All methods may be called from
any thread.
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
from springtide.telemetry.redactor import redact


class Claim(NamedTuple):
    """Samples `begin` to `end` of a shard, given to the loop as one batch of the lease that began with `first`."""

    shard: int
    first: int
    begin: int
    end: int
    era: int = 0
    """Of the lease: that a batch was acknowledged before a server was lost says nothing afterwards."""


@dataclass(slots=True)
class Held:
    """One lease."""

    grant: Grant
    end: int
    claimed: int
    offset: int
    trained: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Batches that are acknowledged while one before them is not: where they begin and end, what of them is void."""
    cuts: set[int] = field(default_factory=set)
    """Of a partition of a stream: where batches end that are not full, as the master has noted it."""
    void: int = 0
    """Offsets before `offset` that held nothing to train."""

    @property
    def word(self) -> Progress:
        """What the master is told of it."""
        return Progress(self.grant.shard, self.grant.first, self.offset, self.end, self.void)

    @property
    def through(self) -> bool:
        """Whether nothing is left to do."""
        return self.offset == self.end


class Tail(NamedTuple):
    """What of a partition's lease nobody has claimed: from `begin` on, with the cuts that are known beyond it."""

    grant: Grant
    begin: int
    end: int
    offset: int
    """Trained up to here."""
    cuts: tuple[int, ...] = ()


class Words(NamedTuple):
    """What there is to tell; `Hands.told` it when the master has heard."""

    progress: tuple[Progress, ...] = ()
    failures: tuple[ReadFailure, ...] = ()
    era: int = 0


class Hands:
    """All leases of this worker, in the order in which they came; but what another has left unfinished goes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._card: DatasetCard | None = None
        self._held: dict[LeaseKey, Held] = {}
        self._unclaimed: deque[Held] = deque()
        self._failures: list[ReadFailure] = []
        self._void: dict[Claim, int] = {}
        """Of batches of a stream in the loop's hand: offsets that hold nothing to train, where there are any."""
        self._begin = LeaseKey(0, 0)
        self.era = 0
        """How often the master's book has gone back, as far as is known here: all leases are of this era."""
        self.ends: int | None = None
        """Where the reader has found the end of a data set that has no length: samples of the epoch."""
        self.hurry = False
        """What another has left unfinished waits at the master: one more lease is wanted, however many there are."""

    # ---- the loop ----

    def open(self, card: DatasetCard) -> None:
        """A pass over this data set begins: leases of no other are wanted from now on."""
        with self._lock:
            self._card, self.ends = card, None

    def end_at(self, samples: int) -> None:
        """The data is over: what lies beyond, in leases too, was never there."""
        with self._lock:
            assert self._card is not None
            self.ends = samples
            for held in self._held.values():
                beyond = samples - held.grant.nth * self._card.shard_size
                held.end = min(held.end, max(held.offset, beyond))
                held.claimed = min(held.claimed, held.end)

    def claim(self, samples: int, *, group: int = 1) -> tuple[Grant, Claim] | None:
        """The next batch, of `samples` at most. A rest too small for a group to share joins the batch before it."""
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
                return held.grant, Claim(held.grant.shard, held.grant.first, begin, end, self.era)
            return None

    def tails(self) -> list[Tail]:
        """Leases of partitions, and how far each was claimed: what a reader of a stream reads on from."""
        with self._lock:
            if self._card is None or self._card.stream is None:
                return []
            return [
                Tail(held.grant, held.claimed, held.end, held.offset, tuple(sorted(held.cuts)))
                for held in self._held.values()
            ]

    def claim_run(self, tail: Tail, end: int) -> Claim | None:
        """The batch of a partition from `tail.begin` to `end`. None: it is not ours, the lease has ended before it."""
        with self._lock:
            held = self._held.get(LeaseKey(tail.grant.shard, tail.grant.first))
            if held is None or held.claimed != tail.begin or not held.claimed < end <= held.end:
                return None
            held.claimed = end
            held.cuts = {at for at in held.cuts if at > end}
            return Claim(held.grant.shard, held.grant.first, tail.begin, end, self.era)

    def end_run(self, partition: int, end: int) -> None:
        """Nothing will ever come behind this offset of a partition: leases of it end there."""
        with self._lock:
            for held in self._held.values():
                if held.grant.nth == partition:
                    held.end = min(held.end, max(held.claimed, held.offset, end))

    def wanted(self, claim: Claim) -> bool:
        """Whether the batch is still ours to train: its lease was neither revoked nor cut off before it."""
        with self._lock:
            held = self._of(claim)
            return held is not None and claim.begin < held.end

    def acknowledge(self, claims: Iterable[Claim]) -> None:
        """Every server has these batches."""
        with self._lock:
            for claim in claims:
                held = self._of(claim)
                if held is None or claim.end <= held.offset:  # a batch of a stream may be acknowledged by two workers
                    continue
                held.trained.setdefault(claim.begin, (claim.end, self._void.pop(claim, 0)))
                while held.offset in held.trained:
                    end, void = held.trained.pop(held.offset)
                    held.offset, held.void = min(held.end, end), held.void + void

    def note_void(self, claim: Claim, offsets: int) -> None:
        """So many offsets of this batch, our own or a peer's, hold nothing to train. Told before it is acknowledged."""
        with self._lock:
            self._void.pop(claim, None)
            if offsets and claim.era == self.era:
                self._void[claim] = offsets

    def void_of(self, claim: Claim) -> int:
        """What was noted of a peer's batch."""
        with self._lock:
            return self._void.get(claim, 0)

    def fail(self, claim: Claim, error: str) -> None:
        """The batch cannot be read: the lease ends before it, and others may try the rest."""
        with self._lock:
            held = self._of(claim)
            if held is not None and claim.begin < held.end:
                held.end = held.claimed = max(held.offset, claim.begin)
                self._failures.append(ReadFailure(claim.shard, claim.first, claim.begin, redact(error)))

    def give_back(self) -> None:
        """The loop has ended, everything it sent being acknowledged: what it has not trained is not ours any more."""
        with self._lock:
            self._card = None
            self._unclaimed.clear()
            for held in self._held.values():
                held.end = held.claimed = held.offset

    def skip_to(self, shard: int, first: int) -> None:
        """What lies before this sample is trained: leases of it, given to a rank that joins, are through."""
        with self._lock:
            self._begin = LeaseKey(shard, first)

    def __len__(self) -> int:
        """How many leases there are."""
        return len(self._held)

    @property
    def unclaimed(self) -> int:
        """Samples that the loop has not been given yet."""
        with self._lock:
            return sum(max(0, held.end - held.claimed) for held in self._unclaimed)

    @property
    def busy(self) -> bool:
        """Whether there is a lease that is not trained to its end."""
        with self._lock:
            return any(not held.through for held in self._held.values())

    # ---- the master ----

    def take(self, card: DatasetCard, grants: Iterable[Grant], era: int = 0, cuts: Iterable[BatchCut] = ()) -> None:
        """Leases have come; those that nobody wants any more go straight back, those of the past nowhere."""
        with self._lock:
            self._enter(era)
            if era < self.era:
                return
            new: list[Held] = []
            for grant in grants:
                key = LeaseKey(grant.shard, grant.first)
                if key in self._held:
                    continue
                wanted = card == self._card
                first = min(grant.end, self._first_of(grant))
                held = Held(grant, grant.end if wanted else first, first, first)
                self._held[key] = held
                if wanted and (card.stream is None or card.in_step):
                    new.append(held)
            self._note(cuts)
            self._line_up(new)

    def note_cuts(self, cuts: Iterable[BatchCut], era: int) -> None:
        """The master has noted that batches end here; of leases of another era, or that are gone, nothing is kept."""
        with self._lock:
            if era == self.era:
                self._note(cuts)

    def words(self) -> Words:
        """A word on every lease, and what could not be read."""
        with self._lock:
            return Words(tuple(held.word for held in self._held.values()), tuple(self._failures), self.era)

    def told(self, words: Words) -> None:
        """The master has these: leases that are through can be forgotten."""
        with self._lock:
            if words.era != self.era:
                return
            self._failures = [failure for failure in self._failures if failure not in words.failures]
            for word in words.progress:
                key = LeaseKey(word.shard, word.first)
                held = self._held.get(key)
                if word.offset == word.end and held is not None and held.word == word:
                    del self._held[key]

    def heed(
        self, revoked: Collection[LeaseKey], wishes: Iterable[ShrinkRequest], *, hurry: bool = False, era: int = 0
    ) -> bool:
        """Drop what is not ours any more; end leases sooner where that is wished, after what the loop was given.

        Words of an era that is over change nothing; with the first one of a new era all leases are dropped.

        Whether a wish was granted: then the master should hear of it at once, since others wait for the rest.
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

    # ---- inside, with the lock held ----

    def _line_up(self, new: Iterable[Held]) -> None:
        """Behind all others; but what another has left goes first, behind what others had left before."""
        for held in new:
            if held.grant.returned:
                ahead = sum(1 for _ in itertools.takewhile(lambda one: one.grant.returned, self._unclaimed))
                self._unclaimed.insert(ahead, held)
            else:
                self._unclaimed.append(held)

    def _first_of(self, grant: Grant) -> int:
        """Where to begin with a lease: behind what was trained before this worker came."""
        if grant.shard < self._begin.shard:
            return grant.end
        return max(grant.first, self._begin.first if grant.shard == self._begin.shard else 0)

    def _note(self, cuts: Iterable[BatchCut]) -> None:
        for cut in cuts:
            held = self._held.get(LeaseKey(cut.shard, cut.first))
            if held is not None and cut.at > held.claimed:
                held.cuts.add(cut.at)

    def _of(self, claim: Claim) -> Held | None:
        """The lease that a batch was claimed of, if it is still ours."""
        return self._held.get(LeaseKey(claim.shard, claim.first)) if claim.era == self.era else None

    def _enter(self, era: int) -> None:
        """The master's book has gone back: what was held, and how far it was, is of the past."""
        if era > self.era:
            self.era = era
            self._held.clear()
            self._unclaimed.clear()
            self._failures.clear()
            self._void.clear()
