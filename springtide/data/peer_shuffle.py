"""Pure. Which worker of a job trains a batch that was read from a stream: the one that read it, or a peer with time.

In: what worker/online/shuffling/shuffle_unit.py has read, been sent and heard. Out: what it is to do, as actions. One
`Shuffle` a worker, and none above them: each goes by what its peers have told last. A batch that came from a peer is
never sent on, and one that was sent comes home before it is sent again. What is trained twice nevertheless (a peer was
only slow) does no harm: slots skip what they have.

    offer ─► queue ─► take ─► trained ─► Done, to the peer that sent it
               └► Send, to a peer ─► done, or home again: given back, peer lost, peer silent
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from springtide import errors

Strategy = Literal["none", "basic", "advanced"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

QUEUE_S = 1.0  # an upper bound that nobody has set: what the loop trains in so long; less than lag anyone would notice
FEWEST, MOST = 4, 256  # batches, of a bound that nobody has set
STALL_S = 2.0  # a loop that has taken nothing for so long, and for so many of its steps, is not waited for
STALL_STEPS = 8.0
PATIENCE_S = 10.0  # a peer that has not trained what it was sent after so long, and so many times what others took
PATIENCE_TIMES = 4.0
MOST_RECEIVED = 1024  # batches that wait here, whoever sent them: beyond, they go back
SMOOTH = 0.2  # weight of the newest in an average of what steps took

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """Of a worker's queue, in batches."""

    lower: int
    """With so many or fewer it is ready to take from peers again."""
    upper: int
    """With so many it takes from peers no more, and what it reads itself beyond goes to peers that are ready."""

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.upper:
            raise errors.BadInput(
                f"bounds of a worker's queue: lower={self.lower}, upper={self.upper}; wanted 0 <= lower < upper"
            )


