"""Pure. What a bsp group means for the roles of a job: who is in it, who comes and goes only with it, how it goes back.

In: `job.state`, with the nodes and the incarnation of each rank of the group. When one can be formed:
`job.group.rendezvous`.

Rows on servers and dense parameters in workers are of one step. When a part of them is lost for good, a server's rows,
the parameters of all ranks, or rows that a lost worker had in its cache, everything goes back to the last checkpoint,
which is of one step too: every living process is followed by its next life. Servers bring the checkpoint back, workers
take the model from there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.recovery.bsp_breaks import GroupBreaks
from springtide.job.recovery.recovery import Relaunch
from springtide.job.scaling.workers import RoleChange

if TYPE_CHECKING:
    from springtide.job.state import JobState

ALL_LOST = "all ranks of the bsp group were lost, and with them its dense parameters"


def lost(nodes: Mapping[str, RoleNode], group: Mapping[int, int]) -> bool:
    """Whether a member is: then the others must form a new group."""
    return bool(who_is_lost(nodes, group))


def who_is_lost(nodes: Mapping[str, RoleNode], group: Mapping[int, int]) -> list[Role]:
    """Members whose process is not that of the group any more."""
    members = [(nodes[str(Role(RoleKind.WORKER, rank))], incarnation) for rank, incarnation in group.items()]
    return [node.role for node, life in members if node.incarnation != life or node.state not in ALIVE]


def rows_lost(nodes: Mapping[str, RoleNode], group: Mapping[int, int]) -> str:
    """Why a group that keeps rows in its workers cannot go on without one of them."""
    roles = who_is_lost(nodes, group)
    who = ", ".join(map(str, roles)) + (" was" if len(roles) == 1 else " were") if roles else "a member was"
    return f"{who} lost, and rows that only its cache had were lost with it"


def later(change: RoleChange, group: Mapping[int, int]) -> RoleChange:
    """What of a change can be done at once: a group changes between two shards, and lets others go then."""
    return RoleChange(drop=tuple(node for node in change.drop if node.role.rank not in group), add=change.add)


def let_go(nodes: Mapping[str, RoleNode], group: Mapping[int, int], *, at: float) -> None:
    """Workers that waited for this group and are not in it drain."""
    for node in nodes.values():
        joined = node.role.kind is RoleKind.WORKER and node.state is NodeState.JOINED
        if joined and node.role.rank not in group:
            node.move(NodeState.DRAINING, at=at, why="the group goes on without it")


def formed(state: "JobState", members: tuple[LeaseHolder, ...], why: str, at: float) -> list[actions.Action]:
    """These are the group from now on."""
    note_formed(state.safety.breaks, state, members, at=at)
    state.in_step, state.generation = True, state.generation + 1
    state.group = {holder.rank: holder.incarnation for holder in members}
    if state.phase is JobPhase.RUNNING:
        let_go(state.nodes, state.group, at=at)
    return [state.decide(f"{words(state.group)}, number {state.generation}", why)]


def note_formed(breaks: GroupBreaks, state: "JobState", members: tuple[LeaseHolder, ...], *, at: float) -> None:
    """What a group of these members says of the losses before it."""
    since = {node.role.rank: node.since for node in state.nodes.values() if node.role.kind is RoleKind.WORKER}
    breaks.formed(state.group, members, since, start=state.started_at, at=at)


def go_back(state: "JobState", why: str, *, at: float) -> list[actions.Action]:
    """Every living worker and server begins its next life, from the last checkpoint if there is one; frames of the
    generation so far are refused."""
    lost = [state.nodes[str(role)] for role in who_is_lost(state.nodes, state.group)]
    state.safety.breaks.went_back([node.since for node in lost if node.state is NodeState.EXPECTED], at=at)
    state.group, state.generation = {}, state.generation + 1
    anew = not state.safety.known
    state.safety.begun_anew += anew
    done: list[actions.Action] = [actions.RollBack(anew)]
    for node in state.nodes.values():
        if node.state is not NodeState.JOINED or node.role.kind is RoleKind.DATA_WORKER:
            continue
        over = actions.ServerLost if node.role.kind is RoleKind.SERVER else actions.FenceWorker
        done.append(over(node.role, node.incarnation, why))
        again = Relaunch(why=why, failures=node.failures, oom_kills=node.oom_kills, memory=node.memory)
        state.begin_again(node, again, 0.0, at)
    if anew:
        what = "train all again from the first sample on: no checkpoint is complete yet"
    else:
        what = f"take the bsp group back to {state.safety.newest}: all begin anew from it"
    return [*done, state.decide(what, why)]


def words(group: Mapping[int, int]) -> str:
    """The decision, for people."""
    return f"form a bsp group of {len(group)} worker{'' if len(group) == 1 else 's'}"
