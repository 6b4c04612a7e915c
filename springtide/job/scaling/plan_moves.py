"""Pure. Which move of a plan comes next, when the move before is over.

In: a job whose roles are all there, and its target. Out: one event for the state machine, or none. Next: `job.state`.

One thing changes at a time: the number of workers, what each may take, the number of servers, what each may take; the
servers first where they hold the job up. No shape on the way takes more than the quota, or, where a brain shares a
cluster out, than the larger of what was and what is to be: what would is preceded by what shrinks. Where a change may
overlap, what grows comes first. Workers of low priority beyond the quota go before everything else and come last. A
number that was asked for and did not come about is not asked for again: the plan is dropped, saying so.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import UNBOUNDED, ResourceBudget, Shape
from springtide.job.core import events
from springtide.job.scaling import plan_state, servers

if TYPE_CHECKING:
    from springtide.job.state import JobState

Fields = tuple[str, ...]
WORKERS, SERVERS = ("workers",), ("servers",)
WORKER_SIZE, SERVER_SIZE = ("worker_cpu", "worker_memory"), ("server_cpu", "server_memory")


def next_move(state: "JobState") -> events.Event | None:
    """The next move, or the end of the plan; None: no plan is being carried out."""
    target, now = state.planned.target, plan_state.shape_of(state)
    if target is None:
        return None
    extra, wanted = state.planned.extra, state.planned.extra_target
    if extra > wanted:
        return _extra(state, now, wanted)
    which = next_fields(now, target, _room(state, now, target), servers_first=state.planned.servers_first)
    if which is None and extra < wanted and "extra_workers" not in state.planned.asked:
        return _extra(state, now, wanted)
    if which is None:
        return _next_server(state)
    if which[0] in state.planned.asked:
        got, asked = getattr(now, which[0]), getattr(target, which[0])
        return events.PlanEnded(state.planned.stage, f"{which[0]}: {got:g} is what came of {asked:g}")
    return _event(state, which, target)


def next_fields(now: Shape, target: Shape, quota: ResourceBudget, *, servers_first: bool) -> Fields | None:
    """What changes next, on the way from one shape to another; None: nothing is left."""
    order = [WORKERS, WORKER_SIZE, SERVERS, SERVER_SIZE]
    if servers_first:
        order = [SERVERS, SERVER_SIZE, WORKERS, WORKER_SIZE]
    left = [some for some in order if changed(now, target, some) != now]
    growing = [some for some in left if not _shrinks(now, changed(now, target, some))]
    fits = [some for some in growing if quota.holds(changed(now, target, some))]
    return next(iter(fits or [some for some in left if some not in growing] or left), None)


def _room(state: "JobState", now: Shape, target: Shape) -> ResourceBudget:
    """What a shape on the way may take: the quota is the job's own, but beside others it was promised no more than the
    larger of the two shapes."""
    rules = state.spec.planning
    if rules.overlap:
        return UNBOUNDED
    if rules.brain:
        return ResourceBudget(cpu=max(now.cpu, target.cpu), memory=max(now.memory, target.memory))
    return plan_state.bounds_of(state).quota


def changed(now: Shape, target: Shape, some: Fields) -> Shape:
    """The shape now with some fields of the other."""
    return replace(now, **{name: getattr(target, name) for name in some})


def _shrinks(now: Shape, then: Shape) -> bool:
    return then.cpu <= now.cpu and then.memory <= now.memory


def _event(state: "JobState", which: Fields, target: Shape) -> events.Event:
    why = f"the plan is {target}"
    if which == WORKERS:
        extra = state.planned.extra
        return events.WorkersScaled(target.workers + extra, why, planned=True, extra=extra)
    if which == SERVERS:
        return events.ServersScaled(target.servers, why, planned=True)
    kind = RoleKind.WORKER if which == WORKER_SIZE else RoleKind.SERVER
    cpu, memory = (getattr(target, name) for name in which)
    limited = state.planned.sizes[kind].cpu is not None
    return events.RolesResized(kind, cpu if limited else None, memory or None, why)


def _extra(state: "JobState", now: Shape, wanted: int) -> events.Event:
    """Another number of workers of low priority; the rest stays as it is."""
    return events.WorkersScaled(now.workers + wanted, state.planned.why, planned=True, extra=wanted)


def _next_server(state: "JobState") -> events.Event:
    """Servers that are to have other cores than the rest, one after the other; then the plan is carried out."""
    nodes = {node.role.rank: node for node in servers.of(state.nodes) if node.active}
    for rank, cpu in state.planned.cpus:
        if rank in nodes and nodes[rank].cpu not in (None, cpu):
            return events.ServerGranted(rank, cpu, f"the plan is {state.planned.target}, and more for this one")
    return events.PlanEnded(state.planned.stage)
