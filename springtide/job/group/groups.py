"""Pure. The bsp group of a job: its members, changes that wait for it, and its rollback to a checkpoint.

In: `job.state`. Next: `job.group.rendezvous` decides when a group can form.

Rows on servers and dense parameters in workers belong to one step. The whole group rolls back to the last checkpoint if
a part of this state is lost for good. Examples are a server's rows, the parameters of all ranks, or rows that only a
lost worker's cache had. Every process is then relaunched. Servers restore the checkpoint, and workers take the model
from the servers.
"""

from collections.abc import Mapping

from springtide.domain.core.roles import RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.recovery.bsp_breaks import GroupBreaks
from springtide.job.recovery.recovery import Relaunch
from springtide.job.scaling.workers import RoleChange

ALL_LOST = "all ranks of the bsp group were lost, and with them its dense parameters"


def rows_lost(roles: Mapping[str, RoleNode], group: Mapping[int, int]) -> str:
    """Explain why a group that caches rows in its workers cannot continue without a lost member."""
    lost = [str(node.role) for node in nodes.lost_members(roles, group)]
    who = ", ".join(lost) + (" was" if len(lost) == 1 else " were") if lost else "a member was"
    return f"{who} lost, and rows that only its cache had were lost with it"


def defer(change: RoleChange, group: Mapping[int, int]) -> RoleChange:
    """Return the part of a change that can be made at once. Members leave a group only between two shards."""
    return RoleChange(drop=tuple(node for node in change.drop if node.role.rank not in group), add=change.add)


def form(state: JobCore, members: tuple[LeaseHolder, ...], why: str, at: float) -> list[actions.Action]:
    """Make these workers the group. Workers that waited with them and are not members drain."""
    note_formed(state.safety.breaks, state, members, at=at)
    group = state.bsp
    group.in_step, group.generation = True, group.generation + 1
    group.members = {holder.rank: holder.incarnation for holder in members}
    for node in state.of_kind(RoleKind.WORKER) if state.phase is JobPhase.RUNNING else ():
        if node.state is NodeState.JOINED and node.role.rank not in group.members:
            node.move(NodeState.DRAINING, at=at, why="the group goes on without it")
    size = f"{len(members)} worker{'' if len(members) == 1 else 's'}"
    return [state.decide(f"form a bsp group of {size}, number {group.generation}", why)]


def note_formed(breaks: GroupBreaks, state: JobCore, members: tuple[LeaseHolder, ...], *, at: float) -> None:
    """Record the losses that the formation of this group ends."""
    since = {node.role.rank: node.since for node in state.of_kind(RoleKind.WORKER)}
    breaks.formed(state.bsp.members, members, since, start=state.started_at, at=at)


def roll_back(state: JobCore, why: str, *, at: float) -> list[actions.Action]:
    """Relaunch every living worker and server, from the last checkpoint if there is one.

    The generation rises, so that servers reject frames of the previous group.
    """
    lost = nodes.lost_members(state.nodes, state.bsp.members)
    state.safety.breaks.went_back([node.since for node in lost if node.state is NodeState.EXPECTED], at=at)
    state.bsp.members, state.bsp.generation = {}, state.bsp.generation + 1
    anew = not state.safety.known
    state.safety.begun_anew += anew
    done: list[actions.Action] = [actions.RollBack(anew)]
    for node in state.nodes.values():
        if node.state is not NodeState.JOINED or node.role.kind is RoleKind.DATA_WORKER:
            continue
        over = actions.ServerLost if node.role.kind is RoleKind.SERVER else actions.FenceWorker
        done.append(over(node.role, node.incarnation, why))
        faults = node.faults
        again = Relaunch(why=why, failures=faults.crashes, oom_kills=faults.oom_kills, memory=node.memory)
        state.relaunch(node, again, 0.0, at)
    if anew:
        what = "train all again from the first sample on: no checkpoint is complete yet"
    else:
        what = f"take the bsp group back to {state.safety.newest}: all begin anew from it"
    return [*done, state.decide(what, why)]
