"""How long an iteration takes: a worker's own work, and rows over links. In: rows, measured `Costs`. Out: seconds.

A worker pushes, all wait, then it pulls (bsp): each direction takes as long as the server's link needs for all workers'
rows, or a worker's own for its. `Costs` are what `springtide bench cache` measured; nothing is fitted. Next:
`rows_timed`.
"""

import pathlib
from dataclasses import dataclass

from springtide_lab.reproduce.herald.preset import BATCH, ROW_BYTES
from springtide_lab.reproduce.report import BENCHES, published

PUBLISHED = BENCHES / "cache.json"
GBIT = 10.0
"""Links of the modelled cluster. The paper's are of 100 Gbit/s, and its workers have GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured."""

    necessary_s: float
    """CPU seconds that a worker spends on a step, which is what it takes on a core of its own."""
    goodput: float
    """What part of a link's nominal speed rows really got where the network was the bottleneck."""
    source: str

    @property
    def bytes_s(self) -> float:
        return self.goodput * GBIT * 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rows a worker and iteration."""

    pulls: float
    pushes: float
    largest_pull: float
    largest_push: float
    reduced: float = 0.0
    """Rows that all workers sum by a ring all-reduce."""


def costs(path: pathlib.Path = PUBLISHED) -> Costs | None:
    """What was published; None: nothing was, or it only showed that it runs."""
    found = published(path)
    known = (found or {}).get("details", {})
    if found is None or "necessary_s" not in known:
        return None
    return Costs(
        necessary_s=known["necessary_s"],
        goodput=known["goodput"],
        source=f"`springtide bench cache --json` of {found['date']}: {known['necessary_s'] * 1e3:.1f} ms of a core a "
        f"step of {BATCH}, and {known['goodput']:.0%} of a link's speed; links of {GBIT:g} Gbit/s",
    )


def communication_s(load: Load, cost: Costs, *, workers: int, servers: int) -> float:
    """Seconds for the rows of an iteration."""
    pull = max(workers * load.pulls / servers, load.largest_pull)
    push = max(workers * load.pushes / servers, load.largest_push)
    ring = 2 * (workers - 1) / workers * load.reduced
    return (pull + push + ring) * ROW_BYTES / cost.bytes_s


def iteration_s(load: Load, cost: Costs, *, workers: int, servers: int) -> float:
    """Seconds for all of it."""
    return cost.necessary_s + communication_s(load, cost, workers=workers, servers=servers)
