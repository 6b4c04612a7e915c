"""Pure. Carries out a plan: computes the job's present shape and bounds, and chooses the next change.

Only one field of the shape changes at a time. No intermediate shape may exceed the quota (under a brain, the larger
of the present and the target shape). A change that grows one role may therefore wait until another role has shrunk.
"""

from dataclasses import replace

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import UNBOUNDED, ResourceBudget, Shape, ShapeBounds, resources_of
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import events
from springtide.job.core.job_core import BOUNDED, JobCore, RoleSize
from springtide.job.core.nodes import NodeState

Reasoned = tuple[str, str]
PlanEvent = events.RolesResized | events.PlanTaken | events.PlanEnded | events.BoundsChanged
Fields = tuple[str, ...]
WORKERS, SERVERS = ("workers",), ("servers",)
WORKER_SIZE, SERVER_SIZE = ("worker_cpu", "worker_memory"), ("server_cpu", "server_memory")


def apply(state: JobCore, event: PlanEvent, at: float) -> Reasoned | None:
    state.refuse_if_draining()
    match event:
        case events.PlanTaken():
            return state.planned.accept(event, at), event.why
        case events.PlanEnded():
            decision = state.planned.end(event)
            return (decision, event.why) if decision else None
        case events.RolesResized():
            return _resize(state, event, at)
        case events.BoundsChanged():
            return _rebound(state, event)


def _resize(state: JobCore, event: events.RolesResized, at: float) -> Reasoned:
    size = RoleSize(cpu=event.cpu, memory=event.memory)
    state.planned.sizes[event.kind] = size
    state.planned.note_change(at, planned=True, asked=f"{event.kind}_cpu")
    for node in state.of_kind(event.kind):
        if node.state is not NodeState.GONE:
            node.cpu, node.memory = size.cpu, size.memory
    cores = "all cores" if size.cpu is None else f"{size.cpu:g} CPU"
    return f"give each {event.kind} {cores}", event.why


def _rebound(state: JobCore, event: events.BoundsChanged) -> Reasoned:
    given = {name: limits for name in BOUNDED if (limits := getattr(event, name)) is not None}
    for name, (least, most) in given.items():
        if not 1 <= least <= most:
            raise errors.BadInput(
                f"bounds: {name} from {least} to {most}; expected 1 or more, the least not above the most"
            )
    state.planned.bound(given)
    for name in given:
        setattr(state.short, name, 0)  # these missing roles were requested under earlier bounds of the job
    return "plan with " + ", ".join(f"{least} to {most} {name}" for name, (least, most) in given.items()), event.why


def moves_into_bounds(state: JobCore, why: str) -> list[events.WorkersScaled | events.ServersScaled]:
    """Return the moves that bring the job into its bounds. The servers of a bsp group stay."""
    moves: list[events.WorkersScaled | events.ServersScaled] = []
    limits = state.planned.limits
    now = {"servers": state.servers_wanted, "workers": state.workers}
    inside = {name: max(limits[name][0], min(now[name], limits[name][1])) for name in now if name in limits}
    other_servers = inside.get("servers", now["servers"]) != now["servers"]
    if other_servers and state.safety.placed and not state.bsp.in_step:
        moves.append(events.ServersScaled(inside["servers"], why))
    if inside.get("workers", now["workers"]) != now["workers"]:
        moves.append(events.WorkersScaled(inside["workers"], why))
    return moves


def shape_of(state: JobCore) -> Shape:
    """Return the wanted shape of the job. If a role has no CPU limit, its lower bound counts."""
    bounds = state.spec.planning.bounds
    assert bounds is not None
    sizes = state.planned.sizes
    return Shape(
        workers=state.workers,
        servers=state.servers_wanted,
        worker_cpu=sizes[RoleKind.WORKER].cpu or bounds.least.worker_cpu,
        server_cpu=sizes[RoleKind.SERVER].cpu or bounds.least.server_cpu,
        worker_memory=sizes[RoleKind.WORKER].memory or 0,
        server_memory=sizes[RoleKind.SERVER].memory or 0,
        worker_gpu=state.spec.worker_gpu or 0.0,
    )


