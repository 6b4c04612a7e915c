"""Pure. Places slots on servers, and plans few moves when servers or loads change.

In: slots, server capacities, and the load of each slot as servers measured it. Out: a `Placement`, or a `SlotMove` for
each slot that moves. Next: `master.servers.migration` publishes the moves, `server.migration` carries them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.domain.core.roles import Placement, SlotMove

TOLERANCE = 0.1
"""A server counts as balanced if its load deviates from its share by at most this fraction. A closer balance is of no
use, because moves cost time and loads always fluctuate.
"""
MIN_GAIN = 0.0001
"""Smallest gain that justifies a move, as a fraction of a server's share."""
NOISE = 1e-9
MOST_PAIRS = 1 << 20
"""Limit on the slot pairs that one exchange search compares."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Which = npt.NDArray[np.bool_]
"""Mask over slots: True for each slot that the search may move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoad:
    """Load of one slot, as its server measured it."""

    bytes: float = 0.0
    requests: float = 0.0
    """Keys pulled or pushed, in any unit that all slots share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapacity:
    """Capacity of a server, in any unit that all servers share. Requests need CPU, and bytes need memory."""

    cpu: float = 1.0
    memory: float = 1.0


def even(slots: int, servers: int) -> Placement:
    """Return the first placement of a job: equal contiguous runs of slots, because neighbours share a lock stripe."""
    if not 1 <= servers <= slots:
        raise errors.BadInput(f"cannot place {slots} slots on {servers} servers: expected 1 to {slots} servers")
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot * servers // slots for slot in range(slots)))


def moves(old: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad]) -> tuple[SlotMove, ...]:
    """Return the slot moves that bring every server within `TOLERANCE` of its share.

    `old` has the server of each slot. A server that is missing in `servers` leaves the job. A server's CPU
    determines its share of requests, and its memory determines its share of bytes. Without measurements, all slots
    count equally. The moves are few, but not always the fewest. If slots are too coarse for balance, the result is
    as close as moves and exchanges allow.
    """
    if not servers:
        raise errors.BadInput("cannot place slots on 0 servers: expected 1 or more")
    if len(load) != len(old):
        raise errors.BadInput(f"got loads of {len(load)} slots, expected {len(old)}")
    problem, ranks = _problem(old, servers, load), sorted(servers)
    now = settled(problem)
    changed = np.flatnonzero(now != problem.before)
    return tuple(SlotMove(slot=slot, source=old[slot], target=ranks[int(now[slot])]) for slot in changed.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """Current server and load of each slot, and target share of each server."""

    before: Ints
    """Current server of each slot, counted from 0; -1 if that server leaves the job."""
    part: Floats
    """Share of all bytes and of all requests, for each slot."""
    share: Floats
    """Target share of all bytes and of all requests, for each server."""

    def held(self, owners: Ints) -> Floats:
        """Return the bytes and requests of each server, in units of its share; 1 means exactly the server's share."""
        sums = np.zeros_like(self.share)
        there = owners >= 0
        np.add.at(sums, owners[there], self.part[there])
        held: Floats = sums / self.share
        return held

    def off(self, held: Floats) -> Floats:
        outside: Floats = np.maximum(np.abs(held - 1.0) - TOLERANCE, 0.0).sum(axis=-1)
        return outside


def balance(owners: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad]) -> dict[int, float]:
    problem = _problem(owners, servers, load)
    held = problem.held(problem.before)
    return {rank: float(np.abs(held[i] - 1.0).max()) for i, rank in enumerate(sorted(servers))}


def _problem(old: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad]) -> PlacementProblem:
    ranks = sorted(servers)
    place = {rank: i for i, rank in enumerate(ranks)}
    shares = [_shares([servers[rank].memory for rank in ranks]), _shares([servers[rank].cpu for rank in ranks])]
    parts = [_parts([slot.bytes for slot in load]), _parts([slot.requests for slot in load])]
    return PlacementProblem(
        before=np.array([place.get(server, -1) for server in old], dtype=np.int64),
        part=np.array(parts).T,
        share=np.array(shares).T,
    )


def _shares(amounts: Sequence[float]) -> Floats:
    given = np.array(amounts, dtype=np.float64)
    if not (given > 0).all():
        raise errors.BadInput(f"capacities of servers are {amounts}, expected numbers above 0")
    shares: Floats = given / given.sum()
    return shares


def _parts(loads: Sequence[float]) -> Floats:
    given = np.maximum(np.array(loads, dtype=np.float64), 0.0)
    total = given.sum()
    parts: Floats = given / total if total > 0 else np.full(len(given), 1.0 / len(given))
    return parts


def settled(problem: PlacementProblem) -> Ints:
    """Return a server for each slot, as balanced as single moves and exchanges allow."""
    found = []
    for moved_first in (True, False):
        layout = _Layout(problem)
        layout.rehome()
        layout.settle(moved_first=moved_first)
        layout.take_back()
        found.append(layout)
    return min(found, key=lambda option: (round(float(problem.off(option.held).sum()), 6), option.count)).now


