"""Does the performance model foretell a real job? Measured in some configurations, it must say what others will do.

In: a real job on this machine (WideDeep on generated clicks, `testing.cluster`), whose workers and servers are held to
fractions of a core by control groups. Out: `mape`, the mean error of predicted throughput on configurations that the
model has not seen; RMSLE, and the error that leaving each one out would make. Step timings go the same way as in a
master: readings, `planning.observe`, `planning.fit`.
"""

import itertools
import math
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from springtide import errors
from springtide.bench import Options, progress, report
from springtide.domain.guarding import GuardRules
from springtide.domain.job import JobSpec
from springtide.domain.profile import ModelFacts, Profile, TimingSum
from springtide.domain.shape import Shape
from springtide.planning import fit, observe
from springtide.planning.observe import Change, Reading
from springtide.testing.cluster import LocalCluster

TARGET = 0.10
BATCH, DIM, HIDDEN = 512, 16, (256, 128, 64)
FIELDS, COUNTERS = 24, 13
BANDWIDTH = 4e9  # bytes a second of one loopback connection on such a machine

SCRIPT = """
import dataclasses, json, pathlib, sys, time
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
import springtide as st
from springtide.zoo import demo
from springtide.zoo.widedeep import WideDeep

torch.set_num_threads(1)
torch.manual_seed(0)
folder, samples, batch = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
job = st.join()
clicks, _ = demo.log(samples, folder=folder / "clicks")
model = WideDeep(demo.SPEC.cardinalities, dim=int(sys.argv[4]), hidden=json.loads(sys.argv[5]), sparse=True)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
model, optimizer, batches = job.prepare(model, optimizer, clicks, batch_size=batch, epochs=10_000)
told = 0.0
with open(folder / f"told-{job.rank}", "w", buffering=1) as file:
    for x, y in batches:
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
        now = time.time()
        if now - told > 0.5:
            told = now
            print(json.dumps([now, dataclasses.asdict(job.meter.collect())]), file=file)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One configuration, and whether the model is to see it."""

    shape: Shape
    held_out: bool = False


def tried(*, quick: bool) -> list[list[Tried]]:
    """By job, so that its processes are started once: at most 1.6 cores of two, since master and kernel need some."""
    listed = QUICK if quick else FULL
    return [
        [Tried(shape=Shape(workers=w, servers=p, worker_cpu=a, server_cpu=b), held_out=held) for a, b, held in sizes]
        for (w, p), sizes in listed.items()
    ]


