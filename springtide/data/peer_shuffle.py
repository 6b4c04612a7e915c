"""Pure. Decides which worker trains a batch from a stream: the worker that read the batch, or a peer with free
capacity.

Each worker decides alone, from the last announcements of its peers, and never forwards a batch that it got from a peer.
If a peer is slow but alive, two workers may train the same batch. The repetition is harmless, because slots skip
batches that they already have.

    offer ─► queue ─► take ─► trained ─► ReportTrained, to the peer that sent it
               └► SendBatch, to a peer ─► done, or home again: returned, peer lost, peer silent
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

Strategy = Literal["none", "basic", "advanced"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

QUEUE_S = 1.0  # default upper bound of the queue, in seconds of training; users do not notice a shorter lag
FEWEST, MOST = 4, 256  # limits of the default upper bound, in batches
# the loop counts as stalled if it took no batch for this many seconds and for this many times the duration of a step
STALL_S = 2.0
STALL_STEPS = 8.0
# a peer is slow if it has not trained a batch after this many seconds and this many times the usual duration
PATIENCE_S = 10.0
PATIENCE_TIMES = 4.0
MOST_RECEIVED = 1024  # most received batches in the queue; the worker returns any further batch to its sender
SMOOTH = 0.2  # weight of the newest step in the average step time

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds of a worker's queue, in batches."""

    lower: int
    """If the queue is at most this long, the worker accepts batches from peers again."""
    upper: int
    """If the queue is at least this long, the worker accepts no batches from peers, and sends its own further batches
    to ready peers."""


