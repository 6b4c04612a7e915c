"""Pure. Decide which worker of a job trains a batch that was read from a stream: its reader, or a peer with time.

In: batches and messages of worker/online/shuffling/shuffle_unit.py. Out: actions for it. Each worker has one
`PeerShuffle` and decides by what its peers announced last; nothing coordinates them. A batch from a peer is never sent
on, and a batch that was sent comes home before it is sent again. A batch that is trained twice (a peer was only slow)
does no harm: slots skip batches that they have.

    offer ─► queue ─► take ─► trained ─► ReportTrained, to the peer that sent it
               └► SendBatch, to a peer ─► done, or home again: returned, peer lost, peer silent
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from springtide import errors

Strategy = Literal["none", "basic", "advanced"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

QUEUE_S = 1.0  # default upper bound: batches of this much training time; a shorter lag than users notice
FEWEST, MOST = 4, 256  # limits of the default upper bound, in batches
STALL_S = 2.0  # a loop that took nothing for this long, and for this many of its steps, has stalled
STALL_STEPS = 8.0
PATIENCE_S = 10.0  # a peer that has not trained a batch after this long, and this many times the usual turn, is slow
PATIENCE_TIMES = 4.0
MOST_RECEIVED = 1024  # batches that may wait here: further ones are returned
SMOOTH = 0.2  # weight of the newest in the average time of a step

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Bounds of a worker's queue, in batches."""

    lower: int
    """At this length or below, the worker is ready to take batches from peers again."""
    upper: int
    """At this length the worker takes no more from peers, and sends further batches of its own to ready peers."""

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.upper:
            raise errors.BadInput(
                f"bounds of a worker's queue: lower={self.lower}, upper={self.upper}; wanted 0 <= lower < upper"
            )


