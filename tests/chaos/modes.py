"""Pure. Modes of a chaos job, and a seeded choice of modes that covers every possible pair of values.

In: a seed, the sources that this machine has. Out: `cover`: modes, so few that together they have each pair of values
of two axes at least once. Pairs that a job refuses are in `IMPOSSIBLE`, each with the reason.
"""

import itertools
import random
from dataclasses import asdict, dataclass, fields

AXES = {
    "sync": ("async", "bsp"),
    "cache": ("off", "4K"),
    "accumulate": (1, 2),
    "unit": (0, 8),
    "data_workers": (0, 1),
    "source": ("map", "iterable", "log", "kafka"),
    "tls": (False, True),
    "shared_memory": (True, False),
    "servers": (1, 2),
    "workers": (1, 2),
}
"""Values of each axis. `unit`: samples of a unit with `reduction="batch-order:N"`; 0 without this reduction."""

IMPOSSIBLE = (
    ("accumulate is for async: a bsp step is one batch", lambda mode: mode.sync == "bsp" and mode.accumulate > 1),
    ("async has no common batch whose order could count", lambda mode: mode.unit and mode.sync == "async"),
    ("batch-order refuses streams and IterableDatasets", lambda mode: mode.unit and mode.source != "map"),
    (
        "data workers read by index, which streams and IterableDatasets do not have",
        lambda mode: mode.data_workers and mode.source != "map",
    ),
)
"""Combinations that no job can have: reason, and a condition."""


@dataclass(frozen=True)
class Mode:
    """How a job trains."""

    sync: str = "async"
    cache: str = "off"
    accumulate: int = 1
    unit: int = 0
    data_workers: int = 0
    source: str = "map"
    tls: bool = False
    shared_memory: bool = True
    servers: int = 2
    workers: int = 2

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    @property
    def exact_bits(self) -> bool:
        """True if the model of any run must equal that of an undisturbed run to the bit."""
        return self.unit > 0


def pairs(mode):
    """Return the pairs of values that a mode has, each as two (axis, value)."""
    return set(itertools.combinations([(field.name, getattr(mode, field.name)) for field in fields(mode)], 2))


def possible(sources):
    """Return all modes that a job can have with these sources."""
    values = {**AXES, "source": tuple(sources)}
    every = (Mode(**dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values()))
    return [mode for mode in every if not any(refuses(mode) for _, refuses in IMPOSSIBLE)]


def cover(seed, sources):
    """Choose modes greedily, each with as many uncovered pairs as possible; ties are drawn from the seed."""
    modes = possible(sources)
    random.Random(seed).shuffle(modes)
    missing = set().union(*map(pairs, modes))
    chosen = []
    while missing:
        best = max(modes, key=lambda mode: len(pairs(mode) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen
