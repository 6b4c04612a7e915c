"""Builds the planner's view of a job (a `JobView` without profiles) from the master's record, guards and
measurements.

Next: `master.autoscale.loop` adds profiles to the view and passes it to an `Adviser`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.core.shape import NO_NEED, MemoryNeed, Shape, ShapeBounds
from springtide.domain.model import tables
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import FindingKind, GuardFinding, JobView, PastJob, RoleUse, TrainingProgress
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.planning_config import Feature, PlanningStage
from springtide.job.core import events
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import plan
from springtide.job.state import JobState
from springtide.master.autoscale.profiler import Profiler
from springtide.master.core.record import JobRecord
from springtide.master.servers.guards import ServerGuards
from springtide.planning.guards import memory

BANDWIDTH = 4e9
"""Bandwidth of one loopback connection on a typical machine, in bytes a second. The value only scales a fitted
coefficient."""
FLOAT_BYTES = 4
RECENT_S = 60.0  # seconds for which the view shows a problem that a guard found but could not solve
ROOM = 1.15
"""Factor between the highest memory use that was observed and the memory planned for a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSources:
    """Parts of the master from which a view gets its facts."""

    name: str
    """Name of the run, which is unique; the job's name is not."""
    record: JobRecord
    watching: Profiler
    guards: ServerGuards
    usage: Mapping[Role, RoleUsage]


def view(sources: ViewSources, *, now: float) -> JobView | None:
    """Return the job's view without profiles; None while the job changes or recovers, or before it has data."""
    state, book, era = sources.record.state, sources.record.book, sources.watching.era
    if era is None or not book.passes:
        return None
    found, changed_at = facts(sources.record), state.planned.changed_at
    return JobView(
        name=sources.name,
        facts=found,
        bounds=bounds(state, book.largest_group),
        identity=replace(state.spec.planning.identity, features=features(sources.record, found)),
        shape=era.shape,
        requested=first_shape(state),
        need=need(sources),
        progress=TrainingProgress(
            started_at=era.since if changed_at is None else 0.0,
            last_change_at=None if changed_at is None else max(era.since, changed_at),
            samples_done=float(book.samples_done),
            samples_total=samples_total(book),
        ),
        stage=state.planned.stage,
        uses=uses(sources),
        launches=tuple(sources.watching.launches),
        findings=findings(sources, now=now),
    )


def past(sources: ViewSources, throughput: float | None, *, ended_at: float) -> PastJob:
    """Return the finished job's entry for the history. If the job ended while it was sampled, the entry has no shape
    for similar jobs.
    """
    state = sources.record.state
    sized = state.planned.stage in (PlanningStage.OPTIMIZING, PlanningStage.ADJUSTING)
    found = facts(sources.record) if sources.record.book.passes else None
    return PastJob(
        name=sources.name,
        user=state.spec.planning.identity.user,
        features=features(sources.record, found),
        initial=first_shape(state),
        shape=plan.shape_of(state) if sized else None,
        finished=state.phase is JobPhase.FINISHED,
        ended_at=ended_at,
        throughput=throughput,
        need=need(sources),
        facts=found,
    )


def first_shape(state: JobState) -> Shape:
    spec, bounds = state.spec, state.spec.planning.bounds
    assert bounds is not None
    return Shape(
        workers=spec.workers,
        servers=spec.servers,
        worker_cpu=spec.worker_cpu or bounds.least.worker_cpu,
        server_cpu=spec.server_cpu or bounds.least.server_cpu,
        worker_memory=spec.worker_memory or 0,
        server_memory=spec.server_memory or 0,
        worker_gpu=spec.worker_gpu or 0.0,
    )


def facts(record: JobRecord) -> ModelFacts:
    """Return the fixed inputs of the performance model. Unknown inputs are set to 1, because they only scale a fitted
    coefficient."""
    made = outline_of(record)
    dense = sum(FLOAT_BYTES * math.prod(tensor.shape) for tensor in made.dense)
    dim = sum(max(1, table.dim) * max(1, len(table.paths)) for table in made.tables)
    card = record.book.passes[-1].card
    return ModelFacts(
        dense_bytes=float(max(1, dense)),
        bandwidth=BANDWIDTH,
        dim=float(max(1, dim)),
        batch=batch_of(record),
        group=card.batch_size if card.in_step else 0,
    )


def bounds(state: JobState, largest: int | None) -> ShapeBounds:
    limits = plan.bounds_of(state)
    if largest is None or limits.most.workers <= largest:
        return limits
    return replace(limits, most=replace(limits.most, workers=max(largest, limits.least.workers)))


