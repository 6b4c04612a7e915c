"""Pure. Servers that come and go while a job trains: who is added, who drains, and when a drained one may leave.

In: `job.state` with the nodes. Out: a `scaling.Change`, or the next thing that is due. A rank is one server for the
whole of a job: a server that is added gets a new one, so that no client takes it for one that has left. Which slots
move is not decided here (`embedding.placement.placement`), only who may hold some. Next: `master.servers.migration`.
"""

from typing import TYPE_CHECKING

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.job.core import events
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling import workers
from springtide.job.scaling.plan_state import PlanState

if TYPE_CHECKING:
    from springtide.job.state import JobState

MOST_SERVERS = 64  # that are asked for without a user's word
Reasoned = tuple[str, str]
"""What was decided, and why."""


Change = events.ServersScaled | events.ServerReplaced | events.ServerGranted


def change_servers(state: "JobState", wanted: Change, at: float) -> Reasoned:
    """Want other servers: more or fewer, one in the place of another, one with more CPU; BadInput if that cannot be."""
    name = state.spec.name
    if state.phase is JobPhase.DRAINING:
        raise errors.BadInput(f"job {name} is draining: {state.why}")
    if not state.safety.placed:
        raise errors.BadInput(f"job {name} is starting: its servers are not ready yet; try again")
    match wanted:
        case events.ServersScaled():
            return scale(state, wanted, at)
        case events.ServerReplaced():
            return replace(state, wanted, at)
        case events.ServerGranted():
            return grant(state, wanted)


def scale(state: "JobState", wanted: events.ServersScaled, at: float) -> Reasoned:
    """Want another number of servers."""
    what = change(state.nodes, wanted.servers, state.spec)
    for node in what.drain:
        node.move(NodeState.DRAINING, at=at, why=wanted.why)
    for node in what.drop:
        _remove(node, wanted.why, at)
    for role in what.add:
        add(state.nodes, role, state.planned, at=at)
    state.planned.changed(at, planned=wanted.planned, asked="servers", pinned=wanted.pinned)
    before, state.servers_wanted, state.short.servers = state.servers_wanted, wanted.servers, 0
    return f"scale from {before} to {wanted.servers} servers: {what}", wanted.why


def double(state: "JobState", at: float) -> Reasoned | None:
    """Twice as many servers, after one was killed for want of memory; None where that cannot be, or has begun.

    The one that was killed needs more memory to bring its slots back at all; that they need not stay there is what
    more servers are for.
    """
    servers = min(2 * state.servers_wanted, state.spec.slots, MOST_SERVERS)
    coming = any(node.coming for node in of(state.nodes) if node.active)
    if state.in_step or state.phase is not JobPhase.RUNNING or coming or servers <= state.servers_wanted:
        return None
    return scale(state, events.ServersScaled(servers, "one was killed for want of memory: rows need more room"), at)


def replace(state: "JobState", asked: events.ServerReplaced, at: float) -> Reasoned:
    """Want another server; when it is ready this one drains."""
    node = state.node(Role(RoleKind.SERVER, asked.rank))
    if node.state is not NodeState.JOINED or node.replaced:
        raise errors.BadInput(f"{node.role} is {node.state}: it cannot be replaced now")
    node.replaced, node.shunned = True, asked.at_once
    role = Role(RoleKind.SERVER, len(of(state.nodes)))
    add(state.nodes, role, state.planned, at=at)
    state.nodes[str(role)].cpu, state.nodes[str(role)].memory = node.cpu, node.memory
    first = ", its slots go to its peers at once" if asked.at_once else ""
    return f"replace {node.role} by {role}{first}", asked.why


def grant(state: "JobState", more: events.ServerGranted) -> Reasoned:
    """Let a server use more, or less again. The same life goes on: its agent changes the limit where it can."""
    node = state.node(Role(RoleKind.SERVER, more.rank))
    changes = []
    if more.cpu is not None and more.cpu != node.cpu:
        changes.append(f"{more.cpu:.2g} CPUs instead of {node.cpu or 0:.2g}")
        node.cpu = more.cpu
    if more.memory is not None and more.memory != node.memory:
        changes.append(f"{more.memory / 2**30:.2g} GiB instead of {(node.memory or 0) / 2**30:.2g}")
        node.memory = more.memory
    return f"give {node.role} {' and '.join(changes) or 'what it has'}", more.why


