"""Pure. Find a balanced slot layout with the fewest slot moves, and a lower bound on them.

In: `slot_layout.Problem`, and a layout that was found quickly. Out: a number that no balanced layout goes below, or a
balanced layout with fewer moves. SciPy is imported only when something is solved.

`at_least` counts two things, and the larger is a bound. What must *leave*: all slots of servers that leave, and of each
server above its tolerance its largest slots until it would be within it. What must *arrive*: at each server below its
tolerance the largest slots of others. A move leaves one server and arrives at one, so none is counted twice.

`fewer` states the rest as an integer program, a binary for each slot and server, for SciPy's HiGHS. Slots are so much
finer than shares that its first relaxation nearly is the answer; of too many slots only those that matter are free.
"""

from typing import Any

import numpy as np

from springtide.embedding.placement.heuristic import NOISE, Floats, Ints, PlacementProblem

OUT_OF_TIME = 1
CHOICES = (512, 2048)
"""Binaries, at most, in one program after the other: a small one mostly finds the fewest there are, and soon."""
SECONDS = 2.0
"""For each of them, at most. Most take a tenth of it; where bytes and requests ask for opposite moves some take all."""


def at_least(problem: PlacementProblem) -> int:
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


def fewer(problem: PlacementProblem, quick: Ints, *, seconds: float | None = None) -> Ints:
    """A balanced layout with as few moves as were found within `seconds`, `quick` if that was not to be done better.

    It is the one with the fewest moves of all where slots times servers are no more than the most `CHOICES`, if
    the time is enough.
    """
    best = quick
    for choices in CHOICES:
        free = _free(problem, best, choices // len(problem.share))
        now = best.copy()
        now[free], done = _solved(problem, best, free, SECONDS if seconds is None else seconds)
        if problem.balanced(now) and (not problem.balanced(best) or problem.moves(now) < problem.moves(best)):
            best = now
        if not done or len(free) == len(best):
            break
    return best


def _free(problem: PlacementProblem, quick: Ints, most: int) -> Ints:
    """The slots that are laid anew; others lie as in `quick`. Those that it has moved come first, then the largest."""
    moved = (quick != problem.before) & (problem.before >= 0)
    order = np.lexsort((-problem.part.max(axis=1), ~moved))
    return np.sort(order[:most])


def _solved(problem: PlacementProblem, quick: Ints, free: Ints, seconds: float) -> tuple[Ints, bool]:
    """A server for each free slot, such that the fewest move, and whether the time was enough to know.

    As in `quick` where no balanced layout was found.
    """
    from scipy import optimize, sparse

    slots, servers = len(free), len(problem.share)
    each, homes = np.arange(slots), problem.before[free]
    costs = np.ones((slots, servers))
    costs[each[homes >= 0], homes[homes >= 0]] = 0.0
    fixed = quick.copy()
    fixed[free] = -1
    held: Floats = problem.held(fixed)
    once = sparse.kron(sparse.eye_array(slots), np.ones((1, servers)))
    loads: list[Any] = [
        sparse.kron(problem.part[free, kind][None, :], sparse.diags_array(1.0 / problem.share[:, kind]))
        for kind in (0, 1)
    ]
    room = problem.tolerance + NOISE
    limits = [
        optimize.LinearConstraint(load, 1.0 - room - held[:, kind], 1.0 + room - held[:, kind])
        for kind, load in enumerate(loads)
    ]
    found = optimize.milp(
        costs.ravel(),
        integrality=np.ones(costs.size),
        bounds=optimize.Bounds(0, 1),
        constraints=[optimize.LinearConstraint(once, 1, 1), *limits],
        options={"time_limit": seconds},
    )
    taken = quick[free] if found.x is None else np.argmax(found.x.reshape(slots, servers), axis=1)
    return taken, found.status != OUT_OF_TIME
