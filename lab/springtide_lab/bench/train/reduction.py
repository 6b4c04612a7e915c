"""Measure the cost of summing gradients in the order of the batch for whole bsp jobs, compared with rank order.

Out: samples/s in rank order and in units of 1, 8, 32 and 128 samples (`batch_order_N`, relative to rank order). The
goal is that two workers and three workers train the same model to the bit. Design: docs/design/batch-order.md.
"""

import functools
import json
from collections.abc import Collection, Mapping
from typing import Any

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report

BATCH, WARM = 512, 3
RANK = "rank-order"
STEPS = {RANK: 100, "batch-order:1": 4, "batch-order:8": 12, "batch-order:32": 32, "batch-order:128": 64}
"""Number of steps with each order, so that each run takes some seconds."""

SCRIPT = """
import hashlib, json, pathlib, sys, time
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset
import springtide as st

told_in, reduction, batch, steps, warm = pathlib.Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
torch.set_num_threads(1)
torch.manual_seed(0)
made = torch.Generator().manual_seed(1)
ids = (1000 * torch.rand(batch * steps, 26, generator=made) ** 3).long()
clicked = (torch.rand(batch * steps, generator=made) < 0.3).float()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 16, mode="sum") for _ in range(26))
        self.top = nn.Sequential(nn.Linear(26 * 16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        found = [table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat(found, dim=1)).squeeze(1)


job = st.join()
model = Model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
model, optimizer, batches = job.prepare(
    model, optimizer, TensorDataset(ids, clicked), batch_size=batch, reduction=reduction, cache="off", shuffle=False
)
began, taken = 0.0, job._wired.step
for x, y in batches:
    optimizer.zero_grad()
    binary_cross_entropy_with_logits(model(x), y).backward()
    optimizer.step()
    if not began and taken.count == warm:
        began = time.perf_counter()
took = time.perf_counter() - began
sums = hashlib.sha256()
for name, value in sorted(model.state_dict().items()):
    sums.update(value.numpy().tobytes())
if not job.leaving:
    told = {"rate": batch * (taken.count - warm) / took, "model": sums.hexdigest()}
    (told_in / f"told-{job.rank}").write_text(json.dumps(told))
"""


def bench(options: Options) -> report.Result:
    ways, rounds = {way: WARM + (4 if options.quick else steps) for way, steps in STEPS.items()}, 3
    models: dict[str, set[str]] = {way: set() for way in ways}

    def measure(way: str, workers: int = 2) -> float:
        told = trained(way, workers=workers, steps=ways[way])
        models[way].update(one["model"] for one in told)
        return float(min(one["rate"] for one in told))

    orders = {way: functools.partial(measure, way) for way in ways}
    measured = harness.alternate(orders, rounds=1 if options.quick else rounds, warmup=0, label="reduction")
    for way in ways:
        measure(way, workers=3)
    return judge(measured, models)


def judge(measured: harness.Rounds, models: Mapping[str, Collection[str]]) -> report.Result:
    """Return the result. `models` has the hashes of the models that each order trained with two and three workers."""
    ordered = [way for way in measured.figures if way != RANK]
    alike = sum(len(models[way]) == 1 for way in ordered) / len(ordered)
    return report.Result(
        goals=(report.goal("same_to_the_bit", alike, target=1),),
        rounds=measured.count,
        columns=("order of sums", "samples/s", "of rank order's", "2 and 3 workers alike"),
        rows=tuple(
            (way, measured.median(way), measured.ratio(way, RANK).value, "yes" if len(models[way]) == 1 else "no")
            for way in measured.figures
        ),
        notes=(
            f"2 workers, 1 server, all on this machine; batches of {BATCH}, no cache; a unit is N of its samples",
            "26 tables of 1,000 rows of 16, 27,000 dense parameters, Adagrad",
        ),
        details={way.replace("-", "_").replace(":", "_"): measured.ratio(way, RANK).value for way in ordered},
    )


def trained(way: str, *, workers: int, steps: int) -> list[dict[str, Any]]:
    """Run one job to its end; return the report of each worker."""
    spec = JobSpec(name="reduction", workers=workers, servers=1, sync="bsp", checkpoints=CheckpointRules(every_s=600.0))
    with harness.scratch() as folder:
        with jobs.prepared(folder, SCRIPT, [folder, way, BATCH, steps, WARM], spec) as job:
            jobs.finished(job)
        return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(workers)]
