"""Pure. Of a plan that changes both workers and servers: which of them first?

In: the job as it was shown, and the shape that it is to get. Out: whether servers come first. Workers do, whose change
moves no slots, unless servers alone bring more, after how long both were measured to take. Next:
`job.scaling.plan`.
"""

from dataclasses import replace

import numpy as np

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import JobView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.candidates import switch_cost
from springtide.planning.perf_model import core_speed, fit, measurements
from springtide.planning.perf_model.shape_columns import columns

WORTH_S = 600.0
"""Seconds of training that a change is weighed over, unless the job ends before."""


def servers_first(job: JobView, to: Shape, config: PlanningConfig) -> bool:
    """Whether servers alone pay more than workers alone. Without a model: whether servers have no CPU to spare."""
    now, here = job.shape, measurements.now(job)
    if now is None or here is None:
        return False
    with np.errstate(all="ignore"):  # what was measured may hold anything; what is no number is not more
        return _pays_more(job, now, to, here.throughput, config)


def _pays_more(job: JobView, now: Shape, to: Shape, throughput: float, config: PlanningConfig) -> bool:
    pace = core_speed.pace_of(job, throughput)
    model = fit.fit(job.profiles, job.facts, pace)
    if not isinstance(model, fit.FittedModel):
        busy = measurements.use(job, RoleKind.SERVER)
        return busy is not None and busy.share > config.busy_server
    steps = (
        replace(now, workers=to.workers, worker_cpu=to.worker_cpu, worker_memory=to.worker_memory),
        replace(now, servers=to.servers, server_cpu=to.server_cpu, server_memory=to.server_memory),
    )
    speeds = np.array([min(model.predict(step), core_speed.ceiling_of(pace, step)) for step in steps])
    samples = min(job.remaining, WORTH_S * throughput)
    by_workers, by_servers = switch_cost.mean_throughput(now, columns(steps), job.launches, throughput, speeds, samples)
    return bool(by_servers > by_workers)
