"""Pure. Adds, drains and replaces workers and servers.

If the rank of a removed worker is used again, the new worker has a higher incarnation. An added server gets a new
rank, so that no client confuses it with a server that has left. Next: `master.servers.migration` moves slots.
"""

import msgspec

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.job.core import actions, events, nodes
from springtide.job.core.job_core import JobCore
from springtide.job.core.nodes import NodeState, RoleNode


class RoleChange(msgspec.Struct, frozen=True, kw_only=True):
    """Roles that join and leave."""

    drain: tuple[RoleNode, ...] = ()
    """Workers that finish their batch and then leave."""
    drop: tuple[RoleNode, ...] = ()
    """Workers that leave without having joined, so that they have nothing to finish."""
    add: tuple[Role, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{verb} {', '.join(str(role) for role in roles)}"
            for verb, roles in (
                ("add", self.add),
                ("drain", [node.role for node in self.drain]),
                ("drop", [node.role for node in self.drop]),
            )
            if roles
        ]
        return ", ".join(parts) or "no role changes"


def worker_change(roles: dict[str, RoleNode], workers: int) -> RoleChange:
    """Return the change from the active workers to `workers` workers: the highest ranks leave, and the lowest free
    ranks join.

    A worker whose script has ended does not count, and its rank is not used again.
    """
    if workers < 1:
        raise errors.BadInput(f"{workers} workers: a job needs at least one; `springtide stop` ends it")
    own = nodes.of_kind(roles, RoleKind.WORKER)
    active = [node for node in own if node.active]
    leaving = active[workers:]
    removed = [node.role for node in own if node.state is NodeState.GONE and node.departure.removed]
    new = [Role(RoleKind.WORKER, rank) for rank in range(len(own), len(own) + workers)]
    return RoleChange(
        drain=tuple(node for node in leaving if node.state is NodeState.JOINED),
        drop=tuple(node for node in leaving if node.state is NodeState.EXPECTED),
        add=tuple([*removed, *new][: max(0, workers - len(active))]),
    )


def add_workers(state: JobCore, added: RoleChange, at: float) -> None:
    for role in added.add:
        state.add_role(role, at=at)


def scale_workers(state: JobCore, event: events.WorkersScaled, made: RoleChange, at: float) -> list[actions.JobAction]:
    fences: list[actions.JobAction] = []
    for node in made.drain:
        node.move(NodeState.DRAINING, at=at, why=event.why)
    for node in made.drop:
        node.remove(at=at, why=event.why)
        fences.append(actions.FenceWorker(node.role, node.incarnation, event.why))
    add_workers(state, made, at)
    state.planned.note_change(at, planned=event.planned, asked="workers", pinned=event.pinned)
    before, state.workers, state.short.workers = state.workers, event.workers, 0
    when = ", and form a new bsp group before the next shard" if state.bsp.members else ""
    decision = state.decide(f"scale from {before} to {event.workers} workers: {made}{when}", event.why)
    return [*fences, decision, *state.end_if_done()]


MOST_SERVERS = 64  # most servers that the master starts without a user's request
Reasoned = tuple[str, str]
ServerChange = events.ServersScaled | events.ServerReplaced


def change_servers(state: JobCore, event: ServerChange, at: float) -> Reasoned:
    """Change the number of servers, or replace one server. Raise BadInput if the change is impossible at present."""
    state.refuse_if_draining()
    if not state.safety.placed:
        raise errors.BadInput(f"job {state.spec.name} is starting: its servers are not ready yet; try again")
    match event:
        case events.ServersScaled():
            return scale_servers(state, event, at)
        case events.ServerReplaced():
            return replace_server(state, event, at)


