"""Pure. The fewest slot moves that balance servers: how many it takes at least, and the fewest where few slots are.

In: `slot_layout.Problem`. Out: a number that no balanced layout goes below, or a balanced layout with the fewest moves.

`at_least` counts two things, and the larger is a bound. What must *leave*: all slots of servers that leave, and of each
server above its tolerance its largest slots until it would be within it. What must *arrive*: at each server below its
tolerance the largest slots of others. A move leaves one server and arrives at one, so none is counted twice.

`search` tries everything, in an order in which nothing comes twice, and drops what the same bound says cannot be done
with the moves that are left. It gives up after so much work: the least number of moves is a knapsack.
"""

from collections.abc import Iterator

import numpy as np

from springtide.embedding.slot_layout import NOISE, Ints, Problem


def at_least(problem: Problem) -> int:
    """Moves that no balanced layout can do without."""
    before, held = problem.before, problem.held(problem.before)
    over, under = held - (1.0 + problem.tolerance), (1.0 - problem.tolerance) - held
    leave = int(np.count_nonzero(before < 0))
    arrive = 0
    for server, share in enumerate(problem.share):
        mine, others = problem.part[before == server] / share, problem.part[before != server] / share
        leave += max(_cover(mine[:, kind], over[server, kind]) for kind in (0, 1))
        arrive += max(_cover(others[:, kind], under[server, kind]) for kind in (0, 1))
    return max(leave, arrive)


def _cover(sizes: np.ndarray[tuple[int], np.dtype[np.float64]], amount: float) -> int:
    """How many of the largest it takes to make up an amount; one more than there are, if all are too little."""
    if amount <= NOISE:
        return 0
    return int(np.searchsorted(np.cumsum(-np.sort(-sizes)), amount - NOISE)) + 1


def search(problem: Problem, *, least: int, most: int, work: int) -> tuple[Ints | None, bool]:
    """A balanced layout with as few moves as can be, of `least` to `most`; whether all was tried.

    None and True: there is none. None and False: none was found in `work` steps.
    """
    tried = _Search(problem, work)
    try:
        for moves in range(least, most + 1):
            if tried.go(moves):
                return np.array(tried.now, dtype=np.int64), True
    except _Spent:
        return None, False
    return None, True


class _Spent(Exception):
    """All work is done."""


class _Search:
    """Depth first; a slot is decided once: it goes somewhere, or it stays."""

    def __init__(self, problem: Problem, work: int) -> None:
        self._work = work
        self._servers = range(len(problem.share))
        self._share = problem.share.tolist()
        self._part: list[list[float]] = problem.part.tolist()
        self._low, self._high = 1.0 - problem.tolerance - NOISE, 1.0 + problem.tolerance + NOISE
        self.now: list[int] = problem.before.tolist()
        self._held: list[list[float]] = problem.held(problem.before).tolist()
        slots = range(len(self.now))
        self._homeless = [slot for slot in slots if self.now[slot] < 0]
        self._homeless.sort(key=lambda slot: (-max(self._part[slot]), self._part[slot]))
        self._homed: list[int] = []
        self._by_kind: list[list[int]] = [np.argsort(-problem.part[:, kind]).tolist() for kind in (0, 1)]
        self._by_size = sorted(slots, key=lambda slot: -max(self._part[slot]))
        self._decided = [False] * len(self.now)
        self._barred: set[tuple[int, int]] = set()

    def go(self, left: int) -> bool:
        """Whether so many more moves can do; `now` is the layout then."""
        self._work -= 1
        if self._work < 0:
            raise _Spent
        if self._needed() > left:
            return False
        if self._homeless:
            return self._home(self._homeless[0], left)
        over = max(self._servers, key=lambda server: max(self._held[server]))
        if max(self._held[over]) > self._high:
            return self._relieve(over, left)
        under = min(self._servers, key=lambda server: min(self._held[server]))
        return min(self._held[under]) >= self._low or self._fill(under, left)

    def _needed(self) -> int:
        """Moves that are needed at least from here."""
        leave, arrive = len(self._homeless), 0
        for server in self._servers:
            most = least = 0
            for kind in (0, 1):
                held, share = self._held[server][kind], self._share[server][kind]
                if held > self._high:
                    most = max(most, self._to_leave(server, kind, (held - self._high) * share))
                elif held < self._low:
                    least = max(least, self._to_arrive(server, kind, (self._low - held) * share))
            leave, arrive = leave + most, arrive + least
        return max(leave, arrive)

    def _to_leave(self, server: int, kind: int, amount: float) -> int:
        count = 0
        for slot in self._by_kind[kind]:
            if self.now[slot] == server and not self._decided[slot]:
                count, amount = count + 1, amount - self._part[slot][kind]
                if amount <= 0:
                    return count
        return len(self.now) + 1

    def _to_arrive(self, server: int, kind: int, amount: float) -> int:
        count = 0
        for slot in self._by_kind[kind]:
            if self.now[slot] != server and not self._decided[slot]:
                count, amount = count + 1, amount - self._part[slot][kind]
                if amount <= 0:
                    return count
        return len(self.now) + 1

    def _home(self, slot: int, left: int) -> bool:
        """A slot of a server that leaves must go somewhere; equal ones in the order of servers."""
        last = self._homed[-1] if self._homed else slot
        first = self.now[last] if self._part[last] == self._part[slot] else 0
        self._homed.append(self._homeless.pop(0))
        if any(self._try(slot, target, left) for target in self._roomiest(slot) if target >= first):
            return True
        self._homeless.insert(0, self._homed.pop())
        return False

    def _relieve(self, source: int, left: int) -> bool:
        """One of its slots must go, or if not that one then another."""
        stay = []
        for slot in self._unlike(source, mine=True):
            targets = [target for target in self._roomiest(slot) if target != source]
            if any(self._try(slot, target, left) for target in targets if (slot, target) not in self._barred):
                return True
            self._decided[slot] = True
            stay.append(slot)
            if self._needed() > left:
                break
        for slot in stay:
            self._decided[slot] = False
        return False

    def _fill(self, target: int, left: int) -> bool:
        """One of the others' slots must come, or if not that one then another."""
        barred = []
        for slot in self._unlike(target, mine=False):
            if (slot, target) in self._barred:
                continue
            if self._try(slot, target, left):
                return True
            self._barred.add((slot, target))
            barred.append((slot, target))
        self._barred.difference_update(barred)
        return False

    def _try(self, slot: int, target: int, left: int) -> bool:
        source = self.now[slot]
        self._shift(slot, target)
        self._decided[slot] = True
        if self.go(left - 1):
            return True
        self._decided[slot] = False
        self._shift(slot, source)
        return False

    def _shift(self, slot: int, target: int) -> None:
        source = self.now[slot]
        for kind, part in enumerate(self._part[slot]):
            if source >= 0:
                self._held[source][kind] -= part / self._share[source][kind]
            if target >= 0:
                self._held[target][kind] += part / self._share[target][kind]
        self.now[slot] = target

    def _roomiest(self, slot: int) -> list[int]:
        part = self._part[slot]
        return sorted(
            self._servers,
            key=lambda server: max(
                held + more / share
                for held, more, share in zip(self._held[server], part, self._share[server], strict=True)
            ),
        )

    def _unlike(self, server: int, *, mine: bool) -> Iterator[int]:
        """Slots that are not decided, of a server or of all others, the largest first; of equal ones the first."""
        seen = set()
        for slot in self._by_size:
            if self._decided[slot] or (self.now[slot] == server) is not mine:
                continue
            like = (self.now[slot], *self._part[slot])
            if like not in seen:
                seen.add(like)
                yield slot
