"""Pure. Which server owns which slot: the first layout, and the moves that follow when servers or loads change.

In: slots, servers with what they have, the load of each slot as servers measured it. Out: a `Placement`, or `Move`s of
single slots. Next: `master.rollout` publishes them as the goal, `embedding.handover` carries them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.domain.cluster import Move, Placement

TOLERANCE = 0.1
"""A server within this of its share is left alone: moving slots costs, and loads are never quite still."""

MIN_GAIN = 0.001
"""Of a share: a move that brings less is not worth its while."""
NOISE = 1e-9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoad:
    """What one slot weighs, as its server measured it."""

    bytes: float = 0.0
    requests: float = 0.0
    """Keys asked for or pushed, in any unit that all slots share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a server has, in any unit that all servers share. Requests cost CPU, bytes take memory."""

    cpu: float = 1.0
    memory: float = 1.0


def even(slots: int, servers: int) -> Placement:
    """The first placement of a job: runs of neighbouring slots, equal to within one, epoch 1.

    Neighbours share a lock stripe of a store, so a server should own whole runs.
    """
    if not 1 <= servers <= slots:
        raise errors.BadInput(f"cannot lay {slots} slots over {servers} servers: wanted 1 to {slots} servers")
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot * servers // slots for slot in range(slots)))


def moves(
    old: Sequence[int], servers: Mapping[int, Capacity], load: Sequence[SlotLoad], *, tolerance: float = TOLERANCE
) -> tuple[Move, ...]:
    """Few slot moves after which every server of `servers` is within `tolerance` of its share, and no other has any.

    `old` names the server of each slot; one that is not in `servers` leaves. A share is by CPU for requests and by
    memory for bytes; while nothing was measured slots count alike. Each step takes the single move that helps most, so
    that large slots go first; where no single move helps, an exchange of two may. What turns out to be not needed is
    taken back. So the result is small, not always the smallest: that would be a knapsack.
    """
    if not servers:
        raise errors.BadInput("slots cannot be laid over no servers: one must stay")
    if len(load) != len(old):
        raise errors.BadInput(f"loads of {len(load)} slots for {len(old)} slots")
    layout = _Layout(old, servers, load, tolerance)
    layout.rehome()
    layout.settle()
    layout.take_back()
    return layout.moves()


def balance(owners: Sequence[int], servers: Mapping[int, Capacity], load: Sequence[SlotLoad]) -> dict[int, float]:
    """How far each server is from its share, in the worse of bytes and requests: 0.1 is 10% over or under."""
    layout = _Layout(owners, servers, load, 0.0)
    return {rank: float(np.abs(layout.held[i] - 1.0).max()) for i, rank in enumerate(layout.ranks)}


class _Layout:
    """Slots on servers, in shares: `weight[slot, kind, server]` is what a slot fills of a server's share."""

    def __init__(
        self, old: Sequence[int], servers: Mapping[int, Capacity], load: Sequence[SlotLoad], tolerance: float
    ) -> None:
        self.ranks = sorted(servers)
        self.tolerance = tolerance
        place = {rank: i for i, rank in enumerate(self.ranks)}
        self.before = np.array([place.get(server, -1) for server in old], dtype=np.int64)
        self.left = tuple(old)
        self.now = self.before.copy()
        shares = np.array(
            [
                _shares([servers[rank].memory for rank in self.ranks]),
                _shares([servers[rank].cpu for rank in self.ranks]),
            ]
        )
        parts = np.array([_parts([each.bytes for each in load]), _parts([each.requests for each in load])])
        self.part = parts.T
        """By slot: its part of all bytes, of all requests."""
        self.share = shares.T
        """By server: the same."""
        self.held = np.array([self.part[self.now == i].sum(axis=0) for i in range(len(self.ranks))]) / self.share

    def off(self, held: Floats) -> Floats:
        """By server: how far outside the tolerance it is, bytes and requests together."""
        outside: Floats = np.maximum(np.abs(held - 1.0) - self.tolerance, 0.0).sum(axis=-1)
        return outside

    def rehome(self) -> None:
        """Slots of servers that leave, the heaviest first, each to whoever has most room."""
        homeless = np.flatnonzero(self.now < 0)
        for slot in homeless[np.argsort(-self.part[homeless].max(axis=1), kind="stable")]:
            after = self.held + self.part[slot] / self.share
            self._put(int(slot), int(np.argmin(after.max(axis=1))))

    def settle(self) -> None:
        """Single moves and exchanges, while they bring servers nearer to the tolerance."""
        while self.off(self.held).sum() > 0 and (self._move() or self._exchange()):
            pass

    def take_back(self) -> None:
        """Slots that may go home without making anything worse: none of these moves was needed."""
        some = True
        while some:
            some = False
            for slot in np.flatnonzero((self.now != self.before) & (self.before >= 0)):
                source, home = int(self.now[slot]), int(self.before[slot])
                if self._gain(slot, source, home) >= -NOISE:
                    self._put(int(slot), home)
                    some = True

    def moves(self) -> tuple[Move, ...]:
        """What differs from before."""
        changed = np.flatnonzero(self.now != self.before)
        return tuple(
            Move(slot=int(slot), source=self.left[slot], target=self.ranks[int(self.now[slot])]) for slot in changed
        )

    def _move(self) -> bool:
        """The one move that helps most, from or to the server that is furthest off."""
        off = self.off(self.held)
        best: tuple[float, int, int] = (MIN_GAIN, -1, -1)
        for worst in np.argsort(-off, kind="stable"):
            if off[worst] <= 0:
                break
            for other in range(len(self.ranks)):
                for source, target in ((worst, other), (other, worst)):
                    best = max(best, self._best_slot(int(source), int(target)), key=lambda each: each[0])
            if best[1] >= 0:
                self._put(best[1], best[2])
                return True
        return False

    def _best_slot(self, source: int, target: int) -> tuple[float, int, int]:
        mine = np.flatnonzero(self.now == source)
        if source == target or not len(mine):
            return (0.0, -1, -1)
        gains = self._gain(mine, source, target)
        at = int(np.argmax(gains))
        return (float(gains[at]), int(mine[at]), target)

    def _gain(self, slots: npt.NDArray[np.int64] | np.int64, source: int, target: int) -> Floats:
        """How much nearer the two servers come when these slots (each by itself) go."""
        part = self.part[slots]
        before = self.off(self.held[source]) + self.off(self.held[target])
        gave = self.off(self.held[source] - part / self.share[source])
        got = self.off(self.held[target] + part / self.share[target])
        gain: Floats = before - gave - got
        return gain

    def _exchange(self) -> bool:
        """A slot of the server furthest off for one of another: bytes and requests may ask for opposite moves."""
        worst = int(np.argmax(self.off(self.held)))
        mine = np.flatnonzero(self.now == worst)
        for other in (i for i in range(len(self.ranks)) if i != worst):
            theirs = np.flatnonzero(self.now == other)
            if not len(mine) or not len(theirs) or len(mine) * len(theirs) > 1 << 20:
                continue
            change = self.part[theirs][None, :, :] - self.part[mine][:, None, :]
            gave = self.off(self.held[worst] + change / self.share[worst])
            got = self.off(self.held[other] - change / self.share[other])
            after = gave + got
            a, b = np.unravel_index(int(np.argmin(after)), after.shape)
            if after[a, b] < self.off(self.held[worst]) + self.off(self.held[other]) - MIN_GAIN:
                self._put(int(mine[a]), other)
                self._put(int(theirs[b]), worst)
                return True
        return False

    def _put(self, slot: int, server: int) -> None:
        source = int(self.now[slot])
        if source >= 0:
            self.held[source] -= self.part[slot] / self.share[source]
        self.held[server] += self.part[slot] / self.share[server]
        self.now[slot] = server


def _shares(amounts: Sequence[float]) -> Floats:
    """Of a whole, by these amounts."""
    given = np.array(amounts, dtype=np.float64)
    if not (given > 0).all():
        raise errors.BadInput(f"a server's capacity must be more than nothing, got {amounts}")
    shares: Floats = given / given.sum()
    return shares


def _parts(loads: Sequence[float]) -> Floats:
    """Each slot's part of the whole; alike where nothing was measured."""
    given = np.maximum(np.array(loads, dtype=np.float64), 0.0)
    total = given.sum()
    parts: Floats = given / total if total > 0 else np.full(len(given), 1.0 / len(given))
    return parts
