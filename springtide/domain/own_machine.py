"""Pure. Between which shapes a job on one machine may plan for itself, and with which of them it begins.

In: the machine's cores and memory, and what the user has fixed. Out: `Bounds` and a first `Shape` within them. Next:
`cli.sizing` makes `PlanRules` of them.

Where cores can be held (control groups) all quotas together stay within the machine's cores. A worker computes with one
thread and gets one core at most, since threads beyond its cores only stand in each other's way when it gets fewer: more
cores come as more workers. It gets half a core at least, a server a fifth: the kernel hands a quota out in tenths of a
second, and with less a worker takes half a minute to start and a server answers late. Steps are tenths of a core. Where
cores cannot be held a role is reckoned to take what it usually does.
"""

import math
from dataclasses import dataclass

from springtide import errors
from springtide.domain.shape import Bounds, Capacity, Shape

LEAST_WORKER, LEAST_SERVER = 0.5, 0.2
MOST_WORKER = 1.0
CPU_STEP = 0.1
FINE = 16.0
"""Cores up to which sizes go by tenths; beyond, by powers of two and halfway between."""
WORKERS_SHARE = 0.7
"""Of all cores, for workers at the start, at most: servers do less."""
FEW = 1.0
"""Cores of one server, before it may have more than an eighth of the machine."""
LEAST_QUOTA = 0.2
"""Cores of the whole job: a tenth for a worker, and what is left for a server."""
USUAL_WORKER, USUAL_SERVER = 0.8, 0.2
"""Cores that a role is reckoned to take where it cannot be held to any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What the user has said; None: to be planned."""

    workers: int | None = None
    servers: int | None = None
    cpu: float | None = None
    memory: int | None = None
    """Bytes of each role. Memory without a limit is not planned on one machine."""
    quota: float | None = None
    """Cores of the whole job; None: all that the machine has."""

    def __post_init__(self) -> None:
        if self.quota is not None and not LEAST_QUOTA <= self.quota < math.inf:
            raise errors.BadInput(f"a quota of {self.quota:g} cores; wanted {LEAST_QUOTA:g} or more, such as 1.5")


def bounds(cores: int, memory: float, fixed: Fixed, *, resize: bool) -> Bounds:
    """Shapes that this machine holds, with what the user fixed pinned."""
    quota = min(fixed.quota, float(cores)) if fixed.quota else float(cores)
    worker_least, server_least = min(LEAST_WORKER, _tenths(quota * WORKERS_SHARE)), min(LEAST_SERVER, quota / 4)
    cpus = {
        "worker_cpu": (worker_least, max(worker_least, min(MOST_WORKER, _tenths(quota - server_least)))),
        "server_cpu": (server_least, max(server_least, min(max(FEW, cores / 8), _tenths(quota - worker_least)))),
    }
    if not resize:
        cpus = {"worker_cpu": (USUAL_WORKER, USUAL_WORKER), "server_cpu": (USUAL_SERVER, USUAL_SERVER)}
    if fixed.cpu is not None:
        cpus = dict.fromkeys(cpus, (fixed.cpu, fixed.cpu))
    worker, server = cpus["worker_cpu"][0], cpus["server_cpu"][0]
    counts = {
        "workers": _counts(fixed.workers, math.floor((quota - server) / worker + 1e-9), 2 * cores),
        "servers": _counts(fixed.servers, math.floor((quota - worker) / server + 1e-9), cores),
    }
    memories = dict.fromkeys(("worker_memory", "server_memory"), fixed.memory or 0)
    least = Shape(**{name: low for name, (low, _) in (cpus | counts).items()}, **memories)  # type: ignore[arg-type]
    most = Shape(**{name: high for name, (_, high) in (cpus | counts).items()}, **memories)  # type: ignore[arg-type]
    return Bounds(
        least=least, most=most, cpu_step=CPU_STEP if quota <= FINE else None,
        quota=Capacity(cpu=max(quota, least.cpu), memory=max(memory, float(least.memory))),
    )  # fmt: skip


def first_shape(limits: Bounds) -> Shape:
    """The least workers and servers, with as many cores as the quota has for them."""
    least, most, quota = limits.least, limits.most, limits.quota.cpu
    for_workers = min(WORKERS_SHARE * quota, quota - least.servers * least.server_cpu)
    worker = max(least.worker_cpu, min(most.worker_cpu, _tenths(for_workers / least.workers)))
    server = max(least.server_cpu, min(most.server_cpu, _tenths((quota - least.workers * worker) / least.servers)))
    return Shape(
        workers=least.workers, servers=least.servers, worker_cpu=worker, server_cpu=server,
        worker_memory=least.worker_memory, server_memory=least.server_memory,
    )  # fmt: skip


def _tenths(cores: float) -> float:
    return round(math.floor(cores / CPU_STEP + 1e-6) * CPU_STEP, 9)


def _counts(fixed: int | None, room: int, most: int) -> tuple[int, int]:
    return (fixed, fixed) if fixed is not None else (1, max(1, min(room, most)))
