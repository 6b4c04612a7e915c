"""A worker's shuffle unit. The unit queues batches of a stream for the loop: batches that this worker or its peers have
read.

In: the reader offers batches, the loop takes them, and the channel's thread reports on peers. Out: runs for the
loop, and for peers through `Wires` (peers.py). data/peer_shuffle.py decides where each batch goes; with the strategy
"none", or without peers, the unit is a plain queue.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from springtide.data import peer_shuffle
from springtide.data.peer_shuffle import QueueBounds, Strategy
from springtide.data.stream.records import Records
from springtide.domain.core import validation
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker

# largest batch to send to a peer, in bytes; a worker that reads a larger batch trains it itself
SENDABLE_BYTES = 64 * 2**20


class ShuffleUse(NamedTuple):
    """Totals of a unit since it started; for `StreamUse`."""

    queue: int = 0
    forwarded: int = 0
    forwarded_bytes: int = 0
    """Bytes sent to other workers: batches, and messages about batches."""
    received: int = 0
    came_home: int = 0
    """Number of batches that came back untrained: a peer returned the batch, or this unit took it back."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Records of a batch that are not decoded yet. The claim of a batch is its identity, because the same shard,
    begin and end always name the same records.
    """

    claim: BatchClaim
    partition: int
    records: Records
    owner: str = ""
    """Worker that holds the lease and sent the batch; empty for this worker itself."""


class Wires(Protocol):
    """Transport to peers. Calls never block, and messages that cannot be delivered are dropped."""

    sent_bytes: int
    """Bytes sent to peers, including messages about batches."""

    def send(self, peer: str, run: RecordRun) -> None: ...

    def done(self, peer: str, claims: Mapping[BatchClaim, int]) -> None: ...

    def back(self, peer: str, claims: Sequence[BatchClaim]) -> None: ...

    def announce(self, ready: bool) -> None: ...

    def close(self) -> None:
        """Send the remaining messages and disconnect. Only this call blocks, and only briefly."""
        ...


class ShuffleUnit:
    """Queue of batches with exchange between peers. All methods are thread-safe."""

    def __init__(
        self,
        tracker: LeaseTracker,
        *,
        strategy: str = "none",
        queue: tuple[int, int] | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker, self._clock = tracker, clock
        bounds = None if queue is None else QueueBounds(lower=queue[0], upper=queue[1])
        self._shuffle: peer_shuffle.PeerShuffle[BatchClaim] = peer_shuffle.PeerShuffle(
            cast(Strategy, validation.choice(strategy, "shuffle strategy", peer_shuffle.STRATEGIES)),
            bounds,
            random.Random(seed).randrange,
        )
        self._runs: dict[BatchClaim, RecordRun] = {}
        """Records of all batches that are queued here or sent to a peer."""
        self._early: list[RecordRun] = []
        """Batches from peers that learned of a new era before this worker."""
        # the code enters this lock directly, because an interrupt in Condition.__enter__ would leave the lock held
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._wires: Wires | None = None
        self._forwarded = self._received = 0
        self._closed = False

    def connect(self, wires: Wires) -> None:
        self._wires = wires

    # ---- the reader ----

    @property
    def room(self) -> int:
        with self._lock:
            return max(0, self._shuffle.room)

    @property
    def wait_s(self) -> float:
        with self._lock:
            return self._shuffle.wait_s(self._clock())

    def await_room(self, timeout_s: float) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: self._closed or self._shuffle.room > 0, timeout_s)

    def offer(self, run: RecordRun) -> None:
        """Add a batch of this worker's lease without blocking, even if the queue is full."""
        with self._lock:
            self._runs[run.claim] = run
            stays = run.records.nbytes > SENDABLE_BYTES
            self._act(self._shuffle.offer(run.claim, self._clock(), stays=stays))

    # ---- the loop ----

    def take(self, timeout_s: float) -> RecordRun | None:
        """Return the next batch to train, or None after the timeout. Batches whose lease is lost are dropped."""
        deadline = self._clock() + timeout_s
        with self._lock:
            while not self._closed:
                self._admit()
                key, actions = self._shuffle.take(self._clock())
                self._act(actions)
                if key is None:
                    left = deadline - self._clock()
                    if left <= 0 or not self._changed.wait_for(lambda: self._closed or self._shuffle.queue, left):
                        return None
                elif self._shuffle.owners[key] == {""} and not self._tracker.holds(key):
                    self._act(self._shuffle.drop(key, self._clock()))
                    self._prune([key])
                else:
                    return self._runs[key]
            return None

    def trained(self, claims: Iterable[BatchClaim]) -> None:
        """Handle batches that every server now has: acknowledge this worker's own batches, and notify the owners of all
        other batches.
        """
        claims = list(claims)
        self._tracker.acknowledge(claims)
        with self._lock:
            now = self._clock()
            self._act([action for claim in claims for action in self._shuffle.trained(claim, now)])
            self._prune(claims)
            for claim in claims:
                self._tracker.note_void(claim, 0)

    def drop(self, run: RecordRun) -> None:
        with self._lock:
            self._act(self._shuffle.drop(run.claim, self._clock()))
            self._prune([run.claim])

    def drain(self, timeout_s: float) -> bool:
        """After the loop has ended, give untrained batches back to their owners, and wait for this worker's batches at
        peers. Return False if a peer did not answer. A peer that did not answer may still train its batches. When the
        next reader of the partition trains the same batches, servers skip them.
        """
        deadline = self._clock() + timeout_s
        with self._lock:
            early, self._early = self._early, []
            if self._wires is not None:
                for run in early:
                    self._wires.back(run.owner, [run.claim])
            self._act(self._shuffle.drain(self._clock()))
            self._prune(list(self._runs))
            while self._shuffle.away and not self._closed:
                left = deadline - self._clock()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.1))
                self._forget()
            return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            wires = self._wires
        if wires is not None:
            wires.close()

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._runs and not self._early

    @property
    def use(self) -> ShuffleUse:
        with self._lock:
            sent = 0 if self._wires is None else self._wires.sent_bytes
            waiting = len(self._shuffle.queue)
            return ShuffleUse(waiting, self._forwarded, sent, self._received, self._shuffle.came_home)

    # ---- peers (called in the channel's thread) ----

    @property
    def ready(self) -> bool:
        with self._lock:
            return self._shuffle.ready

    def peer_ready(self, peer: str, ready: bool) -> None:
        with self._lock:
            self._act(self._shuffle.on_ready(peer, ready, self._clock()))

    def peer_sent(self, peer: str, run: RecordRun) -> None:
        """Accept a batch of a peer. A batch of a newer era waits until this worker knows the era.

        Without this rule, an old incarnation of a server could acknowledge the batch in place of the new
        incarnation.
        """
        with self._lock:
            self._received += 1
            if run.claim.era > self._tracker.era:
                self._early.append(run)
            elif run.claim.era == self._tracker.era:
                self._take_in(run)

    def peer_done(self, peer: str, trained: Mapping[BatchClaim, int]) -> None:
        """Acknowledge batches that a peer has trained, each with its number of offsets without a record to train.
        Ignore unknown batches."""
        with self._lock:
            claims = [claim for claim in trained if claim in self._runs and not self._runs[claim].owner]
            for claim in claims:
                self._tracker.note_void(claim, max(0, min(trained[claim], claim.end - claim.begin)))
            self._tracker.acknowledge(claims)
            for claim in claims:
                self._act(self._shuffle.done(peer, claim, self._clock()))
            self._prune(claims)

    def peer_gave_back(self, peer: str, claims: Sequence[BatchClaim]) -> None:
        with self._lock:
            for claim in claims:
                self._act(self._shuffle.given_back(peer, claim, self._clock()))

    def peer_silent(self, peer: str) -> None:
        with self._lock:
            self._act(self._shuffle.silent(peer, self._clock()))

    def peer_lost(self, peer: str) -> None:
        with self._lock:
            self._act(self._shuffle.lost(peer, self._clock()))

    def tick(self, away_s: float = 0.0) -> None:
        """Advance timers, a few times per second. `away_s` is the time for which this process was stopped."""
        with self._lock:
            self._shuffle.forgive(away_s)
            self._admit()
            self._forget()
            self._act(self._shuffle.tick(self._clock()))

    # ---- internal, with the lock held ----

    def _take_in(self, run: RecordRun) -> None:
        known = self._runs.get(run.claim)
        if known is None or (known.owner and known.claim not in self._shuffle.owners):
            self._runs[run.claim] = run
        self._act(self._shuffle.on_batch(run.owner, run.claim, self._clock()))
        self._prune([run.claim])

    def _admit(self) -> None:
        if self._early:
            era = self._tracker.era
            early, self._early = self._early, [run for run in self._early if run.claim.era > era]
            for run in early:
                if run.claim.era == era:
                    self._take_in(run)

    def _forget(self) -> None:
        gone = [key for key, run in self._runs.items() if not run.owner and not self._tracker.holds(key)]
        self._shuffle.forget(gone)
        self._prune(gone)

    def _prune(self, claims: Iterable[BatchClaim]) -> None:
        kept = self._shuffle
        for claim in claims:
            if claim not in kept.owners and not any(claim in other.away for other in kept.peers.values()):
                self._runs.pop(claim, None)

    def _act(self, actions: Iterable[peer_shuffle.Action[BatchClaim]]) -> None:
        for action in actions:
            if self._wires is None:
                continue
            match action:
                case peer_shuffle.SendBatch(peer, key):
                    self._forwarded += 1
                    self._wires.send(peer, self._runs[key])
                case peer_shuffle.ReportTrained(peer, key):
                    self._wires.done(peer, {key: self._tracker.void_of(key)})
                case peer_shuffle.ReturnBatch(peer, key):
                    self._wires.back(peer, [key])
                case peer_shuffle.AnnounceReady(ready):
                    self._wires.announce(ready)
        self._changed.notify_all()
