"""Pure. What cores for data workers are given for, by name: GoldMiner's three, and those of others.

In: a `cluster.Step`. Out: a number; the job with the smallest gets the next cores. t is steps a second, c cores of data
workers, g GPUs, n steps left (paper section 3.4.2). Next: `planning.dataworkers.cluster.allocation.allot` asks them.

A package offers its own in its pyproject.toml, as policies are (docs/design/policies.md); or `module:function`.

    [project.entry-points."springtide.dataworker_metrics"]
    oldest = "my_package:oldest"
"""

import math

from springtide import errors
from springtide.planning.dataworkers.cluster.allocation import CoreStep, Metric
from springtide.planning.policy import plugins

GROUP = "springtide.dataworker_metrics"
KIND = "data worker metric"


def maxtp(step: CoreStep) -> float:
    return -step.faster / step.more * step.job.gpus


def srtf(step: CoreStep) -> float:
    """Shortest remaining time first, weighed by what it takes: the smallest n (c + Δc) / (t + Δt)."""
    speed = step.speed + step.faster
    return step.job.steps_left * (step.cpu + step.more) / speed if speed > 0 else math.inf


def fair(step: CoreStep) -> float:
    """Equal shares of what each could train: the smallest (t + Δt) / t_ideal."""
    return (step.speed + step.faster) / step.job.capable


METRICS: dict[str, Metric] = {"maxtp": maxtp, "srtf": srtf, "fair": fair}


def names() -> tuple[str, ...]:
    return tuple(sorted({*METRICS, *plugins.offered(GROUP)}))


def load(name: str) -> Metric:
    """The metric of that name: built in, of an installed package, or `module:function`."""
    if name in METRICS:
        return METRICS[name]
    if ":" in name:
        return plugins.by_dotted_name(name, KIND)
    offered = plugins.by_entry_point(name, GROUP, KIND)
    if offered is None:
        raise errors.UnknownName(KIND, name, names())
    return offered
