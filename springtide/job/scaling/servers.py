"""Pure. Servers that come and go while a job trains: which are added, which drain, when a drained one may leave.

In: `job.state` with the nodes. Out: what was decided, with the reason. A rank is one server for the whole of a job: an
added server gets a new rank, so that no client takes it for one that has left. `embedding.placement.placement` decides
which slots move. Next: `master.servers.migration`.
"""

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.job.core import events, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.scaling.workers import RoleChange

MOST_SERVERS = 64  # that the master asks for by itself
Reasoned = tuple[str, str]
"""What was decided, and why."""
ServerChange = events.ServersScaled | events.ServerReplaced | events.ServerGranted


def change_servers(state: JobCore, event: ServerChange, at: float) -> Reasoned:
    """Want other servers: more or fewer, one in the place of another, one with more CPU; BadInput if that cannot be."""
    state.refuse_if_draining()
    if not state.safety.placed:
        raise errors.BadInput(f"job {state.spec.name} is starting: its servers are not ready yet; try again")
    match event:
        case events.ServersScaled():
            return scale(state, event, at)
        case events.ServerReplaced():
            return replace(state, event, at)
        case events.ServerGranted():
            return grant(state, event)


def scale(state: JobCore, event: events.ServersScaled, at: float) -> Reasoned:
    what = change(state.nodes, event.servers, state.spec)
    for node in what.drain:
        node.move(NodeState.DRAINING, at=at, why=event.why)
    for node in what.drop:
        node.remove(at=at, why=event.why)
    for role in what.add:
        state.add_role(role, at=at).coming = True
    state.planned.note_change(at, planned=event.planned, asked="servers", pinned=event.pinned)
    before, state.servers_wanted, state.short.servers = state.servers_wanted, event.servers, 0
    return f"scale from {before} to {event.servers} servers: {what}", event.why


def double(state: JobCore, at: float) -> Reasoned | None:
    """Twice as many servers, after one was killed for lack of memory; None where that cannot be, or has begun.

    The killed server needs more memory to restore its slots at all; with more servers they need not all stay there.
    """
    servers = min(2 * state.servers_wanted, state.spec.slots, MOST_SERVERS)
    coming = any(node.coming for node in state.of_kind(RoleKind.SERVER) if node.active)
    if state.bsp.in_step or state.phase is not JobPhase.RUNNING or coming or servers <= state.servers_wanted:
        return None
    return scale(state, events.ServersScaled(servers, "one was killed for want of memory: rows need more room"), at)


def replace(state: JobCore, asked: events.ServerReplaced, at: float) -> Reasoned:
    """Add a server; when it is ready the replaced one drains."""
    node = state.node(Role(RoleKind.SERVER, asked.rank))
    if node.state is not NodeState.JOINED or node.departure.replaced:
        raise errors.BadInput(f"{node.role} is {node.state}: it cannot be replaced now")
    node.departure.replaced, node.departure.shunned = True, asked.at_once
    new = state.add_role(Role(RoleKind.SERVER, len(state.of_kind(RoleKind.SERVER))), at=at)
    new.coming, new.cpu, new.memory = True, node.cpu, node.memory
    first = ", its slots go to its peers at once" if asked.at_once else ""
    return f"replace {node.role} by {new.role}{first}", asked.why


def grant(state: JobCore, more: events.ServerGranted) -> Reasoned:
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


def give_up(state: JobCore, node: RoleNode, why: str, at: float) -> Reasoned:
    """Continue without a server that never came up."""
    node.remove(at=at, why=why)
    servers = state.of_kind(RoleKind.SERVER)
    stays = next((server for server in servers if server.departure.replaced and server.active), None)
    if stays is not None:
        stays.departure.replaced = stays.departure.shunned = False
        return f"keep {stays.role}, without {node.role} in its place", why
    state.servers_wanted -= 1
    return f"go on with {state.servers_wanted} servers, without {node.role}", why


def change(roles: dict[str, RoleNode], servers: int, spec: JobSpec) -> RoleChange:
    """From the servers that are active now to so many: the highest ranks leave, new ranks come.

    A lost server that is to leave comes back first, for its slots, and drains then (`drain_surplus`).
    """
    if servers < 1:
        raise errors.BadInput(f"{servers} servers: a job needs one at least; `springtide stop` ends it")
    if servers > spec.slots:
        raise errors.BadInput(f"{servers} servers for {spec.slots} slots: at most one server a slot")
    own = nodes.of_kind(roles, RoleKind.SERVER)
    active = sorted((node for node in own if node.active), key=lambda node: (node.departure.replaced, node.role))
    leaving = active[servers:]
    new = range(len(own), len(own) + max(0, servers - len(active)))
    return RoleChange(
        drain=tuple(node for node in leaving if node.state is NodeState.JOINED and not node.coming),
        drop=tuple(node for node in leaving if node.coming),
        add=tuple(Role(RoleKind.SERVER, rank) for rank in new),
    )


def drain_surplus(roles: dict[str, RoleNode], servers: int, at: float) -> None:
    """One server more than is wanted is ready: drain the one that it replaces, or one that was lost on its way out."""
    joined = [node for node in nodes.needed_servers(roles) if node.state is NodeState.JOINED]
    for node in sorted(joined, key=lambda node: (node.departure.replaced, node.role))[servers:]:
        replaced = node.departure.replaced
        why = "another server has taken its place" if replaced else "it is not wanted any more"
        node.move(NodeState.DRAINING, at=at, why=why)