def bounds_for(step_s: float) -> QueueBounds:
    """Return default bounds for batches that take this long to train; 0 seconds means unknown."""
    upper = min(MOST, max(FEWEST, math.ceil(QUEUE_S / step_s))) if step_s > 0 else FEWEST
    return QueueBounds(lower=upper // 2, upper=upper)


def _smoothed(mean_s: float, took_s: float) -> float:
    return mean_s + SMOOTH * (took_s - mean_s) if mean_s else took_s


class SendBatch(NamedTuple, Generic[K]):
    """Action: send a peer a batch of this worker to train."""

    peer: str
    key: K


class ReportTrained(NamedTuple, Generic[K]):
    """Action: tell a peer that its batch is trained."""

    peer: str
    key: K


class ReturnBatch(NamedTuple, Generic[K]):
    """Action: tell a peer that this worker will not train its batch."""

    peer: str
    key: K


class AnnounceReady(NamedTuple):
    """Action: tell all peers whether this worker accepts batches."""

    ready: bool


Action = SendBatch[K] | ReportTrained[K] | ReturnBatch[K] | AnnounceReady


@dataclass(slots=True)
class PeerState(Generic[K]):
    """This worker's view of a peer."""

    ready: bool = False
    """True if the peer's last announcement was "ready"."""
    slow: bool = False
    """True if the peer kept a batch too long and has not announced anything since then."""
    away: dict[K, float] = field(default_factory=dict)
    """Batches of this worker that the peer holds, with the time at which each was sent."""


class PeerShuffle(Generic[K]):
    """Tracks the location of each batch of a worker: in its queue, at a peer, or received from a peer. Not thread-safe.
    `draw(n)` returns a random number below n.
    """

    def __init__(self, strategy: Strategy, bounds: QueueBounds | None, draw: Callable[[int], int]) -> None:
        self.strategy, self._draw = strategy, draw
        self._fixed, self.bounds = bounds is not None, bounds or bounds_for(0.0)
        self.queue: deque[K] = deque()
        """Batches for the training loop, in order."""
        self.owners: dict[K, set[str]] = {}
        """Peers to notify when a batch is trained, by queued or training batch; "" means this worker."""
        self.peers: dict[str, PeerState[K]] = {}
        self.ready = True
        """Last state announced to peers."""
        self.draining = False
        self.came_home = 0
        """Number of this worker's batches that came back from peers untrained."""
        self._staying: set[K] = set()
        """Queued batches that must not be sent to peers."""
        self._took_at, self._idled = -math.inf, True
        """Time of the loop's last batch, or time at which a batch began to wait in an empty queue; and whether the
        queue has run empty since.
        """
        self._step_s = self._turn_s = 0.0

    # ---- this worker's reader and loop ----

    @property
    def room(self) -> int:
        """Number of batches that the reader may add before it should wait. Further batches are still accepted."""
        room = self.bounds.upper - len(self.queue)
        if self.strategy == "basic":
            return room + sum(self.bounds.upper - len(other.away) for other in self.peers.values())
        return room + sum(self.bounds.upper - len(self.peers[name].away) for name in self._open())

    def wait_s(self, at: float) -> float:
        """Return the expected wait of a batch that is offered now, in seconds. Return 0 if the loop has stalled,
        because peers then take its batches.
        """
        return 0.0 if self._stalled(at) else len(self.queue) * self._step_s

    @property
    def away(self) -> int:
        """Number of this worker's batches at peers."""
        return sum(len(other.away) for other in self.peers.values())

    def offer(self, key: K, at: float, *, stays: bool = False) -> list[Action[K]]:
        """Queue or send a batch of this worker. With `stays`, this worker must train the batch."""
        if key in self.owners:  # a peer sent this batch before this worker got the lease of the batch
            self.owners[key].add("")
            return []
        if stays:
            self._staying.add(key)
        elif self.strategy == "basic" and (chosen := self._draw(len(self.peers) + 1)) < len(self.peers):
            return [self._send(key, list(self.peers)[chosen], at)]
        self._queue(key, "", at)
        return self._balance(at)

    def take(self, at: float) -> tuple[K | None, list[Action[K]]]:
        """Give the loop the oldest batch."""
        if not self.queue:
            self._took_at = at
            return None, self._balance(at)
        if self._took_at > -math.inf and not self._idled:
            self._step_s = _smoothed(self._step_s, at - self._took_at)
            self.bounds = self.bounds if self._fixed else bounds_for(self._step_s)
        self._took_at, self._idled = at, len(self.queue) == 1
        key = self.queue.popleft()
        self._staying.discard(key)
        return key, self._balance(at)

    def trained(self, key: K, at: float) -> list[Action[K]]:
        """Record that every server has the gradients of this batch."""
        owners = self.owners.pop(key, set())
        return [*(ReportTrained(owner, key) for owner in sorted(owners) if owner), *self._balance(at)]

    def drop(self, key: K, at: float) -> list[Action[K]]:
        """Record that the loop will not train this batch. A peer's batch is returned to the peer, and this worker's own
        batch is forgotten."""
        owners = self.owners.pop(key, set())
        return [*(ReturnBatch(owner, key) for owner in sorted(owners) if owner), *self._balance(at)]

    def forget(self, keys: Iterable[K]) -> None:
        """Forget batches of this worker that a different worker has taken over."""
        gone = set(keys)
        for key in gone & self.owners.keys():
            self._disown(key, "")
        for other in self.peers.values():
            for key in gone & other.away.keys():
                del other.away[key]

    def drain(self, at: float) -> list[Action[K]]:
        """Accept no more batches from peers, and return their queued batches."""
        self.draining = True
        actions: list[Action[K]] = []
        for key in list(self.queue):
            for owner in sorted(self.owners[key] - {""}):
                self._disown(key, owner)
                actions.append(ReturnBatch(owner, key))
        return [*actions, *self._balance(at)]

    # ---- peers ----

    def on_ready(self, peer: str, ready: bool, at: float) -> list[Action[K]]:
        """Record a peer's announcement. The first announcement of a peer adds the peer."""
        other = self.peers.setdefault(peer, PeerState())
        other.ready, other.slow = ready, False
        return self._balance(at)

    def on_batch(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """Queue a batch from a peer, or return the batch. This worker never sends the batch on to a third worker."""
        if key in self.owners:
            self.owners[key].add(peer)
            return []
        if self.draining or len(self.queue) >= MOST_RECEIVED:
            return [ReturnBatch(peer, key)]
        self._queue(key, peer, at)
        return self._balance(at)

    def done(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """Record that a peer trained one of this worker's batches, perhaps after this worker took the batch back."""
        if (other := self.peers.get(peer)) is not None:
            sent_at = other.away.pop(key, None)
            other.slow = False
            if sent_at is not None:
                self._turn_s = _smoothed(self._turn_s, at - sent_at)
        if key in self.queue:
            self._disown(key, "")
        return self._balance(at)

    def given_back(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """Take back a batch that a peer will not train."""
        if (other := self.peers.get(peer)) is not None and other.away.pop(key, None) is not None:
            other.ready = False  # the peer counts as not ready until its next announcement
            self._come_home([key], at)
        return self._balance(at)

    def silent(self, peer: str, at: float) -> list[Action[K]]:
        """Take this worker's batches back from a peer that is reachable but has sent nothing for a while."""
        if (other := self.peers.get(peer)) is not None:
            other.slow = True
            homeward, other.away = list(other.away), {}
            self._come_home(homeward, at)
        return self._balance(at)

    def lost(self, peer: str, at: float) -> list[Action[K]]:
        """Forget an unreachable peer, and take this worker's batches back.

        This worker still trains the batches that it got from the lost peer. If a third worker reads and trains these
        batches again, slots skip the repeated push.
        """
        if (other := self.peers.pop(peer, None)) is not None:
            self._come_home(list(other.away), at)
        return self._balance(at)

    def forgive(self, away_s: float) -> None:
        """Shift all times after this process was suspended, so that no peer counts as slow."""
        self._took_at += away_s
        for other in self.peers.values():
            other.away = {key: since + away_s for key, since in other.away.items()}

    def tick(self, at: float) -> list[Action[K]]:
        """Take batches back from peers that keep them too long."""
        patience = max(PATIENCE_S, PATIENCE_TIMES * self._turn_s)
        for other in self.peers.values():
            late = [key for key, since in other.away.items() if at - since > patience]
            if late:
                other.slow = True
                for key in late:
                    del other.away[key]
                self._come_home(late, at)
        return self._balance(at)

    # ---- internals ----

    def _stalled(self, at: float) -> bool:
        """Return True if the loop has ignored waiting batches for so long that it may hang."""
        return bool(self.queue) and at - self._took_at > max(STALL_S, STALL_STEPS * self._step_s)

    def _queue(self, key: K, owner: str, at: float) -> None:
        if not self.queue:
            # this batch has waited only since now, so the loop has not ignored it
            self._took_at = max(self._took_at, at)
            self._idled = True
        self.queue.append(key)
        self.owners[key] = {owner}

    def _come_home(self, keys: list[K], at: float) -> None:
        """Put these batches at the front of the queue, because no batch in the queue is older."""
        self.came_home += len(keys)
        for key in reversed(keys):
            if key in self.owners:
                self.owners[key].add("")
            else:
                self._queue(key, "", at)
                self.queue.rotate(1)

    def _disown(self, key: K, owner: str) -> None:
        self.owners[key].discard(owner)
        if not self.owners[key] and key in self.queue:
            self.queue.remove(key)
            self._staying.discard(key)
            del self.owners[key]

    def _open(self) -> list[str]:
        """Return the peers that accept another batch. A peer gets at most `upper` batches, because its announcements
        arrive with a delay."""
        if self.strategy != "advanced":
            return []
        return [
            name
            for name, other in self.peers.items()
            if other.ready and not other.slow and len(other.away) < self.bounds.upper
        ]

    def _send(self, key: K, peer: str, at: float) -> SendBatch[K]:
        self.peers[peer].away[key] = at
        return SendBatch(peer, key)

    def _balance(self, at: float) -> list[Action[K]]:
        """Send surplus batches to ready peers, and announce readiness. Call this method after every change."""
        stalled = self._stalled(at)
        actions: list[Action[K]] = list(self._overflow(0 if stalled else self.bounds.upper, at))
        full = stalled or self.draining or len(self.queue) >= self.bounds.upper
        ready = not full and (self.ready or len(self.queue) <= self.bounds.lower)
        if ready != self.ready and self.strategy == "advanced":
            self.ready = ready
            actions.append(AnnounceReady(ready))
        return actions

    def _overflow(self, keep: int, at: float) -> Iterable[SendBatch[K]]:
        """Send the newest surplus batches, each to a random ready peer."""
        spare = len(self.queue) - keep
        if spare <= 0 or not (names := self._open()):
            return
        own = [key for key in reversed(self.queue) if self.owners[key] == {""} and key not in self._staying]
        for key in own[:spare]:
            if not names:
                return
            peer = names[self._draw(len(names))]
            self.queue.remove(key)
            del self.owners[key]
            yield self._send(key, peer, at)
            if len(self.peers[peer].away) >= self.bounds.upper:
                names.remove(peer)