Sizes = Mapping[tuple[int, int], Sequence[tuple[float, float, bool]]]
FULL: Sizes = {
    (1, 1): [(0.6, 0.4, False), (0.3, 0.2, False), (0.45, 0.3, True)],
    (2, 1): [(0.4, 0.4, False), (0.2, 0.2, False), (0.3, 0.3, True)],
    (3, 1): [(0.3, 0.4, False), (0.2, 0.3, True)],
    (1, 2): [(0.6, 0.3, False), (0.3, 0.1, True)],
    (2, 2): [(0.4, 0.3, True), (0.25, 0.15, False)],
    (3, 2): [(0.25, 0.25, True), (0.2, 0.15, False)],
}
QUICK: Sizes = {
    (1, 1): [(0.5, 0.4, False), (0.25, 0.2, False), (0.35, 0.3, True)],
    (2, 1): [(0.3, 0.3, False)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds for each configuration."""

    settle_s: float = 4.0
    measure_s: float = 20.0
    window_s: float = 5.0


def bench(options: Options) -> report.Result:
    """Measure all, fit some, foretell the others."""
    times = Times(settle_s=1.0, measure_s=4.0, window_s=2.0) if options.quick else Times()
    jobs = tried(quick=options.quick)
    profiles: list[Profile] = []
    with progress.bar("configurations", total=sum(map(len, jobs))) as done:
        for some in jobs:
            profiles += measured(some, times, done)
    return judge([one for some in jobs for one in some], profiles)


def facts() -> ModelFacts:
    """What the model takes as given of this job."""
    widths = [FIELDS * DIM + COUNTERS, *HIDDEN, 1]
    weights = sum((before + 1) * after for before, after in itertools.pairwise(widths)) + COUNTERS + 1
    return ModelFacts(dense_bytes=4.0 * weights, bandwidth=BANDWIDTH, dim=FIELDS * (DIM + 1), batch=BATCH)


def measured(some: Sequence[Tried], times: Times, done: Callable[[], None]) -> list[Profile]:
    """Profiles of one job in each of its configurations."""
    first = some[0].shape
    spec = JobSpec(
        name="fit", workers=first.workers, servers=first.servers, worker_cpu=1.0, server_cpu=1.0,
        guards=GuardRules(memory=False, servers=False),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "train.py").write_text(SCRIPT)
        arguments = [name, "60000", str(BATCH), str(DIM), msgspec.json.encode(HIDDEN).decode()]
        told = [folder / f"told-{rank}" for rank in range(first.workers)]
        changes = []
        with LocalCluster(folder / "train.py", arguments, spec=spec, folder=folder / "runs", grace_s=5.0) as job:
            job.until(lambda _: all(path.exists() and path.stat().st_size for path in told))
            for one in some:
                hold(job, one.shape)
                changes.append(Change(at=time.time(), shape=one.shape))
                time.sleep(times.settle_s + times.measure_s)
                done()
        readings = [reading for rank, path in enumerate(told) for reading in read(rank, path)]
    rules = observe.Rules(settle_s=times.settle_s, window_s=times.window_s, warm_up_steps=10, fewest_steps=2)
    return list(observe.observe(readings, changes, batch=BATCH, rules=rules).profiles)


def hold(job: LocalCluster, shape: Shape) -> None:
    """Give each role its cores."""
    roles = {f"worker-{rank}": shape.worker_cpu for rank in range(shape.workers)}
    roles |= {f"server-{rank}": shape.server_cpu for rank in range(shape.servers)}
    for role, cpu in roles.items():
        if not job.throttle(role, cpu):
            raise errors.BadInput("this benchmark needs CPU quotas: run it where control groups may be made, as root")


def read(rank: int, path: pathlib.Path) -> list[Reading]:
    """What a worker has told; its last line may be cut off."""
    whole = path.read_text().rpartition("\n")[0].splitlines()
    lines = [msgspec.json.decode(line, type=tuple[float, TimingSum]) for line in whole]
    return [Reading(at=at, worker=rank, timing=timing) for at, timing in lines]


def judge(all_tried: Sequence[Tried], profiles: Sequence[Profile]) -> report.Result:
    """Predictions beside what was measured, on configurations that the model has not seen."""
    held = {one.shape for one in all_tried if one.held_out}
    model = fit.fit([one for one in profiles if one.shape not in held], facts())
    whole = fit.fit(profiles, facts())
    rows, errors_by = [], {True: list[float](), False: list[float]()}
    logs = []
    for one in all_tried:
        rates = [one.shape.workers * BATCH / each.step_s for each in profiles if each.shape == one.shape]
        real = statistics.median(rates) if rates else None
        foretold = model.predict(one.shape) if isinstance(model, fit.Fitted) else None
        error = None
        if real and foretold:
            error = foretold / real - 1
            errors_by[one.held_out].append(abs(error))
            if one.held_out:
                logs.append(math.log(foretold / real))
        rows.append((short(one), real, foretold, None if error is None else f"{error:+.1%}"))
    unseen = errors_by[True] if len(errors_by[True]) == len(held) else []
    rmsle = math.sqrt(statistics.mean(log**2 for log in logs)) if logs else None
    left_out = fit.leave_one_out(whole) if isinstance(whole, fit.Fitted) else None
    why = "" if unseen else model.why if not isinstance(model, fit.Fitted) else "a configuration was not measured"
    return report.Result(
        goals=(
            report.goal("mape", statistics.mean(unseen) if unseen else None, target=TARGET, better="lower", why=why),
        ),
        rounds=1,
        columns=("configuration", "measured, samples/s", "foretold", "error"),
        rows=tuple(rows),
        notes=(
            f"held out: those marked *; the model: {model.why}",
            f"RMSLE on them {report.figure(rmsle)}; leaving out each configuration in turn: MAPE "
            f"{report.figure(left_out)}",
        ),
        details={
            "rmsle": rmsle, "leave_one_out_mape": left_out, "windows": len(profiles),
            "coefficients": msgspec.to_builtins(model.coefficients) if isinstance(model, fit.Fitted) else None,
            "uncertainty": {k: v if math.isfinite(v) else None for k, v in model.uncertainty.items()}
            if isinstance(model, fit.Fitted) else None,
            "betas": model.betas if isinstance(model, fit.Fitted) else None,
        },
    )  # fmt: skip


def short(one: Tried) -> str:
    """A configuration within a column."""
    s = one.shape
    return f"{s.workers}x{s.worker_cpu:g} + {s.servers}x{s.server_cpu:g}{' *' if one.held_out else ''}"
