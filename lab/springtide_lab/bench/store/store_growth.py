"""Does a table grow evenly? Insert 50 M keys of dim 8: rate over time, latency of batches, bytes a row.

In: a Store of the native core alone. Out: `rate_flat` (slowest tenth over mean), `p999_vs_p50` of batch latency, both
after the first 5 M, and `bytes_vs_payload` (resident over payload + state + 24 B a row).
"""

import os
import pathlib
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import _native
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report

DIM = 8
ROW_BYTES = 4 * DIM  # SGD keeps no state
CELL_BYTES = 24  # what a row may cost beside its floats
ODD = np.uint64(0x9E3779B97F4A7C15)  # times an odd number is one to one: distinct keys all over the range


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One run: seconds of every batch, and what is resident in the end."""

    seconds: NDArray[np.float64]
    batch: int
    rows: int
    resident: int
    arenas: int

    def settled(self, skip_rows: int) -> NDArray[np.float64]:
        """Batches after the first `skip_rows` rows."""
        return self.seconds[skip_rows // self.batch :]


def bench(options: Options) -> report.Result:
    rows, skip = (1_000_000, 100_000) if options.quick else (50_000_000, 5_000_000)
    grown = grow(rows=rows, batch=8192)
    settled = grown.settled(skip)
    tenths = [float(grown.batch * len(part) / part.sum()) for part in np.array_split(settled, 10)]
    mean = grown.batch * len(settled) / float(settled.sum())
    p50, p999 = (float(np.quantile(settled, q)) for q in (0.5, 0.999))
    allowed = grown.rows * (ROW_BYTES + CELL_BYTES)
    goals = (
        report.goal("rate_flat", min(tenths) / mean, target=0.8),
        report.goal("p999_vs_p50", p999 / p50, target=5, better="lower"),
        report.goal("bytes_vs_payload", grown.resident / allowed, target=1.25, better="lower"),
    )
    table = (
        ("rows inserted, M", grown.rows / 1e6),
        ("mean rate, M rows/s", mean / 1e6),
        ("slowest tenth, M rows/s", min(tenths) / 1e6),
        (f"batch of {grown.batch}, p50, ms", 1e3 * p50),
        (f"batch of {grown.batch}, p99.9, ms", 1e3 * p999),
        (f"batch of {grown.batch}, worst, ms", 1e3 * float(settled.max())),
        ("resident, bytes a row", grown.resident / grown.rows),
        ("arenas, bytes a row", grown.arenas / grown.rows),
    )
    details = {"tenths_rows_per_s": tenths, "skip_rows": skip}
    return report.Result(goals=goals, rounds=1, columns=("what", "value"), rows=table, details=details)


def grow(*, rows: int, batch: int) -> Growth:
    """Push a gradient to `rows` keys that were never seen before, a batch at a time."""
    store = _native.Store(slots=1024, seed=0, threads=1)
    store.declare(_native.TableSpec(id=0, name="grown", dim=DIM, optimizer="sgd"))
    tables = np.zeros(batch, dtype=np.uint16)
    gradients = np.full(batch * DIM, 0.01, dtype=np.float32)
    hyper = [(0, _native.Hyper(lr=0.1))]
    count = rows // batch
    seconds = np.zeros(count)
    before = resident_bytes()
    with harness.bar(f"{rows / 1e6:g} M inserts", total=count) as step:
        for index in range(count):
            keys = (np.arange(index * batch, (index + 1) * batch, dtype=np.uint64) * ODD).view(np.int64)
            began = time.perf_counter()
            store.push(tables, keys, gradients, hyper, clock=index, unique=True, check_finite=False)
            seconds[index] = time.perf_counter() - began
            step()
    return Growth(
        seconds=seconds,
        batch=batch,
        rows=store.rows(),
        resident=resident_bytes() - before,
        arenas=store.resident_bytes(),
    )


def resident_bytes() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