class _Layout:
    """Assignment of slots to servers that the search improves step by step."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.part, self.share, self.before = problem.part, problem.share, problem.before
        self.now = problem.before.copy()
        self.held = problem.held(self.now)

    def rehome(self) -> None:
        """Place the slots of leaving servers, heaviest first, each on the server with the most free capacity."""
        homeless = np.flatnonzero(self.now < 0)
        order = homeless[np.argsort(-self.part[homeless].max(axis=1), kind="stable")]
        # plain lists, because operations on small arrays are slow
        held, shares = self.held.tolist(), self.share.tolist()
        for slot, (size, asked) in zip(order.tolist(), self.part[order].tolist(), strict=True):
            rooms = [max(b + size / sb, r + asked / sr) for (b, r), (sb, sr) in zip(held, shares, strict=True)]
            server = rooms.index(min(rooms))
            held[server][0] += size / shares[server][0]
            held[server][1] += asked / shares[server][1]
            self.now[slot] = server
        self.held = self.problem.held(self.now)

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.now != self.before))

    def settle(self, *, moved_first: bool) -> None:
        """Make single moves and exchanges while these bring servers closer to their shares. Slots that have moved
        already come first."""
        while self.problem.off(self.held).sum() > 0:
            which = [self.now != self.before] if moved_first else []
            if not any(self._move(some) or self._exchange(some) for some in (*which, self.now >= 0)):
                return

    def take_back(self) -> None:
        """Return slots to their previous servers if the balance stays equally good, because these moves were not
        needed.
        """
        some = True
        while some:
            some = False
            for slot in np.flatnonzero((self.now != self.before) & (self.before >= 0)):
                source, home = int(self.now[slot]), int(self.before[slot])
                if self._gain(slot, source, home) >= -NOISE:
                    self._put(int(slot), home)
                    some = True

    def _move(self, which: Which) -> bool:
        """Make the best move from or to the most unbalanced server, and all equally good moves between the same two
        servers."""
        if not which.any():
            return False
        off = self.problem.off(self.held)
        for worst in np.argsort(-off, kind="stable"):
            if off[worst] <= 0:
                break
            found = max(self._best_from(int(worst), which), self._best_to(int(worst), which))
            if found[0] > MIN_GAIN:
                self._carry(*found[1:], which)
                return True
        return False

    def _best_from(self, source: int, which: Which) -> tuple[float, int, int]:
        mine = np.flatnonzero(which & (self.now == source))
        if not len(mine) or len(self.share) == 1:
            return (0.0, source, source)
        part = self.part[mine][:, None, :]
        got = self.problem.off(self.held + part / self.share)
        gains = self.problem.off(self.held) - got
        gains += (self.problem.off(self.held[source]) - self._without(mine, source))[:, None]
        gains[:, source] = 0.0
        target = int(np.argmax(gains.max(axis=0)))
        return (float(gains[:, target].max()), source, target)

    def _best_to(self, target: int, which: Which) -> tuple[float, int, int]:
        others = np.flatnonzero(which & (self.now != target))
        if not len(others):
            return (0.0, target, target)
        gains = self._gain(others, self.now[others], target)
        at = int(np.argmax(gains))
        return (float(gains[at]), int(self.now[others[at]]), target)

    def _carry(self, source: int, target: int, which: Which) -> None:
        """Move the best slots from one server to another, while the gain of all moves together equals the sum of their
        single gains.
        """
        mine = np.flatnonzero(which & (self.now == source))
        gains = self._gain(mine, source, target)
        order = np.argsort(-gains, kind="stable")
        order = order[gains[order] > MIN_GAIN]
        along = np.cumsum(self.part[mine[order]], axis=0)
        together = self.problem.off(self.held[source]) + self.problem.off(self.held[target])
        together = together - self.problem.off(self.held[source] - along / self.share[source])
        together = together - self.problem.off(self.held[target] + along / self.share[target])
        whole = together >= np.cumsum(gains[order]) - NOISE
        for at in order[: max(1, int(np.argmin(whole)) if not whole.all() else len(order))]:
            self._put(int(mine[at]), target)

    def _without(self, slots: Ints, source: int) -> Floats:
        return self.problem.off(self.held[source] - self.part[slots] / self.share[source])

    def _gain(self, slots: Ints | np.int64, source: Ints | int, target: int) -> Floats:
        """Return how much closer to the tolerance the two servers come if each slot moves alone."""
        part, off = self.part[slots], self.problem.off
        before = off(self.held[source]) + off(self.held[target])
        gave = off(self.held[source] - part / self.share[source])
        got = off(self.held[target] + part / self.share[target])
        gain: Floats = before - gave - got
        return gain

    def _exchange(self, which: Which) -> bool:
        """Exchange slots of the most unbalanced server, because bytes and requests may need opposite moves."""
        off = self.problem.off
        worst = int(np.argmax(off(self.held)))
        mine = np.flatnonzero(which & (self.now == worst))
        for other in (i for i in range(len(self.share)) if i != worst):
            theirs = np.flatnonzero(which & (self.now == other))
            if not len(mine) or not len(theirs) or len(mine) * len(theirs) > MOST_PAIRS:
                continue
            change = self.part[theirs][None, :, :] - self.part[mine][:, None, :]
            after = off(self.held[worst] + change / self.share[worst])
            after = after + off(self.held[other] - change / self.share[other])
            a, b = np.unravel_index(int(np.argmin(after)), after.shape)
            if after[a, b] < off(self.held[worst]) + off(self.held[other]) - MIN_GAIN:
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
