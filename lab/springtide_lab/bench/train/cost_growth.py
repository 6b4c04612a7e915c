"""Measure how the time of a step grows with batch size, tables, dim and servers: at most linearly.

One worker trains `st.EmbeddingBags` and a linear head. Each server is a separate process. One size varies at a time.
In: a job of bench/core/jobs.py. Out: goals for the exponents of power laws through the measured points (1 is linear).
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import TensorDataset

import springtide as st
from springtide_lab.bench import Options
from springtide_lab.bench.cache import id_streams
from springtide_lab.bench.core import harness, jobs, report

ROWS = 100_000
LINEAR = 1.1  # allows for the error of an exponent measured on a shared machine


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSizes:
    """Sizes of one measured point."""

    batch: int = 512
    tables: int = 26
    dim: int = 16
    servers: int = 1


SWEEPS: Mapping[str, Sequence[int]] = {
    "batch": (128, 256, 512, 1024, 2048, 4096),
    "tables": (4, 8, 16, 32, 64),
    "dim": (8, 16, 32, 64, 128),
    "servers": (1, 2, 4, 8),
}
QUICK_SWEEPS: Mapping[str, Sequence[int]] = {
    "batch": (64, 128, 256),
    "tables": (2, 4, 8),
    "dim": (8, 16, 32),
    "servers": (1, 2, 3),
}


def bench(options: Options) -> report.Result:
    sweeps = QUICK_SWEEPS if options.quick else SWEEPS
    base = GrowthSizes(batch=64, tables=4) if options.quick else GrowthSizes()
    rounds, steps = (1, 8) if options.quick else (3, 60)
    points = [(what, size) for what, sizes in sweeps.items() for size in sizes]
    measured: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    for what, size in harness.track("step time", points * rounds):
        measured[what, size].append(step_seconds(replace(base, **{what: size}), steps=steps))
    seconds = {point: statistics.median(measured[point]) for point in points}
    exponents = {what: exponent(sizes, [seconds[what, size] for size in sizes]) for what, sizes in sweeps.items()}
    return report.Result(
        goals=tuple(
            report.goal(f"{what}_exponent", value, target=LINEAR, better="lower") for what, value in exponents.items()
        ),
        rounds=rounds,
        columns=("size", "value", "step, ms"),
        rows=tuple((what, str(size), 1e3 * took) for (what, size), took in seconds.items()),
        notes=(f"1 is linear, 0 no growth; otherwise {base}",),
    )


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log(seconds) over log(size), by least squares over the upper half of the sizes."""
    upper = max(3, (len(sizes) + 1) // 2)
    return float(np.polyfit(np.log(sizes[-upper:]), np.log(seconds[-upper:]), 1)[0])


def step_seconds(sizes: GrowthSizes, *, steps: int) -> float:
    """Return the median seconds from the end of one step to the end of the next; the first third is warm-up."""
    popular = id_streams.Popularity(np.random.default_rng(3), [ROWS] * sizes.tables, id_streams.ZIPF)
    samples = torch.from_numpy(popular.draw(steps * sizes.batch))
    labels = (samples.sum(dim=1) % 2).float()
    with jobs.running(servers=sizes.servers) as job:
        model = torch.nn.Sequential(
            st.EmbeddingBags([sizes.dim] * sizes.tables), torch.nn.Linear(sizes.dim * sizes.tables, 1)
        )
        optimizer: torch.optim.Optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
        prepared, optimizer, batches = job.prepare(
            model, optimizer, TensorDataset(samples, labels), batch_size=sizes.batch, shuffle=False
        )
        ends = []
        for batch, clicks in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(prepared(batch).squeeze(1), clicks)
            torch.autograd.backward(loss)
            optimizer.step()
            ends.append(time.perf_counter())
    took = [after - before for before, after in itertools.pairwise(ends)]
    return statistics.median(took[len(took) // 3 :])
