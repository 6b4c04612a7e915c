"""Pure. Random small clusters on which the greedy choice is held against the exact one.

In: a NumPy generator (chance is an argument). Out: the part of the optimum that each way reached.
Next: `springtide bench plan` prints it as `quality_vs_exact`.
"""

from dataclasses import dataclass

import numpy as np

from springtide.planning.allocate import ilp, knapsack
from springtide.planning.allocate.knapsack import Limits, Options

SECONDS = 10.0
"""For one exact answer; these take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Parts of the optimum, 1 being all of it."""

    instances: int
    greedy_mean: float
    greedy_worst: float
    chosen_mean: float
    """Of what is taken in the end: the exact answer where it comes in time."""
    chosen_worst: float


def instance(generator: np.random.Generator) -> tuple[Options, Limits]:
    """A few jobs that want more than there is, each with a front of its own: gains fall off, memory as it comes."""
    rows, scale = [], []
    for _ in range(int(generator.integers(2, 10))):
        count = int(generator.integers(2, 12))
        cpu = np.cumsum(generator.integers(1, 16, size=count)).astype(float)
        memory = np.cumsum(generator.integers(1, 16, size=count)).astype(float)
        throughput = cpu / (cpu + generator.uniform(5, 100)) * generator.uniform(10, 1000)
        order = np.sort(throughput * generator.uniform(0.9, 1.1, size=count))
        rows.append((order - order[0], cpu + memory / 8, cpu, memory))
        scale.append(-2.5 * np.log(generator.uniform(600, 6000)))
    options = knapsack.options_of(rows, np.array(scale))
    least, most = (options.used(np.array([at(len(row[0])) for row in rows])) for at in (lambda _: 0, lambda n: n - 1))
    part = generator.uniform(0.1, 0.9, size=2)
    cpu_limit, memory_limit = (low + (high - low) * float(p) for low, high, p in zip(least, most, part, strict=True))
    return options, Limits(cpu=cpu_limit, memory=memory_limit)


def quality(generator: np.random.Generator, *, instances: int = 200) -> Quality:
    """The greedy and the taken allotment beside the best there is, over so many random clusters."""
    greedy, chosen = [], []
    for _ in range(instances):
        taken = ilp.allot(*instance(generator), ilp.Effort(seconds=SECONDS))
        if taken is not None:
            greedy.append(1.0 - taken.gap)
            chosen.append(taken.value / taken.bound if taken.bound > 0 else 1.0)
    return Quality(
        instances=len(greedy), greedy_mean=float(np.mean(greedy)), greedy_worst=float(np.min(greedy)),
        chosen_mean=float(np.mean(chosen)), chosen_worst=float(np.min(chosen)),
    )  # fmt: skip
