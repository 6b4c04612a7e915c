"""Builds the view of a simulated job that a real master would send to a policy.

In: a `SimulatedJob`. Out: a `JobView`; after the end of the job, a `PastJob`. The real `planning.guards.growth`
forecasts memory from the observations so far. Next: the policy.
"""

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import GIB, MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan.view import Feature, FindingKind, GuardFinding, JobView, PastJob, RoleUse
from springtide.planning.guards import growth
from springtide.sim.engine.job import JobEnd, SimulatedJob
from springtide.sim.world import world as physics
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import TrueJob

ROOM = 1.15
"""Requested memory over forecast memory."""
MOST_SERVERS, MOST_WORKERS = 64, 100
WORKERS = tuple(Role(RoleKind.WORKER, rank) for rank in range(512))
SERVERS = tuple(Role(RoleKind.SERVER, rank) for rank in range(1024))


def bounds(world: ClusterWorld) -> ShapeBounds:
    most = int(world.node_memory * GIB)
    return ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0),
        most=Shape(
            workers=MOST_WORKERS,
            servers=MOST_SERVERS,
            worker_cpu=world.node_cpu,
            server_cpu=world.node_cpu,
            worker_memory=most,
            server_memory=most,
        ),
        quota=ResourceBudget(cpu=world.job_cpu, memory=MOST_SERVERS * most),
    )


def unbounded(world: ClusterWorld) -> ShapeBounds:
    """Return the bounds of users without autoscaling: any pod that fits a node, and no quota."""
    most = int(world.node_memory * GIB)
    return ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=0.01, server_cpu=0.01),
        most=Shape(
            workers=1000,
            servers=1000,
            worker_cpu=world.node_cpu,
            server_cpu=world.node_cpu,
            worker_memory=most,
            server_memory=most,
        ),
    )


def features(job: TrueJob) -> dict[str, Feature]:
    """Return the features that are known at submission."""
    return {
        "user": job.user,
        "kind": job.kind,
        "model": job.model,
        "batch": float(job.facts.batch),
        "samples": job.samples,
        "dim": job.facts.dim,
    }


def need(running: SimulatedJob) -> MemoryNeed:
    """Return the forecast memory need of the job."""
    law = growth.fit(running.seen)
    rows = max(law.cautious(running.job.samples), physics.rows_bytes(running.job, running.done))
    return _roomy(running.job, rows)


def _roomy(job: TrueJob, rows: float) -> MemoryNeed:
    return MemoryNeed(
        worker=int(job.worker_bytes * ROOM), server=int(job.server_base_bytes * ROOM), rows=int(rows * ROOM)
    )


def view(running: SimulatedJob, limits: ShapeBounds) -> JobView:
    job = running.job
    return JobView(
        name=job.name,
        user=job.user,
        facts=job.facts,
        bounds=limits,
        features=features(job),
        shape=running.shape,
        extra_workers=running.extra_workers,
        requested=job.requested,
        need=running.need,
        submitted_at=job.arrives_at,
        started_at=running.started_at,
        last_change_at=running.last_change_at,
        samples_done=running.done,
        samples_total=job.samples,
        stage=running.stage,
        profiles=tuple(running.profiles),
        uses=uses(running),
        launches=tuple(running.launches),
        findings=findings(running),
    )


def uses(running: SimulatedJob) -> tuple[RoleUse, ...]:
    """Return the usage of each worker and server; server 0 is the hottest."""
    shape, speed = running.shape, running.speed
    if shape is None or speed is None:
        return ()
    of_workers, of_servers = running.use_errors
    worker_cpu = speed.worker_cores / running.at_work.workers
    mean = speed.server_cores / shape.servers
    hot = running.condition.hot if shape.servers > 1 else 1.0
    hottest = min(mean * hot, shape.server_cpu)
    others = (speed.server_cores - hottest) / max(shape.servers - 1, 1)
    full = physics.server_bytes(running.job, shape.servers, running.done)
    workers = tuple(
        RoleUse(
            role=role,
            cpu_used=worker_cpu * of_workers,
            cpu=shape.worker_cpu,
            memory_used=int(running.job.worker_bytes),
            memory=shape.worker_memory,
        )
        for role in WORKERS[: running.at_work.workers]
    )
    servers = tuple(
        RoleUse(
            role=role,
            cpu=shape.server_cpu,
            memory=shape.server_memory,
            cpu_used=of_servers * (hottest if role.rank == 0 else others),
            memory_used=int(full),
        )
        for role in SERVERS[: shape.servers]
    )
    return (*workers, *servers)


def findings(running: SimulatedJob) -> tuple[GuardFinding, ...]:
    """Return the findings of the guards. An OOM finding ends once the servers have more memory than at the failure."""
    shape = running.shape
    if shape is None:
        return ()
    found = []
    end = running.need.of_server(shape.servers)
    if 0 < shape.server_memory < end:
        said = f"servers will need {end / GIB:.1f} GiB and have {shape.server_memory / GIB:.1f}"
        found.append(GuardFinding(trouble=FindingKind.MEMORY, role=Role(RoleKind.SERVER), why=said))
    if running.ran_out is not None and _of_servers(shape) <= _of_servers(running.ran_out):
        found.append(
            GuardFinding(trouble=FindingKind.OOM, role=Role(RoleKind.SERVER), why="a server ran out of memory")
        )
    return tuple(found)


def _of_servers(shape: Shape) -> int:
    return shape.servers * shape.server_memory


def past(running: SimulatedJob, end: JobEnd, at: float) -> PastJob:
    """Return the record of a finished job. Its final memory counts as its need."""
    job = running.job
    rows = physics.rows_bytes(job, running.done)
    return PastJob(
        name=job.name,
        user=job.user,
        features=features(job),
        initial=running.initial,
        shape=running.shape,
        finished=end is JobEnd.FINISHED,
        ended_at=at,
        need=_roomy(job, rows),
        facts=job.facts,
    )
