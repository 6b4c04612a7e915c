"""Pure. Scales, replaces and relaunches the data workers of a job, which hold no state.

The loss of data workers never fails the job. After too many failures, or if trainers cannot hand over their data
program, the job continues without data workers.
"""

import itertools
from typing import TypeGuard

import msgspec

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.data_workers import StageTarget, stage_of
from springtide.domain.spec.job_spec import JobPhase
from springtide.job import recovery
from springtide.job.core import actions, events
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode

Overdue = events.RoleSilent | events.RoleLate | events.DrainOverdue
DataWorkerEvent = events.DataWorkersScaled | events.DataWorkersRefused | events.RoleReady | events.RoleExited | Overdue
MOST = 1024  # limit on data workers of a job: a larger number is a mistake


class FeedingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A data worker that serves trainers."""

    name: str
    """Name and incarnation of the data worker, such as `data-worker-1.2`. Connections to an earlier incarnation are
    useless."""
    rank: int
    address: str


def concerns(event: events.JobEvent) -> TypeGuard[DataWorkerEvent]:
    """Return True if this module handles the event. A different module handles joins and heartbeats, because these are
    the same for all roles.
    """
    match event:
        case events.DataWorkersScaled() | events.DataWorkersRefused():
            return True
        case events.RoleExited(ended):
            return ended.role.kind is RoleKind.DATA_WORKER
        case events.RoleReady(role) | events.RoleSilent(role) | events.RoleLate(role) | events.DrainOverdue(role):
            return role.kind is RoleKind.DATA_WORKER
        case _:
            return False


def apply(state: JobCore, event: DataWorkerEvent, at: float) -> list[actions.JobAction]:
    before = roster(state), state.feeding.wanted
    done = _apply(state, event, at)
    _relieve(state, at)
    state.feeding.epoch += (roster(state), state.feeding.wanted) != before
    return done


def replace(state: JobCore, node: RoleNode, why: str, at: float) -> list[actions.JobAction]:
    """Replace a data worker: add another data worker. The replaced data worker leaves as soon as the new one serves."""
    stages = max(1, len(state.feeding.stages))
    (role,) = _unused(state, stage_of(node.role.rank, stages), stages, 1)
    node.departure.replaced = True
    state.add_role(role, at=at).cpu = node.cpu
    return [state.decide(f"{role} in place of {node.role}, which feeds until then", why)]


def roster(state: JobCore) -> tuple[FeedingNode, ...]:
    """Return the data workers to which trainers may send indices, by rank."""
    return tuple(
        FeedingNode(name=f"{node.role}.{node.incarnation}", rank=node.role.rank, address=node.address)
        for node in of(state)
        if node.state is NodeState.JOINED and node.address
    )


def of(state: JobCore) -> list[RoleNode]:
    return state.of_kind(RoleKind.DATA_WORKER)


def _apply(state: JobCore, event: DataWorkerEvent, at: float) -> list[actions.JobAction]:
    match event:
        case events.DataWorkersScaled():
            return _scale(state, event, at)
        case events.DataWorkersRefused(why):
            return [] if state.feeding.given_up else _give_up(state, why, at)
        case events.RoleReady(role, address, incarnation):
            node = state.node(role)
            if not state.fenced(role, incarnation) and node.state in ALIVE:
                node.address = address
            return []
        case events.RoleExited(ended):
            return _exited(state, ended, at)
        case events.RoleSilent() | events.RoleLate() | events.DrainOverdue():
            return _overdue(state, event, at)


def _scale(state: JobCore, event: events.DataWorkersScaled, at: float) -> list[actions.JobAction]:
    own = state.feeding
    state.refuse_if_draining()
    if not 0 <= event.count <= MOST:
        raise errors.BadInput(f"{event.count} data workers: expected 0 to {MOST}")
    if event.stages and sum(stage.workers for stage in event.stages) != event.count:
        counts = [stage.workers for stage in event.stages]
        raise errors.BadInput(f"{event.count} data workers, but the stages have {counts}")
    if own.given_up and not event.pinned:
        raise errors.BadInput(f"job {state.spec.name} continues without data workers: {own.given_up}")
    before, own.given_up = own.wanted, ""
    state.short.data_workers = 0
    own.wanted, own.cpu, own.pinned, own.stages = event.count, event.cpu, own.pinned or event.pinned, event.stages
    targets = event.stages or (StageTarget(event.count, event.cpu),)
    coming, leaving = [], []
    for stage, target in enumerate(targets):
        came, left = _resize(state, stage, len(targets), target, event.why, at)
        coming += came
        leaving += left
    parts = [("add", coming), ("drain", leaving)]
    changed = ", ".join(f"{verb} {', '.join(map(str, roles))}" for verb, roles in parts if roles)
    what = f"scale from {before} to {event.count} data workers{_sizes(event)}: {changed or 'no role changes'}"
    return [state.decide(what, event.why)]


def _sizes(event: events.DataWorkersScaled) -> str:
    if not event.count:
        return ""
    if len(event.stages) > 1:
        sizes = (
            f"{stage.workers}" + (f" of {stage.cpu:g} CPU" if stage.cpu is not None else "") for stage in event.stages
        )
        return f" (stages: {', '.join(sizes)})"
    return "" if event.cpu is None else f" of {event.cpu:g} CPU"


def _resize(
    state: JobCore, stage: int, stages: int, target: StageTarget, why: str, at: float
) -> tuple[list[Role], list[Role]]:
    """Resize one stage. The data workers with the highest ranks leave, and new ones get the lowest free ranks. Return
    the joining and the leaving roles."""
    own = [node for node in of(state) if stage_of(node.role.rank, stages) == stage]
    active = [node for node in own if node.active and not node.departure.replaced]
    coming = _unused(state, stage, stages, max(0, target.workers - len(active)))
    leaving = active[target.workers :]
    for node in leaving:
        _fence(node, why, at)
    for role in coming:
        state.add_role(role, at=at)
    for node in of(state):
        if node.state is not NodeState.GONE and stage_of(node.role.rank, stages) == stage:
            node.cpu = target.cpu
    return coming, [node.role for node in leaving]


def _unused(state: JobCore, stage: int, stages: int, count: int) -> list[Role]:
    own = [node for node in of(state) if stage_of(node.role.rank, stages) == stage]
    known = {node.role.rank for node in own}
    free = [node.role for node in own if node.state is NodeState.GONE]
    ranks = (rank for rank in range(stages - 1 - stage, MOST * stages * 2, stages) if rank not in known)
    return [*free, *(Role(RoleKind.DATA_WORKER, rank) for rank in itertools.islice(ranks, count))][:count]


def _relieve(state: JobCore, at: float) -> None:
    """Let replaced data workers leave as soon as enough others serve."""
    targets = state.feeding.stages or (StageTarget(state.feeding.wanted, state.feeding.cpu),)
    for stage, target in enumerate(targets):
        own = [node for node in of(state) if stage_of(node.role.rank, len(targets)) == stage]
        joined = [node for node in own if node.state is NodeState.JOINED]
        if sum(bool(node.address) and not node.departure.replaced for node in joined) >= target.workers:
            for node in joined:
                if node.departure.replaced:
                    _fence(node, "another data worker feeds in its place", at)


def _fence(node: RoleNode, why: str, at: float) -> None:
    """Remove a data worker. A data worker that serves trainers gets no new indices, and exits when trainers have
    fetched all its batches."""
    node.departure.replaced = False
    if node.state is NodeState.JOINED:
        node.move(NodeState.DRAINING, at=at, why=why)
    else:
        node.remove(at=at, why=why)


def _exited(state: JobCore, ended: RoleExit, at: float) -> list[actions.JobAction]:
    node = state.node(ended.role)
    if ended.incarnation != node.incarnation or node.state is NodeState.GONE:
        return []
    if ended.unplaced and state.phase is not JobPhase.DRAINING:
        return _unplaced(state, node, ended, at) if node.state is NodeState.EXPECTED else []
    return _lost(state, node, recovery.after_exit(node, ended, state.spec, at=at), str(ended), at)


def _unplaced(state: JobCore, node: RoleNode, ended: RoleExit, at: float) -> list[actions.JobAction]:
    """Continue with fewer data workers, or cancel a replacement, because no host has resources for the new data
    worker.
    """
    _fence(node, str(ended), at)
    own = state.feeding
    stages = max(1, len(own.stages))
    for old in of(state):
        if old.departure.replaced and stage_of(old.role.rank, stages) == stage_of(node.role.rank, stages):
            old.departure.replaced = False
            return [state.decide(f"{old.role} continues, because no host has room for {node.role}", str(ended))]
    own.wanted -= 1
    if own.stages:
        short = stage_of(node.role.rank, len(own.stages))
        own.stages = tuple(
            target._replace(workers=target.workers - (stage == short)) for stage, target in enumerate(own.stages)
        )
    why = state.short.note(node, ended, at, data_workers=1)
    return [state.decide(f"continue with {own.wanted} data workers, without {node.role}", why)]


def _overdue(state: JobCore, event: Overdue, at: float) -> list[actions.JobAction]:
    node = state.node(event.role)
    if node.incarnation != event.incarnation or node.state not in (NodeState.EXPECTED, *ALIVE):
        return []
    if isinstance(event, events.DrainOverdue):
        node.move(NodeState.GONE, at=at, why=f"not drained within {state.spec.drain_s:g} s")
        return []
    limit_s = state.spec.join_s if isinstance(event, events.RoleLate) else state.patience_s(node.role.kind)
    verdict = recovery.after_silence(node, event.silent_s, limit_s, state.spec, at=at)
    return _lost(state, node, verdict, f"silent for {event.silent_s:.0f} s", at)


def _lost(
    state: JobCore, node: RoleNode, verdict: recovery.Relaunch | recovery.FailJob, how: str, at: float
) -> list[actions.JobAction]:
    if node.state is NodeState.DRAINING or state.phase is JobPhase.DRAINING or node.departure.replaced:
        node.departure.replaced = False
        node.move(NodeState.GONE, at=at, why=how)
        return []
    if isinstance(verdict, recovery.FailJob):
        node.move(NodeState.GONE, at=at, why=how)
        return _give_up(state, verdict.error, at)
    state.relaunch(node, verdict, verdict.after_s, at)
    return [state.decide(recovery.relaunch_text(node, verdict.after_s), verdict.why)]


def _give_up(state: JobCore, why: str, at: float) -> list[actions.JobAction]:
    state.feeding.wanted, state.feeding.stages, state.feeding.given_up = 0, (), why
    for node in of(state):
        if node.active:
            _fence(node, why, at)
    return [state.decide("continue without data workers: workers read data themselves", why)]