def bounds_for(step_s: float) -> QueueBounds:
    """Bounds that nobody has set, where a batch takes so long to train; 0: not known yet."""
    upper = min(MOST, max(FEWEST, math.ceil(QUEUE_S / step_s))) if step_s > 0 else FEWEST
    return QueueBounds(lower=upper // 2, upper=upper)


class SendBatch(NamedTuple, Generic[K]):
    """Give a peer a batch of ours to train."""

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
    """Tell all peers whether this worker is ready to take from them."""

    ready: bool


Action = SendBatch[K] | ReportTrained[K] | ReturnBatch[K] | AnnounceReady


@dataclass(slots=True)
class PeerState(Generic[K]):
    """A peer as it is known here."""

    ready: bool = False
    """As it has told last."""
    slow: bool = False
    """It has kept a batch for too long; until it is heard of again."""
    away: dict[K, float] = field(default_factory=dict)
    """Batches of ours that it has, and since when."""


class PeerShuffle(Generic[K]):
    """One worker's batches by where they are. Not for several threads at once; `draw(n)` gives a number below n."""

    def __init__(self, strategy: Strategy, bounds: QueueBounds | None, draw: Callable[[int], int]) -> None:
        self.strategy, self._draw = strategy, draw
        self._fixed, self.bounds = bounds is not None, bounds or bounds_for(0.0)
        self.queue: deque[K] = deque()
        """What the loop takes next."""
        self.owners: dict[K, set[str]] = {}
        """Of all that is queued here or in the loop's hand: who wants to hear of it. "": this worker itself."""
        self.peers: dict[str, PeerState[K]] = {}
        self.ready = True
        """What peers were told last."""
        self.draining = False
        self.came_home = 0
        """Batches of ours that peers have had and not trained, as far as is known here."""
        self._staying: set[K] = set()
        """Of those queued: not to be sent."""
        self._took_at, self._idled = -math.inf, True
        """When the loop took last, or what waits began to; whether it had to wait for what it took then."""
        self._step_s = self._turn_s = 0.0

    # ---- this worker's reader and loop ----

    @property
    def room(self) -> int:
        """How many batches the reader may bring before it should wait; what it brings beyond is kept all the same."""
        room = self.bounds.upper - len(self.queue)
        if self.strategy == "basic":
            return room + sum(self.bounds.upper - len(other.away) for other in self.peers.values())
        return room + sum(self.bounds.upper - len(self.peers[name].away) for name in self._open())

    def wait_s(self, at: float) -> float:
        """How long a batch that is offered now waits for the loop; not at all where peers would have it at once."""
        return 0.0 if self._stalled(at) else len(self.queue) * self._step_s

    @property
    def away(self) -> int:
        """Batches of ours that peers have."""
        return sum(len(other.away) for other in self.peers.values())

    def offer(self, key: K, at: float, *, stays: bool = False) -> list[Action[K]]:
        """The reader has a batch of this worker's own, which may be one that must be trained here."""
        if key in self.owners:  # a peer had sent it, and its lease is ours by now
            self.owners[key].add("")
            return []
        if stays:
            self._staying.add(key)
        elif self.strategy == "basic" and (chosen := self._draw(len(self.peers) + 1)) < len(self.peers):
            return [self._send(key, list(self.peers)[chosen], at)]
        self._queue(key, "", at)
        return self._settle(at)

    def take(self, at: float) -> tuple[K | None, list[Action[K]]]:
        """The loop wants a batch: the one that has waited longest."""
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
        """Every server has what the loop made of this batch."""
        owners = self.owners.pop(key, set())
        return [*(ReportTrained(owner, key) for owner in sorted(owners) if owner), *self._settle(at)]

    def drop(self, key: K, at: float) -> list[Action[K]]:
        """The loop took this batch and will not train it: it goes back to whoever sent it. Ours is forgotten."""
        owners = self.owners.pop(key, set())
        return [*(ReturnBatch(owner, key) for owner in sorted(owners) if owner), *self._settle(at)]

    def forget(self, keys: Iterable[K]) -> None:
        """These were ours and are with another by now: nobody here waits for them."""
        gone = set(keys)
        for key in gone & self.owners.keys():
            self._disown(key, "")
        for other in self.peers.values():
            for key in gone & other.away.keys():
                del other.away[key]

    def drain(self, at: float) -> list[Action[K]]:
        """Take from peers no more, and give back what waits here for the loop."""
        self.draining = True
        actions: list[Action[K]] = []
        for key in list(self.queue):
            for owner in sorted(self.owners[key] - {""}):
                self._disown(key, owner)
                actions.append(ReturnBatch(owner, key))
        return [*actions, *self._settle(at)]

    # ---- peers ----

    def heard(self, peer: str, ready: bool, at: float) -> list[Action[K]]:
        """A peer tells whether it is ready to take from others; the first word of one that can be reached now."""
        other = self.peers.setdefault(peer, PeerState())
        other.ready, other.slow = ready, False
        return self._settle(at)

    def came(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """A peer has sent a batch of its own. It is trained here, or goes back: never to a third."""
        if key in self.owners:
            self.owners[key].add(peer)
            return []
        if self.draining or len(self.queue) >= MOST_RECEIVED:
            return [ReturnBatch(peer, key)]
        self._queue(key, peer, at)
        return self._settle(at)

    def done(self, peer: str, key: K, at: float) -> list[Action[K]]:
        """A peer has trained a batch of ours, perhaps after it was given up there: then nobody else need."""
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
        """A peer will not train this batch of ours."""
        if (other := self.peers.get(peer)) is not None and other.away.pop(key, None) is not None:
            other.ready = False  # until it says otherwise: there was a reason
            self._come_home([key], at)
        return self._settle(at)

    def silent(self, peer: str, at: float) -> list[Action[K]]:
        """Nothing was heard of a peer for a while, though it can be reached: what it has of ours comes home."""
        if (other := self.peers.get(peer)) is not None:
            other.slow = True
            homeward, other.away = list(other.away), {}
            self._come_home(homeward, at)
        return self._settle(at)

    def lost(self, peer: str, at: float) -> list[Action[K]]:
        """A peer cannot be reached any more. What it had sent is trained here all the same, before anyone else has its
        partitions: whoever reads it again finds that slots have it.
        """
        if (other := self.peers.pop(peer, None)) is not None:
            self._come_home(list(other.away), at)
        return self._settle(at)

    def forgive(self, away_s: float) -> None:
        """This process did not run for so long: nobody is to blame for that time, here or elsewhere."""
        self._took_at += away_s
        for other in self.peers.values():
            other.away = {key: since + away_s for key, since in other.away.items()}

    def tick(self, at: float) -> list[Action[K]]:
        """Time passes: peers that keep a batch too long lose it."""
        patience = max(PATIENCE_S, PATIENCE_TIMES * self._turn_s)
        for other in self.peers.values():
            late = [key for key, since in other.away.items() if at - since > patience]
            if late:
                other.slow = True
                for key in late:
                    del other.away[key]
                self._come_home(late, at)
        return self._settle(at)

    # ---- inside ----

    def _paced(self, took: float) -> None:
        self._step_s = took if not self._step_s else self._step_s + SMOOTH * (took - self._step_s)
        if not self._fixed:
            self.bounds = bounds_for(self._step_s)

    def _stalled(self, at: float) -> bool:
        """The loop has left what waits for it alone for so long that it may be in trouble."""
        return bool(self.queue) and at - self._took_at > max(STALL_S, STALL_STEPS * self._step_s)

    def _queue(self, key: K, owner: str, at: float) -> None:
        if not self.queue:
            self._took_at = max(self._took_at, at)  # it begins to wait now
            self._idled = True
        self.queue.append(key)
        self.owners[key] = {owner}

    def _come_home(self, keys: list[K], at: float) -> None:
        """They are the oldest that this worker has: they go first."""
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
        """Peers that would take another batch. Half a second of news may be under way: no more than `upper` each."""
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
        """After anything has changed: what overflows goes to peers that are ready; peers hear whether we are."""
        stalled = self._stalled(at)
        actions: list[Action[K]] = list(self._overflow(0 if stalled else self.bounds.upper, at))
        full = stalled or self.draining or len(self.queue) >= self.bounds.upper
        ready = not full and (self.ready or len(self.queue) <= self.bounds.lower)
        if ready != self.ready and self.strategy == "advanced":
            self.ready = ready
            actions.append(AnnounceReady(ready))
        return actions

    def _overflow(self, keep: int, at: float) -> Iterable[SendBatch[K]]:
        """The newest of our own that are too many, each to a peer drawn from those that are ready."""
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
