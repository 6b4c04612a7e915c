"""Pure. One job as a state machine: `handle(event, at=...)` returns what to do. The clock is an argument.

In: `job.events`. Out: `job.actions`. This release's rules: a lost server or worker fails the job, saying which and why;
an exception in the training script fails it with that exception first.
"""

from dataclasses import dataclass, field

from springtide import errors
from springtide.domain.cluster import Role, RoleExit, RoleKind, WantedRole
from springtide.domain.job import Blame, JobSpec, Phase
from springtide.job import actions, events
from springtide.job.nodes import Node, NodeState

LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.DRAINING, Phase.FAILED}),
    Phase.RUNNING: frozenset({Phase.DRAINING, Phase.FINISHED, Phase.FAILED}),
    Phase.DRAINING: frozenset({Phase.STOPPED, Phase.FAILED}),
    Phase.FINISHED: frozenset(),
    Phase.STOPPED: frozenset(),
    Phase.FAILED: frozenset(),
}

EXPLANATION_S = 2.0  # a symptom (a closed connection, a worker that cannot reach a server) waits so long for its cause


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A symptom that fails the job unless the exit of some process explains it first."""

    since: float
    error: str
    trace: str = ""


@dataclass(slots=True)
class JobState:
    """All that decides what a job does next."""

    spec: JobSpec
    started_at: float = 0.0
    phase: Phase = Phase.STARTING
    why: str = "waiting for servers and workers to join"
    blame: Blame = Blame.NONE
    detail: str = ""
    nodes: dict[Role, Node] = field(default_factory=dict)
    suspicion: Suspicion | None = None

    def __post_init__(self) -> None:
        for kind, count in ((RoleKind.SERVER, self.spec.servers), (RoleKind.WORKER, self.spec.workers)):
            for rank in range(count):
                self.nodes[Role(kind, rank)] = Node(Role(kind, rank), heard_at=self.started_at)

    def handle(self, event: events.Event, *, at: float) -> list[actions.Action]:
        """Take in what happened; return what to do about it. After the end nothing changes any more."""
        if self.phase.over:
            return []
        match event:
            case events.Joined(role):
                return self._joined(self.node(role), at)
            case events.Ready(role, address):
                return self._ready(self.node(role), address, at)
            case events.Heard(role):
                self.node(role).heard_at = at
                return []
            case events.Finished(role):
                self.node(role).move(NodeState.FINISHED, at=at, why="the script ended")
                return self._settle()
            case events.Failed(role, error, trace, blame):
                return self._failed(role, error, trace, blame, at)
            case events.Gone(ended):
                return self._gone(ended, at)
            case events.HungUp(role):
                return self._hung_up(self.node(role), at)
            case events.StopAsked(why):
                return self._stop_asked(why)
            case events.Broken(error):
                return self._fail(error, Blame.INFRASTRUCTURE)
            case events.Tick():
                return self._tick(at)

    def of_kind(self, kind: RoleKind) -> list[Node]:
        """The nodes of one kind, by rank."""
        return [node for node in self.nodes.values() if node.role.kind is kind]

    def node(self, role: Role) -> Node:
        """The node of a role, or a word on what the job has."""
        if role not in self.nodes:
            raise errors.BadInput(
                f"{role} is not part of job {self.spec.name}, "
                f"which has {self.spec.servers} servers and {self.spec.workers} workers"
            )
        return self.nodes[role]

    def wanted(self) -> tuple[WantedRole, ...]:
        """The processes that must exist now; servers first."""
        limits = {
            RoleKind.SERVER: (self.spec.server_cpu, self.spec.server_memory),
            RoleKind.WORKER: (self.spec.worker_cpu, self.spec.worker_memory),
        }
        return tuple(
            WantedRole(role=node.role, cpu=limits[node.role.kind][0], memory=limits[node.role.kind][1])
            for node in self.nodes.values()
            if node.state is not NodeState.GONE
        )

    def check(self) -> None:
        """Every invariant; tests call it after each event."""
        if self.phase is Phase.FINISHED:
            assert all(node.finished for node in self.of_kind(RoleKind.WORKER)), "finished too early"
        if self.phase is Phase.FAILED:
            assert self.blame is not Blame.NONE and self.why, "a failure without a reason"
        if not self.phase.over:
            lost = [node for node in self.of_kind(RoleKind.SERVER) if node.state is NodeState.GONE]
            assert not lost, "a job goes on without one of its servers"

    def _joined(self, node: Node, at: float) -> list[actions.Action]:
        if node.state is not NodeState.EXPECTED:
            raise errors.BadInput(f"a second {node.role} wants to join; the first is {node.state}")
        node.move(NodeState.JOINED, at=at, why="called in")
        self._run_if_ready(at)
        return []

    def _ready(self, node: Node, address: str, at: float) -> list[actions.Action]:
        if node.address:
            raise errors.BadInput(f"{node.role} is ready at {node.address} already, and now says {address}")
        node.address = address
        if not self._all_ready():
            return []
        self._run_if_ready(at)
        return [actions.PlaceSlots(tuple(server.address for server in self.of_kind(RoleKind.SERVER)))]

    def _all_ready(self) -> bool:
        return all(server.address for server in self.of_kind(RoleKind.SERVER))

    def _run_if_ready(self, at: float) -> None:
        joined = [node for node in self.of_kind(RoleKind.WORKER) if node.state is NodeState.JOINED]
        if self.phase is Phase.STARTING and joined and self._all_ready():
            self._move(Phase.RUNNING, "all servers are ready and a worker has joined")
            for node in self.nodes.values():
                node.heard_at = at if node.state is NodeState.JOINED else node.heard_at  # heartbeats begin now

    def _failed(self, role: Role, error: str, trace: str, blame: Blame, at: float) -> list[actions.Action]:
        if blame is Blame.USER:
            return self._fail(error, blame, trace)
        self._suspect(f"{role} cannot go on: {error}", at, trace)
        return []

    def _hung_up(self, node: Node, at: float) -> list[actions.Action]:
        if node.state is NodeState.JOINED:
            self._suspect(f"{node.role} has closed its connection to the master without a word", at)
        return []

    def _suspect(self, error: str, at: float, trace: str = "") -> None:
        self.suspicion = self.suspicion or Suspicion(at, error, trace)

    def _gone(self, ended: RoleExit, at: float) -> list[actions.Action]:
        node = self.node(ended.role)
        before = node.state
        node.move(NodeState.GONE, at=at, why=str(ended))
        trace = self.suspicion.trace if self.suspicion else ""
        if ended.role.kind is RoleKind.SERVER:
            lost = f"{ended}: the rows it held are lost, and with them the job"
            return self._fail(lost, Blame.INFRASTRUCTURE, trace)
        if before is NodeState.FINISHED or (self.phase is Phase.DRAINING and ended.clean):
            return self._settle()
        if self.suspicion and not ended.signal:
            return []  # it left because of what is suspected: that is the error to show, or the exit of another role
        if ended.clean and before is NodeState.EXPECTED:
            return self._fail(
                f"{ended.role}: the script ended without calling st.join(), so there was nothing to train. "
                "Call st.join() and job.prepare(...) in it; `springtide demo` shows where.",
                Blame.USER,
            )
        if ended.clean:
            return self._fail(f"{ended.role}: the script left in the middle of the job with status 0", Blame.USER)
        blame = Blame.INFRASTRUCTURE if ended.signal else Blame.USER
        return self._fail(f"{ended}, without an exception in the script", blame, trace)

    def _settle(self) -> list[actions.Action]:
        """Whether that was the last worker."""
        workers = self.of_kind(RoleKind.WORKER)
        if not all(node.state in (NodeState.FINISHED, NodeState.GONE) for node in workers):
            return []
        if self.phase is Phase.DRAINING:
            return self._end(Phase.STOPPED, self.why)
        return self._end(Phase.FINISHED, "every worker's script has ended")

    def _stop_asked(self, why: str) -> list[actions.Action]:
        if self.phase is Phase.DRAINING:
            return []
        self._move(Phase.DRAINING, why)
        return [actions.Drain(why)]

    def _tick(self, at: float) -> list[actions.Action]:
        if self.suspicion and at - self.suspicion.since >= EXPLANATION_S:
            return self._fail(self.suspicion.error, Blame.INFRASTRUCTURE, self.suspicion.trace)
        for node in self.nodes.values():
            silent_s = at - node.heard_at
            if node.state is NodeState.EXPECTED and silent_s > self.spec.join_s:
                return self._never_joined(node, silent_s)
            beating = node.state is NodeState.JOINED and self.phase is not Phase.STARTING
            if beating and silent_s > self.spec.silence_s:
                return self._fail(
                    f"{node.role} has been silent for {silent_s:.0f} s (limit {self.spec.silence_s:g} s): "
                    "its process hangs or is stopped",
                    Blame.INFRASTRUCTURE,
                )
        return []

    def _never_joined(self, node: Node, silent_s: float) -> list[actions.Action]:
        if node.role.kind is RoleKind.WORKER:
            return self._fail(
                f"{node.role}: the script has not called st.join() within {silent_s:.0f} s. "
                "Call it before anything slow, or raise --timeout.",
                Blame.USER,
            )
        silent = f"{node.role} has not called in within {silent_s:.0f} s; its log may say why"
        return self._fail(silent, Blame.INFRASTRUCTURE)

    def _fail(self, error: str, blame: Blame, trace: str = "") -> list[actions.Action]:
        self.detail = trace
        return self._end(Phase.FAILED, error, blame)

    def _end(self, phase: Phase, why: str, blame: Blame = Blame.NONE) -> list[actions.Action]:
        self._move(phase, why)
        self.blame = blame
        return [actions.Conclude(phase, why, blame)]

    def _move(self, to: Phase, why: str) -> None:
        assert to in LEGAL[self.phase], f"job {self.spec.name}: {self.phase} -> {to} is not legal ({why})"
        self.phase, self.why = to, why
