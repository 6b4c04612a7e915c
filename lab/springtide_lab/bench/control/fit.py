"""Measure how well the performance model predicts a real job in configurations that it has not seen.

In: a real job with CPU quotas of fractions of a core (`bench/core/quota_job.py`). Out: `mape`, the mean absolute error
of the predicted throughput on held-out configurations. Readings are processed as in a master.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from springtide.domain.core.shape import Shape
from springtide.planning.perf_model import fit, measurements
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, quota_job, report
from springtide_lab.bench.core.quota_job import QuotaProfile, Times

TARGET = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One configuration of a job. If `held_out` is True, the fit does not use its measurements."""

    shape: Shape
    held_out: bool = False


Sizes = Mapping[tuple[int, int], Sequence[tuple[float, float, bool]]]
FULL: Sizes = {
    (1, 1): [(0.8, 0.4, False), (0.4, 0.2, False), (0.8, 0.1, True), (0.6, 0.3, True), (0.8, 0.05, False)],
    (2, 1): [(0.5, 0.3, False), (0.3, 0.1, False), (0.4, 0.2, True)],
    (3, 1): [(0.4, 0.3, False), (0.3, 0.2, True), (0.4, 0.1, False)],
    (1, 2): [(0.8, 0.2, False), (0.5, 0.05, True)],
    (2, 2): [(0.5, 0.2, True), (0.3, 0.1, False)],
    (3, 2): [(0.3, 0.2, False), (0.4, 0.1, True)],
}
"""For each pair (number of workers, number of servers): cores of each worker, cores of each server, and whether to hold
the pair out.

Some configurations are limited by the workers' cores, some by the servers' cores, some by neither.
"""
QUICK: Sizes = {(1, 1): [(0.5, 0.3, False), (0.25, 0.2, False), (0.35, 0.25, True)], (2, 1): [(0.3, 0.3, False)]}


def tried(*, quick: bool) -> list[list[Tried]]:
    """Return the configurations grouped by job, so that each job's processes start once.

    The processes use at most 1.6 of two cores, because the master and the kernel need some.
    """
    listed = QUICK if quick else FULL
    return [
        [Tried(shape=Shape(workers=w, servers=p, worker_cpu=a, server_cpu=b), held_out=held) for a, b, held in sizes]
        for (w, p), sizes in listed.items()
    ]


def bench(options: Options) -> report.Result:
    times = Times(settle_s=1.0, measure_s=3.0, window_s=1.5) if options.quick else Times(settle_s=2.0, measure_s=6.0)
    jobs = tried(quick=options.quick)
    taken: list[QuotaProfile] = []
    with harness.scratch() as folder:
        quota_job.clicks(folder)
        for some in harness.track("jobs of several shapes", jobs):
            taken += quota_job.measured(folder, [one.shape for one in some], times)
    return judge([one for some in jobs for one in some], taken)


class FitModel:
    """The model as a policy uses it: the fitted equations, and the observed speed of a core."""

    def __init__(self, seen: Sequence[QuotaProfile]) -> None:
        known = [(one, speed) for one in seen if (speed := one.speed)]
        worker = [
            measurements.of_cores(speed, one.worker_used, one.shape.workers * one.shape.worker_cpu)
            for one, speed in known
        ]
        server = [
            measurements.of_cores(speed, one.server_used, one.shape.servers * one.shape.server_cpu)
            for one, speed in known
        ]
        self.pace = CoreSpeed(median(worker) if worker else math.inf, median(server) if server else math.inf)
        profiles = [profile for one in seen for profile in one.profiles]
        self.equations: FittedModel | str = fit.fit(profiles, quota_job.facts(), self.pace)

    def predict(self, shape: Shape) -> float | None:
        """Return samples per second, or None if no equations could be fitted."""
        if not isinstance(self.equations, FittedModel):
            return None
        return min(self.equations.predict(shape), measurements.ceiling_of(self.pace, shape))


def judge(all_tried: Sequence[Tried], taken: Sequence[QuotaProfile]) -> report.Result:
    held = {one.shape for one in all_tried if one.held_out}
    by_shape = {one.shape: one for one in taken}
    model = FitModel([one for one in taken if one.shape not in held])
    rows, off = [], list[float]()
    for one in all_tried:
        real = by_shape[one.shape].speed if one.shape in by_shape else None
        foretold = model.predict(one.shape)
        error = foretold / real - 1 if real and foretold else None
        if error is not None and one.held_out:
            off.append(abs(error))
        name = f"{quota_job.short(one.shape)}{' *' if one.held_out else ''}"
        rows.append((name, real, foretold, None if error is None else f"{error:+.1%}"))
    said = model.equations.why if isinstance(model.equations, FittedModel) else model.equations
    why = "a configuration was not measured" if isinstance(model.equations, FittedModel) else said
    mape = mean(off) if off and len(off) == len(held) else None
    return report.Result(
        goals=(report.goal("mape", mape, target=TARGET, better="lower", why=why),),
        rounds=2,
        columns=("configuration", "measured, samples/s", "foretold", "error"),
        rows=tuple(rows),
        notes=(
            f"configurations marked * are held out; the model: {said}",
            f"a worker core does {model.pace.worker:,.0f} samples/s, a server core {model.pace.server:,.0f}",
        ),
    )
