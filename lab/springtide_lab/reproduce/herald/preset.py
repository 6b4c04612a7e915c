"""Define the paper's defaults, and the streams that replace its data sets.

In: seeds, optionally a file of ids. Out: `Workload`s. Defaults of 004 §6.1: 8 workers, 1 server, LRU caches of 10% of
the rows, batches of 128 per worker in simulation and 256 on the test bed, dim 512, 10 warm-up iterations. Next:
`rows_counted`, `rows_timed`.
"""

import functools
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from springtide_lab.bench.cache import id_streams
from springtide_lab.bench.cache.allocate import SentRows
from springtide_lab.bench.cache.id_streams import Ids, IdStream
from springtide_lab.reproduce.report import BENCHES, published

WORKERS, SERVERS, BATCH, DIM, CACHE_SHARE, WARM_UPS = 8, 1, 128, 512, 0.1, 10
ROW_BYTES = 4 * DIM
GENERATED = ("w1", "w2", "w3", "w4")
HARDER = ("zipf-1.05", "zipf-1.2", "correlated")
"""Streams with less locality than real logs; only their transmissions are counted."""
OTHER_DATA = (
    "generated streams, with as many tables as the paper's data sets (w1 Criteo AD, w2 MovieLens 25M, w3 Avazu, "
    "w4 Criteo Sponsored Search), but without their locality; --ids reads real data"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeraldSize:
    """Size of the reproduction."""

    iterations: int = 90
    """Counted iterations after the warm-up; as many as in the paper's Appendix C."""
    epoch: int = 400_000
    """Samples of an epoch, for the popularity of rows."""
    workers: tuple[int, ...] = (8, 16, 32, 64, 80)
    """Numbers of workers for Figs. 6, 13 and 18."""


QUICK = HeraldSize(iterations=6, epoch=20_000, workers=(8, 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A stream by its name. The stream is generated when it is needed, and the same seed gives the same stream."""

    name: str
    path: str | None = None

    def stream(self, *, samples: int, seed: int) -> IdStream:
        """Return a stream of `samples` samples. A file may have fewer, and ignores the seed."""
        return _read(self.path, samples) if self.path else _make(self.name, samples, seed)

    def batches(
        self, size: HeraldSize, seed: int, *, workers: int = WORKERS, batch: int = BATCH
    ) -> tuple[IdStream, list[Ids]]:
        count = WARM_UPS + size.iterations
        stream = self.stream(samples=count * workers * batch, seed=seed)
        return stream, stream.batches(workers * batch)

    def seeds(self, seeds: Sequence[int]) -> Sequence[int]:
        return seeds[:1] if self.path else seeds


@functools.lru_cache(maxsize=6)
def _make(name: str, samples: int, seed: int) -> IdStream:
    return id_streams.make(name, samples=samples, seed=seed)


@functools.lru_cache(maxsize=6)
def _read(path: str, samples: int) -> IdStream:
    return id_streams.read(path, samples=samples)


def workloads(ids: str | None, names: Sequence[str] = (*GENERATED, *HARDER)) -> list[Workload]:
    """Return the workloads: only the file if one is given, otherwise the generated streams."""
    if ids is not None:
        return [Workload(name=pathlib.Path(ids).name, path=ids)]
    return [Workload(name=name) for name in names]


PUBLISHED = BENCHES / "cache.json"
GBIT = 10.0
"""Speed of the modelled cluster's links in Gbit/s. The paper's links have 100 Gbit/s, and its workers GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured costs of a step, from published results of `bench cache`."""

    necessary_s: float
    """CPU seconds of a worker per step: the time of the step if the worker has a core of its own."""
    goodput: float
    """Share of a link's nominal speed that transfers of rows reached when the network was the bottleneck."""
    source: str

    @property
    def bytes_s(self) -> float:
        return self.goodput * GBIT * 1e9 / 8


def costs(path: pathlib.Path = PUBLISHED) -> Costs | None:
    """Read the published costs; return None if there are none, or only those of a quick run."""
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


def communication_s(
    sent: SentRows, cost: Costs, *, workers: int, servers: int = SERVERS, reduced: float = 0.0
) -> float:
    """Return the seconds that it takes to transmit the rows of an iteration.

    `reduced` is the number of rows that all workers sum by a ring all-reduce. Rows sent directly between workers load
    only the workers' links.
    """
    pull = max(workers * sent.pull / servers, sent.largest_pull)
    push = max(workers * sent.push / servers, sent.largest_push)
    ring = 2 * (workers - 1) / workers * reduced
    return (pull + push + ring) * ROW_BYTES / cost.bytes_s