def bounds_for(step_s: float) -> QueueBounds:
    """Default bounds for this training time of a batch; 0: not known yet."""
    upper = min(MOST, max(FEWEST, math.ceil(QUEUE_S / step_s))) if step_s > 0 else FEWEST
    return QueueBounds(lower=upper // 2, upper=upper)


class SendBatch(NamedTuple, Generic[K]):
    """Give a peer one of our batches to train."""

    peer: str
    key: K


class ReportTrained(NamedTuple, Generic[K]):
    """Tell a peer that its batch is trained."""

    peer: str
    key: K


class ReturnBatch(NamedTuple, Generic[K]):
    """Tell a peer that its batch is not trained here."""

    peer: str
    key: K


class AnnounceReady(NamedTuple):
    """Tell all peers whether this worker is ready to take batches."""

    ready: bool


Action = SendBatch[K] | ReportTrained[K] | ReturnBatch[K] | AnnounceReady


@dataclass(slots=True)
class PeerState(Generic[K]):
    """What this worker knows of a peer."""

    ready: bool = False
    """As the peer announced last."""
    slow: bool = False
    """True if it kept a batch too long and was not heard of since."""
    away: dict[K, float] = field(default_factory=dict)
    """Our batches that the peer has, and since when."""


class PeerShuffle(Generic[K]):
    """One worker's batches by where they are. Not thread-safe; `draw(n)` gives a random number below n."""

    def __init__(self, strategy: Strategy, bounds: QueueBounds | None, draw: Callable[[int], int]) -> None:
        self.strategy, self._draw = strategy, draw
        self._fixed, self.bounds = bounds is not None, bounds or bounds_for(0.0)
        self.queue: deque[K] = deque()
        """Batches that the training loop takes next."""
        self.owners: dict[K, set[str]] = {}
        """By queued or training batch: the peers to tell when it is trained; "" is this worker itself."""
        self.peers: dict[str, PeerState[K]] = {}
        self.ready = True
        """What peers were told last."""
        self.draining = False
        self.came_home = 0
        """Our batches that peers had and did not train, as far as is known here."""
        self._staying: set[K] = set()
        """Queued batches that must not be sent."""
        self._took_at, self._idled = -math.inf, True
        """When the loop took last, or what waits began to; whether it had to wait for what it took then."""
        self._step_s = self._turn_s = 0.0

    # ---- this worker's reader and loop ----

    @property
    def room(self) -> int:
        """Batches that the reader may add before it should wait; more are accepted all the same."""
        room = self.bounds.upper - len(self.queue)
        if self.strategy == "basic":
            return room + sum(self.bounds.upper - len(other.away) for other in self.peers.values())
        return room + sum(self.bounds.upper - len(self.peers[name].away) for name in self._open())

    def wait_s(self, at: float) -> float:
        """How long a batch offered now waits for the loop; 0 where peers would take it at once."""
        return 0.0 if self._stalled(at) else len(self.queue) * self._step_s

    @property
    def away(self) -> int:
        """Our batches that peers have."""
        return sum(len(other.away) for other in self.peers.values())

    def offer(self, key: K, at: float, *, stays: bool = False) -> list[Action[K]]:
        """Queue or send a batch of this worker's own; with `stays` it must be trained here."""
        if key in self.owners:  # a peer sent it, and its lease is ours by now
            self.owners[key].add("")
            return []
        if stays:
            self._staying.add(key)
        elif self.strategy == "basic" and (chosen := self._draw(len(self.peers) + 1)) < len(self.peers):
            return [self._send(key, list(self.peers)[chosen], at)]
        self._queue(key, "", at)
        return self._settle(at)

    def take(self, at: float) -> tuple[K | None, list[Action[K]]]:
        """Give the loop the batch that has waited longest."""
        if not self.queue:
            self._took_at = at
            return None, self._settle(at)
        if self._took_at > -math.inf and not self._idled:
            self._paced(at - self._took_at)
        self._took_at, self._idled = at, len(self.queue) == 1
        key = self.queue.popleft()
        self._staying.discard(key)
        return key, self._settle(at)

    def trained(self, key: K, at: float) -> list[Action[K]]:
        """Note that every server has the gradients of this batch."""
        owners = self.owners.pop(key, set())
        return [*(ReportTrained(owner, key) for owner in sorted(owners) if owner), *self._settle(at)]

    def drop(self, key: K, at: float) -> list[Action[K]]:
        """Note that the loop took this batch and will not train it: a peer's goes back, our own is forgotten."""
        owners = self.owners.pop(key, set())
        return [*(ReturnBatch(owner, key) for owner in sorted(owners) if owner), *self._settle(at)]

    def forget(self, keys: Iterable[K]) -> None:
        """Forget batches of ours that another worker has taken over."""
        gone = set(keys)
        for key in gone & self.owners.keys():
            self._disown(key, "")
        for other in self.peers.values():
            for key in gone & other.away.keys():
                del other.away[key]

    def drain(self, at: float) -> list[Action[K]]:
        """Take no more from peers, and give back their batches that wait here."""
        self.draining = True
        actions: list[Action[K]] = []
        for key in list(self.queue):
            for owner in sorted(self.owners[key] - {""}):
                self._disown(key, owner)
                actions.append(ReturnBatch(owner, key))
        return [*actions, *self._settle(at)]

    # ---- peers ----

    def heard(self, peer: str, ready: bool, at: float) -> list[Action[K]]:
        """Note a peer's announcement whether it is ready; its first one makes it known."""
        other = self.peers.setdefault(peer, PeerState())
        other.ready, other.slow = ready, False
        return self._settle(at)

    def came(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """Queue a batch from a peer, or return it; it is never sent to a third worker."""
        if key in self.owners:
            self.owners[key].add(peer)
            return []
        if self.draining or len(self.queue) >= MOST_RECEIVED:
            return [ReturnBatch(peer, key)]
        self._queue(key, peer, at)
        return self._settle(at)

    def done(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """Note that a peer trained a batch of ours, perhaps after we gave it up there: nobody else need train it."""
        if (other := self.peers.get(peer)) is not None:
            sent_at = other.away.pop(key, None)
            other.slow = False
            if sent_at is not None:
                took = at - sent_at
                self._turn_s = took if not self._turn_s else self._turn_s + SMOOTH * (took - self._turn_s)
        if key in self.queue:
            self._disown(key, "")
        return self._settle(at)

    def given_back(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """Take back a batch of ours that a peer will not train."""
        if (other := self.peers.get(peer)) is not None and other.away.pop(key, None) is not None:
            other.ready = False  # until it announces itself again
            self._come_home([key], at)
        return self._settle(at)

    def silent(self, peer: str, at: float) -> list[Action[K]]:
        """Take our batches back from a reachable peer that was not heard of for a while."""
        if (other := self.peers.get(peer)) is not None:
            other.slow = True
            homeward, other.away = list(other.away), {}
            self._come_home(homeward, at)
        return self._settle(at)

    def lost(self, peer: str, at: float) -> list[Action[K]]:
        """Forget a peer that cannot be reached, and take our batches back.

        Batches that it sent are still trained here; a worker that reads them again finds that slots have them.
        """
        if (other := self.peers.pop(peer, None)) is not None:
            self._come_home(list(other.away), at)
        return self._settle(at)

    def forgive(self, away_s: float) -> None:
        """Shift all times: this process did not run for that long, and no peer is to blame."""
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
        return self._settle(at)

    # ---- internals ----

    def _paced(self, took: float) -> None:
        self._step_s = took if not self._step_s else self._step_s + SMOOTH * (took - self._step_s)
        if not self._fixed:
            self.bounds = bounds_for(self._step_s)

    def _stalled(self, at: float) -> bool:
        """True if the loop has ignored waiting batches so long that it may be in trouble."""
        return bool(self.queue) and at - self._took_at > max(STALL_S, STALL_STEPS * self._step_s)

    def _queue(self, key: K, owner: str, at: float) -> None:
        if not self.queue:
            self._took_at = max(self._took_at, at)  # it begins to wait now
            self._idled = True
        self.queue.append(key)
        self.owners[key] = {owner}

    def _come_home(self, keys: list[K], at: float) -> None:
        """Queue batches first: they are the oldest that this worker has."""
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
        """Peers that would take another batch; at most `upper` each, because announcements take time to arrive."""
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

    def _settle(self, at: float) -> list[Action[K]]:
        """After any change: send surplus batches to ready peers, and announce whether we are ready."""
        stalled = self._stalled(at)
        actions: list[Action[K]] = list(self._overflow(0 if stalled else self.bounds.upper, at))
        full = stalled or self.draining or len(self.queue) >= self.bounds.upper
        ready = not full and (self.ready or len(self.queue) <= self.bounds.lower)
        if ready != self.ready and self.strategy == "advanced":
            self.ready = ready
            actions.append(AnnounceReady(ready))
        return actions

    def _overflow(self, keep: int, at: float) -> Iterable[SendBatch[K]]:
        """Send our newest surplus batches, each to a random ready peer."""
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