def batch_of(record: JobRecord) -> int:
    """Return the samples in one step of one worker. A bsp group shares a batch."""
    card = record.book.passes[-1].card
    return max(1, -(-card.batch_size // record.state.workers) if card.in_step else card.batch_size)


def outline_of(record: JobRecord) -> tables.Outline:
    return record.shared.load(tables.SHARED_KEY, tables.Outline, tables.Outline())


def features(record: JobRecord, found: ModelFacts | None) -> dict[str, Feature]:
    spec = record.state.spec
    known: dict[str, Feature] = {**spec.planning.identity.features, "sync": spec.sync}
    if found is not None:
        made = outline_of(record)
        known |= {
            "tables": float(len(made.tables)),
            "dim": found.dim,
            "dense_bytes": found.dense_bytes,
            "batch": float(found.batch),
            "samples": float(samples_total(record.book) or 0.0),
        }
    return known


def samples_total(book: JobLedger) -> float | None:
    """Return the number of samples in all passes that have begun; None if the length of a pass is unknown."""
    if not book.passes or any(data_pass.card.endless or data_pass.card.stream is not None for data_pass in book.passes):
        return None
    return float(sum(data_pass.card.samples_used * data_pass.card.epochs for data_pass in book.passes))


def need(sources: ViewSources) -> MemoryNeed:
    sizes, ahead = sources.record.state.planned.sizes, sources.guards.ahead
    worker = 0
    if sizes[RoleKind.WORKER].memory:
        used = [used.memory for role, used in sources.usage.items() if role.kind is RoleKind.WORKER]
        worker = math.ceil(ROOM * max(used, default=0))
    if not sizes[RoleKind.SERVER].memory or not ahead:
        return MemoryNeed(worker=worker) if worker else NO_NEED
    usable = 1 - memory.SPARE
    return MemoryNeed(
        worker=worker,
        server=math.ceil(max(forecast.static for forecast in ahead) / usable),
        rows=math.ceil(memory.SLACK * sum(forecast.live_at_end for forecast in ahead) / usable),
    )


def servers(state: JobState) -> list[RoleNode]:
    """Return the serving servers by rank. Planning numbers servers from 0 without gaps, while the ranks of servers can
    have gaps."""
    return [node for node in state.of_kind(RoleKind.SERVER) if node.state is NodeState.JOINED and not node.coming]


def uses(sources: ViewSources) -> tuple[RoleUse, ...]:
    state = sources.record.state
    now = plan.shape_of(state)
    workers = [node for node in state.of_kind(RoleKind.WORKER) if node.state is NodeState.JOINED]
    found = []
    for nodes, usual in ((workers, now.worker_cpu), (servers(state), now.server_cpu)):
        for place, node in enumerate(nodes):
            used = sources.watching.cpu_used(Life(node.role, node.incarnation))
            held = sources.usage.get(node.role)
            if used is not None and held is not None:
                found.append(
                    RoleUse(
                        role=Role(node.role.kind, place),
                        cpu_used=used,
                        cpu=node.cpu or usual,
                        memory_used=held.memory,
                        memory=node.memory or 0,
                    )
                )
    return tuple(found)


def findings(sources: ViewSources, *, now: float) -> tuple[GuardFinding, ...]:
    record, found = sources.record, []
    changed_at = record.state.planned.changed_at or 0.0
    for rank, halvings in sorted(record.book.holders.halvings.items()):
        if halvings:
            role = Role(RoleKind.WORKER, rank)
            found.append(
                GuardFinding(trouble=FindingKind.STRAGGLER, role=role, why=f"its leases were halved {halvings} times")
            )
    for node in record.state.nodes.values():
        # leave out data workers, because planning does not control them
        own = node.role.kind is not RoleKind.DATA_WORKER
        if own and node.faults.oom_kills and node.since > changed_at and node.state is not NodeState.GONE:
            why = f"killed for lack of memory {node.faults.oom_kills} times"
            found.append(GuardFinding(trouble=FindingKind.OOM, role=node.role, why=why))
    refused = sources.guards.refused
    if refused is not None and now - refused[0] <= RECENT_S:
        found += _unmended(refused[1], refused[2])
    return tuple(found)


def _unmended(event: events.JobEvent, why: str) -> list[GuardFinding]:
    match event:
        case events.ServersScaled(wanted):
            return [GuardFinding(trouble=FindingKind.MEMORY, role=Role(RoleKind.SERVER), why=why, servers=wanted)]
        case events.ServerReplaced(rank):
            return [GuardFinding(trouble=FindingKind.SLOW_SERVER, role=Role(RoleKind.SERVER, rank), why=why)]
        case _:
            return []
