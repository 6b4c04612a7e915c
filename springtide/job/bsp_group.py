"""Pure. The bsp group of a job: when the group forms, its members and leader, and its rollback to a checkpoint.

Rows on servers and dense parameters in workers must be from the same step. If the group loses a process for good,
every process is relaunched from the last checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide.domain.core.roles import RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.recovery import GroupBreaks, Relaunch
from springtide.job.scaling.roles import RoleChange

ALL_LOST = "all ranks of the bsp group were lost, so its dense parameters are lost too"


def rows_lost(roles: Mapping[str, RoleNode], group: Mapping[int, int]) -> str:
    """Explain why a bsp group cannot continue without a lost member, if only its workers hold some state."""
    lost = [str(node.role) for node in nodes.lost_members(roles, group)]
    who = ", ".join(lost) + (" was" if len(lost) == 1 else " were") if lost else "a member was"
    return f"{who} lost, together with cached rows or its position in the data"


def defer(change: RoleChange, group: Mapping[int, int]) -> RoleChange:
    """Return the part of a change that can be made now. Members of the group leave only between two shards."""
    return RoleChange(drop=tuple(node for node in change.drop if node.role.rank not in group), add=change.add)


def record_group(state: JobCore, members: tuple[LeaseHolder, ...], why: str, at: float) -> list[actions.JobAction]:
    """Make `members` the group. Drain waiting workers that are not among `members`."""
    note_formed(state.safety.breaks, state, members, at=at)
    group = state.bsp
    group.in_step, group.generation = True, group.generation + 1
    group.members = {holder.rank: holder.incarnation for holder in members}
    for node in state.of_kind(RoleKind.WORKER) if state.phase is JobPhase.RUNNING else ():
        if node.state is NodeState.JOINED and node.role.rank not in group.members:
            node.move(NodeState.DRAINING, at=at, why="the group continues without it")
    size = f"{len(members)} worker{'' if len(members) == 1 else 's'}"
    return [state.decide(f"form a bsp group of {size}, number {group.generation}", why)]


def note_formed(breaks: GroupBreaks, state: JobCore, members: tuple[LeaseHolder, ...], *, at: float) -> None:
    since = {node.role.rank: node.since for node in state.of_kind(RoleKind.WORKER)}
    breaks.formed(state.bsp.members, members, since, start=state.started_at, at=at)


def roll_back(state: JobCore, why: str, *, at: float) -> list[actions.JobAction]:
    """Relaunch every living worker and server, from the last checkpoint if there is one. A draining worker just ends.

    Increase the generation, so that servers reject frames of the previous group.
    """
    lost = nodes.lost_members(state.nodes, state.bsp.members)
    state.safety.breaks.went_back([node.since for node in lost if node.state is NodeState.EXPECTED], at=at)
    state.bsp.members, state.bsp.generation = {}, state.bsp.generation + 1
    anew = not state.safety.known
    state.safety.begun_anew += anew
    done: list[actions.JobAction] = [actions.RollBack(anew)]
    for node in state.nodes.values():
        if node.state not in ALIVE or node.role.kind is RoleKind.DATA_WORKER:
            continue
        over = actions.ServerLost if node.role.kind is RoleKind.SERVER else actions.FenceWorker
        done.append(over(node.role, node.incarnation, why))
        if node.state is NodeState.DRAINING and node.role.kind is RoleKind.WORKER:
            node.move(NodeState.GONE, at=at, why=why)  # otherwise it would train against servers that are about to end
            continue
        faults = node.faults
        again = Relaunch(why=why, failures=faults.crashes, oom_kills=faults.oom_kills, memory=node.memory)
        state.relaunch(node, again, 0.0, at)
    if anew:
        what = "restart training from the first sample, because no checkpoint is complete yet"
    else:
        what = f"roll the bsp group back to {state.safety.newest}: all processes restart from this checkpoint"
    return [*done, state.decide(what, why)]


def step_to_continue(on_servers: int, *, at_rest: bool, own: int, restored: int | None) -> int:
    """Return the step after which a new group continues.

    `on_servers`: the last step that is complete on all servers. `own`: the leader's last step. `restored`: the step of
    the model that the leader read from the servers, if no rank has a model. Unless a rank is in the middle of a step,
    the model knows its step. Servers may not: a server that has just received its first slots has seen no step.
    """
    if not at_rest:
        return on_servers
    return own if restored is None else restored


class GroupArrival(NamedTuple):
    """A worker that waits for a group to form."""

    fresh: bool = True
    """True for a new process, which does not have the group's model yet."""
    idle: bool = True
    resting: bool = False
    """True if the worker's script has ended, so that the worker stays only to pass its model on."""


class GroupFormation(msgspec.Struct, frozen=True, kw_only=True):
    """Members and leader of a new group."""

    members: tuple[LeaseHolder, ...]
    leader: LeaseHolder
    """Lowest rank that has a trained model."""
    known: bool
    """True if a rank has a trained model. Otherwise, all ranks start with the leader's untrained model."""
    resting: tuple[int, ...] = ()
    at_rest: bool = False
    """True if no rank has a step in progress. Slots may then move before the group continues."""
    over: bool = False
    """True if no rank continues to train: all scripts have ended, or a step cannot complete and the job is stopping
    anyway."""


def form_group(
    arrived: Mapping[LeaseHolder, GroupArrival], *, ranks: Sequence[int], active: Sequence[LeaseHolder], workers: int
) -> GroupFormation | None:
    """Return the new group, or None if the ranks must wait. `ranks` has the ranks of the previous group. `active` has
    the current incarnation of each rank."""
    own = [holder for holder in active if holder.rank in ranks] or list(active)
    if not own or any(holder not in arrived for holder in own):
        return None
    known = [holder for holder in own if not arrived[holder].fresh]
    if any(not arrived[holder].idle for holder in known):
        return _formed(own, arrived, over=len(own) < len(ranks))
    if any(holder not in arrived for holder in active):
        return None
    chosen = list(active[:workers])
    if known and not set(known) & set(chosen):
        chosen[-1] = known[0]
    return _formed(sorted(chosen), arrived, over=all(arrived[holder].resting for holder in chosen))


def _formed(
    members: Sequence[LeaseHolder], arrived: Mapping[LeaseHolder, GroupArrival], *, over: bool
) -> GroupFormation:
    known = [holder for holder in members if not arrived[holder].fresh]
    return GroupFormation(
        members=tuple(members),
        leader=(known or list(members))[0],
        known=bool(known),
        at_rest=all(arrived[holder].idle for holder in known),
        resting=tuple(holder.rank for holder in members if arrived[holder].resting),
        over=over,
    )