def leave(node: RoleNode, at: float) -> Reasoned | None:
    """A drained server goes, if it still is to."""
    if node.state is not NodeState.DRAINING:
        return None
    node.move(NodeState.GONE, at=at, why="its last slot has moved")
    return f"let {node.role} go", "its last slot has moved, and every worker knows"


def give_up(state: "JobState", node: RoleNode, why: str, at: float) -> Reasoned:
    """A server that never came up is not worth a job that trains."""
    _remove(node, why, at)
    stays = next((one for one in of(state.nodes) if one.replaced and one.active), None)
    if stays is not None:
        stays.replaced = stays.shunned = False
        return f"keep {stays.role}, without {node.role} in its place", why
    state.servers_wanted -= 1
    return f"go on with {state.servers_wanted} servers, without {node.role}", why


def check(state: "JobState") -> None:
    """What must hold while a job goes on."""
    gone = [node for node in of(state.nodes) if node.state is NodeState.GONE]
    assert all(node.removed for node in gone), "a job goes on without one of its servers"
    active = sum(node.active for node in of(state.nodes))
    assert state.servers_wanted <= active, f"{active} servers where {state.servers_wanted} are wanted"


def needed(nodes: dict[str, RoleNode]) -> list[RoleNode]:
    """Servers that have slots, or may have some."""
    return [node for node in of(nodes) if node.state is not NodeState.GONE and not node.coming]


def all_ready(nodes: dict[str, RoleNode]) -> bool:
    """Whether every server is there that anyone needs."""
    return all(node.address for node in needed(nodes))


def _remove(node: RoleNode, why: str, at: float) -> None:
    node.removed = True
    node.move(NodeState.GONE, at=at, why=why)


def change(nodes: dict[str, RoleNode], servers: int, spec: JobSpec) -> workers.RoleChange:
    """From the servers that are active now to so many: the highest ranks leave, new ranks come.

    One that was lost and is to leave comes back first, for its slots, and drains then (`drain_surplus`).
    """
    if servers < 1:
        raise errors.BadInput(f"{servers} servers: a job needs one at least; `springtide stop` ends it")
    if servers > spec.slots:
        raise errors.BadInput(f"{servers} servers for {spec.slots} slots: at most one server a slot")
    own = of(nodes)
    active = sorted((node for node in own if node.active), key=lambda node: (node.replaced, node.role))
    leaving = active[servers:]
    new = range(len(own), len(own) + max(0, servers - len(active)))
    return workers.RoleChange(
        drain=tuple(node for node in leaving if node.state is NodeState.JOINED and not node.coming),
        drop=tuple(node for node in leaving if node.coming),
        add=tuple(Role(RoleKind.SERVER, rank) for rank in new),
    )


def add(nodes: dict[str, RoleNode], role: Role, planned: PlanState, *, at: float) -> None:
    """Want a server that the job has not had. Until it is ready nobody waits for it."""
    workers.add(nodes, role, planned, at=at)
    nodes[str(role)].coming = True


def of(nodes: dict[str, RoleNode]) -> list[RoleNode]:
    """All servers that the job has ever had, by rank."""
    return sorted((node for node in nodes.values() if node.role.kind is RoleKind.SERVER), key=lambda node: node.role)


def staying(nodes: dict[str, RoleNode]) -> tuple[int, ...]:
    """Ranks of the servers that slots may be given to: ready, and not on their way out."""
    return tuple(
        node.role.rank for node in of(nodes) if node.address and node.active and not node.coming and not node.shunned
    )


def drain_surplus(nodes: dict[str, RoleNode], servers: int, at: float) -> None:
    """One server more than is wanted is ready: that which it replaces drains, or one that was lost on its way out."""
    joined = [node for node in needed(nodes) if node.state is NodeState.JOINED]
    for node in sorted(joined, key=lambda node: (node.replaced, node.role))[servers:]:
        why = "another server has taken its place" if node.replaced else "it is not wanted any more"
        node.move(NodeState.DRAINING, at=at, why=why)