def scale_servers(state: JobCore, event: events.ServersScaled, at: float) -> Reasoned:
    what = server_change(state.nodes, event.servers, state.spec)
    for node in what.drain:
        node.move(NodeState.DRAINING, at=at, why=event.why)
    for node in what.drop:
        node.remove(at=at, why=event.why)
    for role in what.add:
        state.add_role(role, at=at).coming = True
    state.planned.note_change(at, planned=event.planned, asked="servers", pinned=event.pinned)
    before, state.servers_wanted, state.short.servers = state.servers_wanted, event.servers, 0
    return f"scale from {before} to {event.servers} servers: {what}", event.why


def double_servers(state: JobCore, at: float) -> Reasoned | None:
    """Double the number of servers after an out-of-memory kill. Return None if the change is impossible or already
    under way.

    The killed server is relaunched with more memory, to restore its slots. Some of its slots can then move to the new
    servers.
    """
    servers = min(2 * state.servers_wanted, state.spec.slots, MOST_SERVERS)
    coming = any(node.coming for node in state.of_kind(RoleKind.SERVER) if node.active)
    if state.bsp.in_step or state.phase is not JobPhase.RUNNING or coming or servers <= state.servers_wanted:
        return None
    return scale_servers(
        state, events.ServersScaled(servers, "a server was killed for lack of memory: rows need more memory"), at
    )


def replace_server(state: JobCore, asked: events.ServerReplaced, at: float) -> Reasoned:
    """Add a server. The replaced server drains when the new one is ready."""
    node = state.node(Role(RoleKind.SERVER, asked.rank))
    if node.state is not NodeState.JOINED or node.departure.replaced:
        raise errors.BadInput(f"{node.role} is {node.state}: it cannot be replaced now")
    node.departure.replaced, node.departure.shunned = True, asked.at_once
    new = state.add_role(Role(RoleKind.SERVER, len(state.of_kind(RoleKind.SERVER))), at=at)
    new.coming, new.cpu, new.memory = True, node.cpu, node.memory
    first = ", and move its slots to its peers at once" if asked.at_once else ""
    return f"replace {node.role} by {new.role}{first}", asked.why


def give_up_server(state: JobCore, node: RoleNode, why: str, at: float) -> Reasoned:
    node.remove(at=at, why=why)
    servers = state.of_kind(RoleKind.SERVER)
    stays = next((server for server in servers if server.departure.replaced and server.active), None)
    if stays is not None:
        stays.departure.replaced = stays.departure.shunned = False
        return f"keep {stays.role}, because its replacement {node.role} is not coming", why
    state.servers_wanted -= 1
    return f"continue with {state.servers_wanted} servers, without {node.role}", why


def server_change(roles: dict[str, RoleNode], servers: int, spec: JobSpec) -> RoleChange:
    """Return the change from the active servers to `servers` servers: the highest ranks leave, and new ranks join.

    If a server that must leave is lost, its next incarnation first restores its slots, and then drains
    (`drain_surplus`).
    """
    if servers < 1:
        raise errors.BadInput(f"{servers} servers: a job needs at least one; `springtide stop` ends it")
    if servers > spec.slots:
        raise errors.BadInput(f"{servers} servers for {spec.slots} slots: expected at most one server per slot")
    own = nodes.of_kind(roles, RoleKind.SERVER)
    active = sorted((node for node in own if node.active), key=lambda node: (node.departure.replaced, node.role))
    leaving = active[servers:]
    staying = sum(not node.departure.replaced for node in active)
    new = range(len(own), len(own) + max(0, servers - staying))
    return RoleChange(
        drain=tuple(node for node in leaving if node.state is NodeState.JOINED and not node.coming),
        drop=tuple(node for node in leaving if node.coming),
        add=tuple(Role(RoleKind.SERVER, rank) for rank in new),
    )


def drain_surplus(roles: dict[str, RoleNode], servers: int, at: float) -> None:
    joined = [node for node in nodes.needed_servers(roles) if node.state is NodeState.JOINED]
    for node in sorted(joined, key=lambda node: (node.departure.replaced, node.role))[servers:]:
        replaced = node.departure.replaced
        why = "another server has taken its place" if replaced else "the job wants fewer servers"
        node.move(NodeState.DRAINING, at=at, why=why)