def bounds_of(state: JobCore) -> ShapeBounds:
    """Return the job's bounds. A number is fixed if the user set it, or if bsp forbids changing it.

    A bsp group may get more or fewer workers, but its servers stay. The quota does not include the cores of data
    workers, but is never less than the cores that workers and servers already have.
    """
    bounds, now, planned = state.spec.planning.bounds, shape_of(state), state.planned
    assert bounds is not None
    pinned = (*planned.pinned, "servers") if state.bsp.in_step else planned.pinned
    fixed = {name: getattr(now, name) for name in BOUNDED if name in pinned}
    least, most = (
        replace(end, **{name: pair[index] for name, pair in planned.limits.items()} | fixed)
        for index, end in enumerate((bounds.least, bounds.most))
    )
    for name in BOUNDED:
        # no host has resources for more processes of this role, so plans must not ask for more at the moment
        if getattr(state.short, name):
            fewest, here = getattr(least, name), getattr(now, name)
            least, most = replace(least, **{name: min(fewest, here)}), replace(most, **{name: here})
    quota, fed = bounds.quota, state.feeding.cores(state.spec.feeding)
    if fed:
        quota = replace(quota, cpu=max(quota.cpu - fed, min(quota.cpu, now.cpu)))
    if not quota.holds(least):  # allow the number, because the user is responsible for numbers that the user set
        quota = quota.joined(resources_of(least), max)
    return replace(bounds, least=least, most=most, quota=quota)


def unsettled(state: JobCore, *, moving: int) -> str:
    """Return why the running roles differ from the wanted roles; empty if they match. While they differ, measuring and
    planning pause.
    """
    if state.phase is not JobPhase.RUNNING:
        return f"the job is {state.phase}"
    if state.healing:
        return "a server is lost and not back yet"
    if moving:
        return f"{moving} slots are moving"
    for kind, wanted in ((RoleKind.SERVER, state.servers_wanted), (RoleKind.WORKER, state.workers)):
        nodes = state.of_kind(kind)
        if any(node.state is NodeState.DRAINING for node in nodes):
            return f"a {kind} is draining"
        if any(node.departure.finished and not node.departure.removed for node in nodes):
            return "a worker's script has ended"
        if any(node.state is NodeState.EXPECTED or node.departure.replaced for node in nodes):
            return f"a {kind} has not joined yet"
        joined = sum(node.state is NodeState.JOINED for node in nodes)
        if joined != wanted:
            return f"{joined} of {wanted} {kind}s have joined"
    members = state.bsp.members
    if state.bsp.in_step and members and len(members) != state.workers:
        return f"{len(members)} of {state.workers} workers are in the bsp group; a new group forms soon"
    return ""


# ---- moves ----


def next_move(state: JobCore) -> events.JobEvent | None:
    planned, now = state.planned, shape_of(state)
    target = planned.target
    if target is None:
        return None
    fields = next_fields(now, target, _room(state, now, target))
    if fields is None:
        return events.PlanEnded(planned.stage)
    if fields[0] in planned.asked:
        got, asked = getattr(now, fields[0]), getattr(target, fields[0])
        return events.PlanEnded(planned.stage, f"{fields[0]}: the plan asked for {asked:g}, and the job got {got:g}")
    return _event(state, fields, target)


def next_fields(now: Shape, target: Shape, quota: ResourceBudget) -> Fields | None:
    """Return the fields to change next on the way to the target; None if no move is left."""
    order = (WORKERS, WORKER_SIZE, SERVERS, SERVER_SIZE)
    left = [fields for fields in order if changed(now, target, fields) != now]
    thens = {fields: changed(now, target, fields) for fields in left}
    growing = [fields for fields, then in thens.items() if resources_of(then).exceeds(resources_of(now))]
    fits = [fields for fields in growing if quota.holds(thens[fields])]
    return next(iter(fits or [fields for fields in left if fields not in growing] or left), None)


def _room(state: JobCore, now: Shape, target: Shape) -> ResourceBudget:
    """Return the most resources that shapes on the way to the target may use: the job's quota. Under a brain, return
    the larger of the present and the target shape."""
    rules = state.spec.planning
    if rules.overlap:
        return UNBOUNDED
    if rules.adviser.brain:
        return resources_of(now).joined(resources_of(target), max)
    return bounds_of(state).quota


def changed(now: Shape, target: Shape, fields: Fields) -> Shape:
    return replace(now, **{name: getattr(target, name) for name in fields})


def _event(state: JobCore, fields: Fields, target: Shape) -> events.JobEvent:
    why = f"the plan is {target}"
    if fields == WORKERS:
        return events.WorkersScaled(target.workers, why, planned=True)
    if fields == SERVERS:
        return events.ServersScaled(target.servers, why, planned=True)
    kind = RoleKind.WORKER if fields == WORKER_SIZE else RoleKind.SERVER
    cpu, memory = (getattr(target, name) for name in fields)
    limited = state.planned.sizes[kind].cpu is not None
    return events.RolesResized(kind, cpu if limited else None, memory or None, why)
