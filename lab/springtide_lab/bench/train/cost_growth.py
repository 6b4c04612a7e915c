"""What a step costs against batch size, tables, dim and servers: nothing may grow worse than linearly.

One worker trains `st.EmbeddingBags` and a linear head on servers in processes of their own; one size varies at a time.
In: a job of bench/core/jobs.py. Out: exponents (1 is linear) as goals, and a picture of the curves.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils.data import TensorDataset

import springtide as st
from springtide_lab.bench import Options
from springtide_lab.bench.core import growth, harness, jobs, report

ROWS = 100_000
LINEAR = 1.1  # an exponent measured on a shared machine strays by about this much


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSizes:
    """One point."""

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
    with harness.bar("step time", total=rounds * len(points)) as done:
        for _, (what, size) in itertools.product(range(rounds), points):
            measured[what, size].append(step_seconds(replace(base, **{what: size}), steps=steps))
            done()
    curves = [
        growth.Curve(what=what, sizes=sizes, seconds=[statistics.median(measured[what, size]) for size in sizes])
        for what, sizes in sweeps.items()
    ]
    picture = options.folder / "cost-growth.png"
    growth.plot(curves, picture)
    return report.Result(
        goals=tuple(report.goal(f"{c.what}_exponent", c.exponent, target=LINEAR, better="lower") for c in curves),
        rounds=rounds,
        columns=("size", "value", "step, ms"),
        rows=tuple((c.what, str(size), 1e3 * s) for c in curves for size, s in zip(c.sizes, c.seconds, strict=True)),
        notes=(f"1 is linear, 0 no growth; otherwise {base}. Curves: {picture}",),
        details={c.what: {"sizes": c.sizes, "seconds": c.seconds} for c in curves},
    )


def step_seconds(sizes: GrowthSizes, *, steps: int) -> float:
    """Median seconds of a step, from the end of one to the end of the next, after a third of them to warm up."""
    drawn = growth.batches(3, batches=steps, tables=sizes.tables, rows=ROWS, batch=sizes.batch)
    samples = torch.from_numpy(drawn.transpose(0, 2, 1).reshape(-1, sizes.tables).copy())
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
