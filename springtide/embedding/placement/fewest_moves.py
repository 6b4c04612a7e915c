"""Pure. Find a balanced slot layout with the fewest slot moves, and a lower bound on them.

In: a `PlacementProblem`, and a layout from the heuristic. Out: a lower bound on the moves of any balanced layout, or a
balanced layout with fewer moves. SciPy is imported only when a program is solved.

`at_least` returns the larger of two counts. The first counts slots that must *leave*: all slots of leaving servers, and
the largest slots of each overloaded server until it is within its tolerance. The second counts slots that must *arrive*
at servers below their tolerance, again the largest first. Each move leaves one server and arrives at one server, so
neither count includes a move twice.

`fewer` solves an integer program with SciPy's HiGHS: one binary per slot and server. Slots are much smaller than
shares, so the first relaxation is nearly optimal. If there are too many slots, only the most relevant slots are free to
move.
"""

from typing import Any

import numpy as np

from springtide.embedding.placement.heuristic import NOISE, Floats, Ints, PlacementProblem

OUT_OF_TIME = 1
CHOICES = (512, 2048)
"""Limits on the binaries of successive programs. The small program usually finds the minimum, and finds it quickly."""
SECONDS = 2.0
"""Time limit in seconds for each program. Most programs take a tenth of it. Programs where bytes and requests need
opposite moves may take all of it.
"""


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
    """Return how many of the largest sizes reach the amount; one more than exist if all together do not."""
    if amount <= NOISE:
        return 0
    return int(np.searchsorted(np.cumsum(-np.sort(-sizes)), amount - NOISE)) + 1


def fewer(problem: PlacementProblem, quick: Ints, *, seconds: float | None = None) -> Ints:
    """Return the balanced layout with the fewest moves found within `seconds`, or `quick` if none is better.

    The result is optimal if slots times servers do not exceed the largest of `CHOICES` and the time suffices.
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
    """Return the slots that the program may place: slots that `quick` moved first, then the largest. Other slots stay
    as in `quick`.
    """
    moved = (quick != problem.before) & (problem.before >= 0)
    order = np.lexsort((-problem.part.max(axis=1), ~moved))
    return np.sort(order[:most])


def _solved(problem: PlacementProblem, quick: Ints, free: Ints, seconds: float) -> tuple[Ints, bool]:
    """Return a server for each free slot with the fewest moves, and whether the solver finished in time.

    Without a balanced layout, the free slots stay as in `quick`.
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
