"""Pure. Capacity of a platform, the shape bounds that follow from it, and the first shape of a job.

A worker computes with one thread and gets at most one core, so a job uses more cores by having more workers. With
less than half a core, a worker takes half a minute to start, because the kernel grants CPU quota in periods.
"""

import math
from dataclasses import dataclass

from springtide import errors
from springtide.domain.core import resources, shape
from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.spec.elastic_job import Quota, RoleWish, gpu_of

LEAST_WORKER, LEAST_SERVER = 0.5, 0.2
MOST_WORKER = 1.0
CPU_STEP = 0.1
FINE = 16.0
"""Core counts up to this value are multiples of a tenth. Larger core counts are powers of two and the midpoints between
them."""
WORKERS_SHARE = 0.7
"""Largest share of all cores that workers get at the start, because servers need fewer cores."""
FEW = 1.0
"""Cores that a server may always have, even if this exceeds an eighth of the node."""
LEAST_QUOTA = 0.2
"""Fewest cores of a whole job: a tenth of a core for a worker, and the rest for a server."""
USUAL_WORKER, USUAL_SERVER = 0.8, 0.2
"""Number of cores to assume for a role on a platform that cannot limit cores."""
UNKNOWN_CPU, UNKNOWN_MEMORY, UNKNOWN_NODE = 200.0, float(1 << 40), 2.0
"""Resources to assume for a cluster that adds nodes on demand or does not report its nodes: a cluster of small
nodes.
"""
NODE_SHARE = 0.8
"""Share of a cluster node that one role may use. The cluster's own agents use the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformCapacity:
    """Resources that a platform has for jobs."""

    cpu: float
    """Number of cores of all nodes; 0 means unknown."""
    memory: float
    """Bytes of all nodes; 0 means unknown."""
    node_cpu: float = 0.0
    """Number of cores of the largest node; 0 means unknown."""
    node_memory: float = 0.0
    """Bytes of the node with the most memory; 0 means unknown."""
    holds: bool = True
    """True if the platform can limit the cores of roles, and change the limit while they run."""
    trouble: str = ""
    """Reason why the platform cannot limit cores, for the user."""
    gpus: int | None = None
    """Number of GPUs of all nodes; None means unknown."""
    shares_gpus: bool = True
    """True if several workers may share one GPU."""
    own: bool = False
    """True for this machine, which cannot grow and starts roles within seconds; False for a cluster."""

    @property
    def machine_text(self) -> str:
        return "this machine" if self.own else "the largest node"


def check(capacity: PlatformCapacity, workers: RoleWish, servers: RoleWish, quota: Quota) -> None:
    """Raise BadInput for a role that fits no node, or for an impossible quota."""
    for name, wish in (("workers", workers), ("servers", servers)):
        if wish.cpu is not None and 0 < capacity.node_cpu < wish.cpu:
            raise errors.BadInput(
                f"{name}.cpu {wish.cpu:g} (--cpu): {capacity.machine_text} has {capacity.node_cpu:g} cores; give that "
                "or less"
            )
        if wish.memory_bytes is not None and 0 < capacity.node_memory < wish.memory_bytes:
            raise errors.BadInput(
                f"{name}.memory {wish.memory} (--memory): {capacity.machine_text} has "
                f"{resources.show_memory(int(capacity.node_memory))}; give that or less"
            )
    _check_numbers(capacity, workers, servers)
    _check_gpus(capacity, workers, quota)
    if quota.cpu is not None and not LEAST_QUOTA <= quota.cpu < math.inf:
        raise errors.BadInput(f"a quota of {quota.cpu:g} cores; expected {LEAST_QUOTA:g} or more, such as 1.5")
    if capacity.own and quota.cpu is not None and quota.cpu > capacity.cpu:
        raise errors.BadInput(
            f"quota.cpu {quota.cpu:g} (--quota): this machine has {capacity.cpu:g} cores; give that or less, or none"
        )
    if quota.memory is not None and (workers.memory is None or servers.memory is None):
        raise errors.BadInput(
            f"quota.memory {quota.memory}: a role without a limit could use the whole quota; give workers.memory and "
            f"servers.memory too"
        )


def _check_numbers(capacity: PlatformCapacity, workers: RoleWish, servers: RoleWish) -> None:
    """Raise BadInput if this machine has too little memory for the requested number of processes."""
    some, others = (wish.count or wish.start or wish.min or 1 for wish in (workers, servers))
    most = int(capacity.memory // resources.LEAST_MEMORY)
    if capacity.own and some + others > most > 0:
        raise errors.BadInput(
            f"{some} workers and {others} servers: this machine has {resources.show_memory(int(capacity.memory))} of "
            f"memory, {resources.LEAST_MEMORY >> 20}M each for {most} processes at most; ask for fewer"
        )


def _check_gpus(capacity: PlatformCapacity, workers: RoleWish, quota: Quota) -> None:
    """Raise BadInput if the job asks for GPUs that this machine lacks, or for a GPU share that the platform cannot
    provide. A cluster may add nodes.
    """
    each, place = gpu_of(workers, quota), "this machine" if capacity.own else "the cluster"
    if not each:
        return
    asked = f"workers.gpu {each:g} (--gpu)" if workers.gpu else f"quota.gpu {quota.gpu} (--gpus)"
    if each < 1 and not capacity.shares_gpus:
        raise errors.BadInput(f"{asked}: {place} gives out whole GPUs only; give 1")
    there = capacity.gpus if capacity.own else None
    if there == 0:
        raise errors.BadInput(
            f"{asked}: {place} has no GPU that can be used (see `nvidia-smi` and CUDA_VISIBLE_DEVICES); leave it out, "
            "or give 0 to train on the CPU"
        )
    if there is not None and (quota.gpu or 0) > there:
        raise errors.BadInput(f"{asked}: {place} has {there}; give that or less")
    number, gpus = workers.count or max(workers.start or 1, workers.min or 1), there if quota.gpu is None else quota.gpu
    most = None if gpus is None else resources.workers_on(gpus, each)
    if most is not None and number > most:
        share = ", or a share of a GPU for each (workers.gpu, --gpu)" if capacity.shares_gpus else ""
        raise errors.BadInput(
            f"{number} workers with {each:g} GPU each: the job may use {gpus} GPUs, enough for {most}; ask for fewer "
            f"workers{share}"
        )


def gpu_workers(capacity: PlatformCapacity, workers: RoleWish, quota: Quota) -> int | None:
    """Return how many workers the GPUs allow at most; None if GPUs do not limit the number."""
    each, gpus = gpu_of(workers, quota), capacity.gpus if quota.gpu is None else quota.gpu
    return resources.workers_on(gpus, each) if each and gpus is not None else None


def bounds(capacity: PlatformCapacity, workers: RoleWish, servers: RoleWish, quota: Quota) -> ShapeBounds:
    there = capacity.cpu or UNKNOWN_CPU
    most_cpu = quota.cpu if quota.cpu is not None else there
    cpus = _cpus(capacity, workers, servers, most_cpu, bounded=quota.cpu is not None)
    worker, server = cpus["worker_cpu"][0], cpus["server_cpu"][0]
    fewest_servers, fewest_workers = servers.count or servers.min or 1, workers.count or workers.min or 1
    room_workers = math.floor((most_cpu - fewest_servers * server) / worker + 1e-9)
    room_servers = math.floor((most_cpu - fewest_workers * worker) / server + 1e-9)
    cores = max(1, math.ceil(max(there, most_cpu)))
    if (on_gpus := gpu_workers(capacity, workers, quota)) is not None:
        room_workers = min(room_workers, on_gpus)
    counts = {"workers": _counts(workers, room_workers, 2 * cores), "servers": _counts(servers, room_servers, cores)}
    held = {"worker_memory": workers.memory_bytes or 0, "server_memory": servers.memory_bytes or 0}
    held |= {"worker_gpu": gpu_of(workers, quota) or 0.0}  # type: ignore[dict-item]
    least = Shape(**{name: low for name, (low, _) in (cpus | counts).items()}, **held)  # type: ignore[arg-type]
    most = Shape(**{name: high for name, (_, high) in (cpus | counts).items()}, **held)  # type: ignore[arg-type]
    gpus = capacity.gpus if quota.gpu is None else quota.gpu
    memory = float(quota.memory_bytes or capacity.memory or UNKNOWN_MEMORY)
    too_much = (quota.cpu is not None and least.cpu > quota.cpu * (1 + shape.ROUNDING)) or least.memory > memory
    if too_much and (_asked_for(workers) or _asked_for(servers)) and (quota.cpu or quota.memory):
        taken, allowed = _limits_text(least.cpu, least.memory), _limits_text(quota.cpu, quota.memory_bytes)
        raise errors.BadInput(
            f"{least} take {taken}, the quota is {allowed}; raise the quota, or ask for fewer or smaller roles"
        )
    return ShapeBounds(
        least=least,
        most=most,
        cpu_step=CPU_STEP if most_cpu <= FINE else None,
        quota=shape.ResourceBudget(
            cpu=max(most_cpu, least.cpu),
            memory=max(memory, float(least.memory)),
            gpu=shape.UNKNOWN_GPUS if gpus is None else max(gpus, least.gpus),
        ),
    )


def _limits_text(cpu: float | None, memory: int | None) -> str:
    cores = f"{cpu:g} cores" if cpu else ""
    return " and ".join(filter(None, (cores, resources.show_memory(memory) if memory else "")))


def first_shape(
    limits: ShapeBounds, *, workers: int | None = None, servers: int | None = None, small: bool = False
) -> Shape:
    """Return the first shape of a job: the minimum or the given number of roles, and as many cores as the quota
    allows.

    `small` limits each server to one core, because larger pods wait longer for a node of a cluster.
    """
    least, most, quota = limits.least, limits.most, limits.quota.cpu
    workers = min(max(workers or least.workers, least.workers), most.workers)
    servers = min(max(servers or least.servers, least.servers), most.servers)
    for_workers = min(WORKERS_SHARE * quota, quota - servers * least.server_cpu)
    worker = max(least.worker_cpu, min(most.worker_cpu, _tenths(for_workers / workers)))
    most_server = min(most.server_cpu, FEW) if small else most.server_cpu
    server = max(least.server_cpu, min(most_server, _tenths((quota - workers * worker) / servers)))
    first = Shape(
        workers=workers,
        servers=servers,
        worker_cpu=worker,
        server_cpu=server,
        worker_memory=least.worker_memory,
        server_memory=least.server_memory,
        worker_gpu=least.worker_gpu,
    )
    return first if limits.quota.holds(first) else first_shape(limits, small=small)


def _cpus(
    capacity: PlatformCapacity, workers: RoleWish, servers: RoleWish, quota: float, *, bounded: bool
) -> dict[str, tuple[float, float]]:
    node = capacity.node_cpu if capacity.own else NODE_SHARE * (capacity.node_cpu or UNKNOWN_NODE)
    worker_least, server_least = min(LEAST_WORKER, _tenths(quota * WORKERS_SHARE)), min(LEAST_SERVER, quota / 4)
    if bounded:  # for the numbers that the user gave, the user's quota may allow only sizes below the usual minimum
        some, others = workers.count or workers.min or 1, servers.count or servers.min or 1
        worker_least = max(CPU_STEP, min(worker_least, _tenths(quota * WORKERS_SHARE / some)))
        server_least = max(CPU_STEP / 2, min(server_least, (quota - some * worker_least) / others))
    worker_most = max(worker_least, min(MOST_WORKER, _tenths(node), _tenths(quota - server_least)))
    server_most = max(server_least, min(max(FEW, node / 8), _tenths(node), _tenths(quota - worker_least)))
    found = {"worker_cpu": (worker_least, worker_most), "server_cpu": (server_least, server_most)}
    if not capacity.holds:
        found = {"worker_cpu": (USUAL_WORKER, USUAL_WORKER), "server_cpu": (USUAL_SERVER, USUAL_SERVER)}
    for name, cpu in (("worker_cpu", workers.cpu), ("server_cpu", servers.cpu)):
        if cpu is not None:
            found[name] = (cpu, cpu)
    return found


def _asked_for(wish: RoleWish) -> bool:
    return any(value is not None for value in (wish.count, wish.min, wish.cpu, wish.memory))


def _tenths(cores: float) -> float:
    return round(math.floor(cores / CPU_STEP + 1e-6) * CPU_STEP, 9)


def _counts(wish: RoleWish, room: int, most: int) -> tuple[int, int]:
    if wish.count is not None:
        return wish.count, wish.count
    low = wish.min or 1
    high = max(1, min(room, most))
    return low, max(low, min(high, wish.max) if wish.max is not None else high)
