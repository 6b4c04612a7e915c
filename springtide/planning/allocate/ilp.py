"""Pure. The best allotment there is: a multiple-choice knapsack, solved by SciPy's HiGHS within a time limit.

In: `allotment.Options` and `KnapsackCapacity`. Out: `allot`: the exact answer where it comes in time, else the greedy
one, and how far the greedy one is from it. Next: `planning.allocate.choose`. SciPy is imported only when something is
solved.
"""

from dataclasses import dataclass

import numpy as np

from springtide.planning.allocate import knapsack
from springtide.planning.allocate.knapsack import Ints, KnapsackCapacity, KnapsackOptions, KnapsackSolution

RELATIVE_GAP = 1e-6
OPTIMAL = 0
GOOD_ENOUGH = 1e-3
"""Of the bound: a greedy answer that leaves less than this needs no other."""


def solve(options: KnapsackOptions, limits: KnapsackCapacity, *, seconds: float) -> Ints | None:
    """The best option for each job; None: not found and proven within these seconds, or none fits."""
    from scipy import optimize, sparse

    jobs, columns = np.nonzero(np.isfinite(options.cost))
    if not len(jobs):
        return None
    each = np.arange(len(jobs))
    one_each = sparse.csr_array((np.ones(len(jobs)), (jobs, each)), shape=(len(options.scale), len(jobs)))
    taken_by = np.vstack([options.cpu[jobs, columns], options.memory[jobs, columns]])
    most = np.array([limits.cpu, limits.memory])
    unit = np.maximum(most, 1e-12)
    answer = optimize.milp(
        -options.worth[jobs, columns],
        integrality=np.ones(len(jobs)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint(sparse.csr_array(taken_by / unit[:, None]), -np.inf, most / unit),
        ],
        options={"time_limit": seconds, "mip_rel_gap": RELATIVE_GAP},
    )
    if answer.status != OPTIMAL or answer.x is None:
        return None
    chosen = answer.x > 0.5
    taken = np.zeros(len(options.scale), dtype=np.int64)
    taken[jobs[chosen]] = columns[chosen]
    return taken if limits.hold(*options.used(taken)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look."""

    seconds: float = 0.5
    """For the exact answer; 0: the greedy one will do."""
    most_options: int = 4_000
    """Above so many options in all, the exact way is not tried."""


def allot(options: KnapsackOptions, limits: KnapsackCapacity, effort: Effort) -> KnapsackSolution | None:
    """The best allotment that was found; None: even the cheapest option of every job together is too much."""
    taken = knapsack.greedy(options, limits)
    if taken is None:
        return None
    most = np.argmax(np.where(np.isfinite(options.cost), options.value, -np.inf), axis=1)
    if limits.hold(*options.used(most)):  # nobody is in anybody's way
        value = options.total(most)
        return KnapsackSolution(taken=most, value=value, by="greedy", greedy_value=options.total(taken), bound=value)
    taken = knapsack.polish(options, limits, taken)
    greedy_value = options.total(taken)
    ceiling = max(knapsack.bound(options, limits), greedy_value)
    count = int(np.isfinite(options.cost).sum())
    if effort.seconds > 0 and count <= effort.most_options and greedy_value < (1 - GOOD_ENOUGH) * ceiling:
        best = solve(options, limits, seconds=effort.seconds)
        if best is not None:
            value = max(options.total(best), greedy_value)
            if options.total(best) > greedy_value:
                return KnapsackSolution(taken=best, value=value, by="exact", greedy_value=greedy_value, bound=value)
            return KnapsackSolution(taken=taken, value=value, by="greedy", greedy_value=greedy_value, bound=value)
    return KnapsackSolution(taken=taken, value=greedy_value, by="greedy", greedy_value=greedy_value, bound=ceiling)
