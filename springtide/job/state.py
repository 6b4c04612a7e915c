"""Pure. One job as a state machine: `handle(event, at=...)` returns what to do. The clock is an argument.

In: `job.core.events`. Out: `job.core.actions`, and `wanted()`: the processes that must exist. What is lost is
relaunched by the rules of `job.recovery.recovery`, a server if its slots can be restored (`job.recovery.server_loss`);
else the job fails, saying why. Data workers come and go beside it all (`job.scaling.data_workers`). An exception in the
training script fails it with that exception first. Next: `master.dispatcher`.
"""

from dataclasses import dataclass, field

from springtide import errors
from springtide.domain.core.roles import RANKED, Role, RoleExit, RoleKind, WantedRole
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.job import deadlines, invariants
from springtide.job.core import actions, events
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.deadlines import EXPLANATION_S as EXPLANATION_S
from springtide.job.group import groups
from springtide.job.recovery import recovery, server_loss
from springtide.job.scaling import data_workers, evictions, plan_state, unschedulable
from springtide.job.scaling import servers as rollout
from springtide.job.scaling import workers as scaling
from springtide.job.scaling.plan_state import PlanState

LEGAL: dict[JobPhase, frozenset[JobPhase]] = {
    JobPhase.STARTING: frozenset({JobPhase.RUNNING, JobPhase.DRAINING, JobPhase.FAILED}),
    JobPhase.RUNNING: frozenset({JobPhase.DRAINING, JobPhase.FINISHED, JobPhase.FAILED}),
    JobPhase.DRAINING: frozenset({JobPhase.STOPPED, JobPhase.FAILED}),
    JobPhase.FINISHED: frozenset(),
    JobPhase.STOPPED: frozenset(),
    JobPhase.FAILED: frozenset(),
}


@dataclass(slots=True)
class JobState:
    """All that decides what a job does next. Plain data, so that it can be journaled and rebuilt."""

    spec: JobSpec
    started_at: float = 0.0
    phase: JobPhase = JobPhase.STARTING
    why: str = "waiting for servers and workers to join"
    blame: Blame = Blame.NONE
    detail: str = ""
    nodes: dict[str, RoleNode] = field(default_factory=dict)
    """By the name of their role, such as worker-0."""
    workers: int = 0
    """How many the job should have; `Scaled` changes it."""
    servers_wanted: int = 0
    """How many servers the job should have; `ServersScaled` changes it."""
    in_step: bool = False
    generation: int = 0
    """How often a bsp group was formed."""
    group: dict[int, int] = field(default_factory=dict)
    """The incarnation of each rank that was formed last."""
    suspicion: recovery.Suspicion | None = None
    untrained: int = 0
    """Shards left when a script ended last."""
    poisoned: str = ""
    relaunches: int = 0
    safety: server_loss.RestorePoint = field(default_factory=server_loss.RestorePoint)
    last_save: str | None = None
    """Once all workers have ended: empty while the last checkpoint is being written, then what became of it."""
    decision: actions.LogDecision = field(default_factory=lambda: actions.LogDecision("", ""))
    planned: PlanState = field(default_factory=lambda: PlanState(sizes={}))
    """What planning has made of it, and what roles to come may take."""
    short: unschedulable.Shortage = field(default_factory=unschedulable.Shortage)
    """What it does without for now."""
    feeding: data_workers.DataWorkerState = field(default_factory=data_workers.DataWorkerState)
    """Its data workers: how many are wanted, who feeds, and why there are none."""

    def __post_init__(self) -> None:
        self.workers = self.workers or self.spec.workers
        self.servers_wanted = self.servers_wanted or self.spec.servers
        self.in_step = self.in_step or self.spec.sync == "bsp"
        self.planned = self.planned if self.planned.sizes else plan_state.begin(self.spec)
        if not self.nodes:
            for kind, count in ((RoleKind.SERVER, self.spec.servers), (RoleKind.WORKER, self.spec.workers)):
                for rank in range(count):
                    scaling.add(self.nodes, Role(kind, rank), self.planned, at=self.started_at)

    def handle(self, event: events.Event, *, at: float) -> list[actions.Action]:
        """Take in what happened; return what to do about it. After the end nothing changes any more."""
        if self.phase.over:
            return []
        match event:
            case events.DataWorkersScaled() | events.DataWorkersRefused():
                return data_workers.take(self, event, at)
            case _ if data_workers.concerns(event):
                return data_workers.take(self, event, at)
            case events.RoleJoined():
                return self._joined(event, at)
            case events.RoleReady(role, address, incarnation):
                return [] if self.fenced(role, incarnation) else self._ready(self.node(role), address, at)
            case events.RoleAlive(role, incarnation):
                if not self.fenced(role, incarnation):
                    self.node(role).heard_at = at
                return []
            case events.ScriptFinished():
                return self._finished(event, at)
            case events.ScriptFailed():
                return self._failed(event, at)
            case events.RoleExited(ended):
                return self._gone(ended, at)
            case events.CheckpointSaved(number):
                self.safety.saved = number
                return []
            case events.WorkersScaled():
                return self._scaled(event, at)
            case events.RolesResized() | events.PlanTaken() | events.PlanEnded() | events.BoundsChanged():
                news = plan_state.take(self, event, at)
                return [self.decide(*news, told=isinstance(event, events.PlanTaken))] if news else []
            case events.ServersScaled() | events.ServerReplaced() | events.ServerGranted():
                return [self.decide(*rollout.change_servers(self, event, at))]
            case events.EvictionNoticed() | events.ServerEmptied():
                return evictions.take(self, event, at)
            case events.DecisionMade(what, why, told):
                return [self.decide(what, why, told=told)]
            case events.BspBegan():
                self.in_step = True
                return []
            case events.GroupFormed(members, why):
                return groups.formed(self, members, why, at)
            case events.GroupLost(why):
                return self._go_back(why or groups.ALL_LOST, at)
            case events.StopRequested(why):
                return self._stop_asked(why, at)
            case events.MasterFailed(error):
                return self._fail(error, Blame.INFRASTRUCTURE)
            case events.MasterTookOver(term):
                deadlines.begin_anew(self, at=at)
                return [self.decide(f"took over as master number {term}", deadlines.TAKEN_OVER)]
            case events.FinalCheckpointDone(outcome):
                self.last_save = outcome
                return self.settle()
            case events.RoleSilent() | events.RoleLate() | events.DrainOverdue():
                return self._overdue(event, at)
            case events.SuspicionExpired():
                assert self.suspicion is not None
                return self._fail(self.suspicion.error, Blame.INFRASTRUCTURE, self.suspicion.trace)

    # ---- looking ----

    def of_kind(self, kind: RoleKind) -> list[RoleNode]:
        """The nodes of one kind, by rank."""
        return sorted((node for node in self.nodes.values() if node.role.kind is kind), key=lambda node: node.role)

    def node(self, role: Role) -> RoleNode:
        """The node of a role, or a word on what the job has."""
        if str(role) not in self.nodes:
            raise errors.BadInput(
                f"{role} is not part of job {self.spec.name}, "
                f"which has {self.servers_wanted} servers and {self.workers} workers"
            )
        return self.nodes[str(role)]

    def fenced(self, role: Role, incarnation: int) -> bool:
        """Whether the master has given this life of a role up: what it says changes nothing."""
        node = self.node(role)
        return incarnation < node.incarnation or (incarnation == node.incarnation and node.state is NodeState.GONE)

    @property
    def healing(self) -> bool:
        """Whether a server is away: lost, and its next life not ready yet."""
        return self.phase is not JobPhase.STARTING and not self.phase.over and not rollout.all_ready(self.nodes)

    def wanted(self) -> tuple[WantedRole, ...]:
        """The processes that must exist now; servers first."""
        nodes = [node for kind in RANKED for node in self.of_kind(kind)]
        return tuple(node.wanted for node in nodes if node.state is not NodeState.GONE)

    def draining(self, role: Role) -> bool:
        """Whether a worker should finish the batch in hand and leave. A bsp group learns of it by its leases."""
        return self.node(role).state is NodeState.DRAINING or (self.phase is JobPhase.DRAINING and not self.in_step)

    @property
    def saving_last(self) -> bool:
        """Whether only the last checkpoint is missing for the job to be over."""
        return self.last_save == "" and not self.phase.over

    @property
    def group_lost(self) -> bool:
        """Whether a member of the bsp group is: then the others must form a new one."""
        return groups.lost(self.nodes, self.group)

    def check(self) -> None:
        """Every invariant; tests call it after each event."""
        invariants.check(self)

    # ---- coming ----

    def _joined(self, event: events.RoleJoined, at: float) -> list[actions.Action]:
        node = self.node(event.role)
        if self.fenced(event.role, event.incarnation):
            raise errors.Fenced(
                f"{event.role} of incarnation {event.incarnation} was given up: the job goes on without"
            )
        if event.incarnation > node.incarnation:
            raise errors.BadInput(f"{event.role} says it is incarnation {event.incarnation}; wanted {node.incarnation}")
        if node.state is NodeState.EXPECTED:
            node.move(NodeState.JOINED, at=at, why="called in")
            node.pid, node.birth = event.pid, event.birth
            self.run_if_ready(at)
        elif (node.pid, node.birth) != (event.pid, event.birth):
            raise errors.BadInput(f"a second {node.role} wants to join; the first is {node.state}")
        node.heard_at = at
        return []

    def _ready(self, node: RoleNode, address: str, at: float) -> list[actions.Action]:
        if node.address == address:
            return []
        if node.address:
            raise errors.BadInput(f"{node.role} is ready at {node.address} already, and now says {address}")
        node.address, node.coming = address, False
        if not self.safety.placed:
            return self.place(at)
        self.run_if_ready(at)
        rollout.drain_surplus(self.nodes, self.servers_wanted, at)
        return [actions.ServerReturned(node.role, node.incarnation, address)]

    def place(self, at: float) -> list[actions.Action]:
        """Give the servers their slots, if all that are to come are there."""
        if not rollout.all_ready(self.nodes):
            return []
        self.run_if_ready(at)
        self.safety.placed = True
        return [actions.PlaceSlots(tuple(server.address for server in self.of_kind(RoleKind.SERVER)))]

    def run_if_ready(self, at: float) -> None:
        """Begin, if all that must be there are."""
        if self.phase is not JobPhase.STARTING:
            return
        joined = [node.state is NodeState.JOINED for node in self.of_kind(RoleKind.WORKER) if node.active]
        if any(joined) and (all(joined) or not self.spec.gang) and rollout.all_ready(self.nodes):
            who = "all workers have" if self.spec.gang else "a worker has"
            self._move(JobPhase.RUNNING, f"all servers are ready and {who} joined")
            for node in self.nodes.values():
                node.heard_at = at if node.state is NodeState.JOINED else node.heard_at  # heartbeats begin now

    # ---- leaving ----

    def _finished(self, event: events.ScriptFinished, at: float) -> list[actions.Action]:
        node = self.node(event.role)
        if node.finished or self.fenced(event.role, event.incarnation):
            return []  # said twice, or too late
        if self.phase is JobPhase.STARTING:
            raise errors.BadInput(f"{event.role} has finished before the job's servers were ready")
        drained = node.state is NodeState.DRAINING
        node.move(NodeState.FINISHED, at=at, why="drained" if drained else "the script ended")
        fence = actions.FenceWorker(node.role, node.incarnation, "its script has ended")
        self.untrained, self.poisoned = event.untrained, event.poisoned
        return [fence, *self.settle()]

    def _failed(self, event: events.ScriptFailed, at: float) -> list[actions.Action]:
        if self.fenced(event.role, event.incarnation):
            return []
        if event.blame is Blame.USER:
            return self._fail(event.error, event.blame, event.trace)
        node = self.node(event.role)
        node.said, node.trace = event.error, event.trace  # it will leave now: then we see
        return []

    def _gone(self, ended: RoleExit, at: float) -> list[actions.Action]:
        node = self.node(ended.role)
        if ended.incarnation != node.incarnation or node.state is NodeState.GONE:
            return []  # an earlier life, which is dealt with already
        if ended.unplaced and (smaller := unschedulable.take(self, node, ended, at)) is not None:
            return smaller
        if ended.role.kind is RoleKind.SERVER:
            return self._lost_server(node, recovery.after_exit(node, ended, self.spec, at=at), at)
        if node.state is NodeState.FINISHED:
            node.move(NodeState.GONE, at=at, why=str(ended))
            return self.settle()
        if self.phase is JobPhase.DRAINING or node.state is NodeState.DRAINING:
            return [*self._let_go(node, str(ended), at), *self.settle()]
        if ended.clean and node.state is NodeState.EXPECTED:
            return self._fail(
                f"{ended.role}: the script ended without calling st.join(), so there was nothing to train. "
                "Call st.join() and job.prepare(...) in it; `springtide demo` shows where.",
                Blame.USER,
            )
        verdict = recovery.after_exit(node, ended, self.spec, at=at, healing=self.healing)
        return self._replace(node, verdict, at)

    def _replace(
        self, node: RoleNode, verdict: recovery.Relaunch | recovery.FailJob, at: float
    ) -> list[actions.Action]:
        """Do what the rules say about a lost worker."""
        if isinstance(verdict, recovery.FailJob):
            if not node.said:
                return self._fail(verdict.error, verdict.blame)
            self.suspicion = self.suspicion or recovery.Suspicion(at, verdict.error, node.trace)
            return []  # the exit of another role may explain it: that would be the error to show
        fence = actions.FenceWorker(node.role, node.incarnation, verdict.why)
        after_s = max(verdict.after_s, EXPLANATION_S) if node.said else verdict.after_s
        self.begin_again(node, verdict, after_s, at)
        pause = f" after {after_s:g} s" if after_s else ""
        what = f"relaunch {node.role} as incarnation {node.incarnation}{pause}"
        return [fence, self.decide(what, verdict.why)]

    def _lost_server(
        self, node: RoleNode, verdict: recovery.Relaunch | recovery.FailJob, at: float
    ) -> list[actions.Action]:
        """A server's next life, if what it held can be restored."""
        trained = self.phase is not JobPhase.STARTING and not node.coming
        if node.coming and isinstance(verdict, recovery.FailJob):
            return [self.decide(*rollout.give_up(self, node, verdict.error, at))]
        saves = server_loss.may_begin_anew(self.spec, self.phase)
        verdict = server_loss.after_loss(verdict, self.safety, trained=trained, saves=saves)
        if isinstance(verdict, recovery.FailJob):
            node.move(NodeState.GONE, at=at, why=verdict.error)
            trace = next((each.trace for each in self.nodes.values() if each.trace), "")
            return self._fail(verdict.error, verdict.blame, trace)
        lost = actions.ServerLost(node.role, node.incarnation, verdict.why)
        self.suspicion = None  # this explains it
        self.safety.lost[node.role.rank] = self.safety.lost.get(node.role.rank, 0) + trained
        self.begin_again(node, verdict, verdict.after_s, at)
        if trained and (self.group or not self.safety.known):
            return [lost, *self._go_back(verdict.why, at)]
        what = server_loss.relaunch_text(node, self.safety, verdict.after_s, trained=trained)
        more = rollout.double(self, at) if verdict.starved and trained else None
        return [lost, self.decide(what, verdict.why), *([self.decide(*more)] if more else [])]

    def _go_back(self, why: str, at: float) -> list[actions.Action]:
        """All go on from the last checkpoint, or begin anew before the first, if the job is to go on at all."""
        if not self.safety.known and not server_loss.may_begin_anew(self.spec, self.phase):
            return self._fail(f"{why}; it had no complete checkpoint yet", Blame.INFRASTRUCTURE)
        if self.phase is JobPhase.DRAINING:
            return self._end(JobPhase.STOPPED, f"{self.why}; {why}: {self.safety.newest} is what is left")
        return groups.go_back(self, why, at=at)

    def begin_again(self, node: RoleNode, verdict: recovery.Relaunch, after_s: float, at: float) -> None:
        """A role's next life is wanted."""
        node.move(NodeState.EXPECTED, at=at, why=verdict.why)
        node.heard_at = at + after_s
        node.failures, node.oom_kills = verdict.failures, verdict.oom_kills
        node.memory, node.after_s = verdict.memory, after_s
        self.relaunches += 1

    def _let_go(self, node: RoleNode, why: str, at: float) -> list[actions.Action]:
        """A worker that is not replaced."""
        node.move(NodeState.GONE, at=at, why=why)
        return [actions.FenceWorker(node.role, node.incarnation, why)]

    def settle(self) -> list[actions.Action]:
        """Whether that was the last worker."""
        workers = self.of_kind(RoleKind.WORKER)
        if not all(node.state in (NodeState.FINISHED, NodeState.GONE) for node in workers):
            return []
        if self.spec.checkpoints.on and not self.last_save:
            self.last_save = ""
            return []
        if self.phase is JobPhase.DRAINING:
            return self._end(JobPhase.STOPPED, self.why)
        if self.poisoned:
            return self._fail(self.poisoned, Blame.USER)
        some = f"; {self.untrained} shards were left untrained: the scripts left their loops early"
        left = some if self.untrained else ""
        return self._end(JobPhase.FINISHED, f"every worker's script has ended{left}")

    # ---- commands ----

    def _scaled(self, event: events.WorkersScaled, at: float) -> list[actions.Action]:
        workers, why = event.workers, event.why
        if self.phase is JobPhase.DRAINING:
            raise errors.BadInput(f"job {self.spec.name} is draining: {self.why}")
        change = scaling.change(self.nodes, workers, extra=event.extra)
        change = groups.later(change, self.group) if self.in_step else change
        fences: list[actions.Action] = []
        for node in change.drain:
            node.move(NodeState.DRAINING, at=at, why=why)
        for node in change.drop:
            node.removed = True
            fences += self._let_go(node, why, at)
        for role in (*change.add, *change.add_low):
            scaling.add(self.nodes, role, self.planned, at=at, low=role in change.add_low)
        lent = event.planned and event.extra != self.planned.extra
        self.planned.extra = event.extra
        self.planned.changed(
            at, planned=event.planned, asked="extra_workers" if lent else "workers", pinned=event.pinned
        )
        before, self.workers, self.short.workers = self.workers, workers, 0
        when = ", and form the bsp group anew before its next shard" if self.group else ""
        what = f"scale from {before} to {workers} workers: {change}{when}"
        return [*fences, self.decide(what, why), *self.settle()]

    def _stop_asked(self, why: str, at: float) -> list[actions.Action]:
        if self.phase is JobPhase.DRAINING:
            return []
        if self.phase is JobPhase.STARTING:
            self.last_save = "nothing was trained"
        self._move(JobPhase.DRAINING, why)
        waited = [node for node in self.of_kind(RoleKind.WORKER) if node.state is NodeState.EXPECTED]
        fences = [action for node in waited for action in self._let_go(node, "not needed any more", at)]
        return [actions.DrainWorkers(why), *fences, *self.settle()]

    # ---- time ----

    def due(self, *, at: float) -> list[events.Event]:
        """What the clock says: events to be handled now. Heartbeats are not journaled, but these are."""
        return deadlines.due(self, at=at)

    def forgive(self, seconds: float) -> None:
        """The master itself was away for so long, and could hear nobody: that is held against no one."""
        for node in self.nodes.values():
            node.heard_at += seconds

    def _overdue(
        self, event: events.RoleSilent | events.RoleLate | events.DrainOverdue, at: float
    ) -> list[actions.Action]:
        node = self.node(event.role)
        if node.incarnation != event.incarnation or node.state not in (NodeState.EXPECTED, *ALIVE):
            return []
        if isinstance(event, events.DrainOverdue):
            return [*self._let_go(node, f"not drained within {self.spec.drain_s:g} s", at), *self.settle()]
        if isinstance(event, events.RoleLate) and node.coming:
            return [self.decide(*rollout.give_up(self, node, f"silent for {event.silent_s:.0f} s", at))]
        if isinstance(event, events.RoleLate):
            late = recovery.never_joined(node, event.silent_s)
            return self._fail(late.error, late.blame)
        verdict = recovery.after_silence(node, event.silent_s, deadlines.patience_s(self, node), self.spec, at=at)
        if node.role.kind is RoleKind.SERVER:
            return self._lost_server(node, verdict, at)
        if self.phase is JobPhase.DRAINING or node.state is NodeState.DRAINING:
            return [*self._let_go(node, "silent while draining", at), *self.settle()]
        return self._replace(node, verdict, at)

    # ---- ends ----

    def decide(self, what: str, why: str, *, told: bool = False) -> actions.LogDecision:
        """The last decision, for the story and the status."""
        self.decision = actions.LogDecision(what, why, told)
        return self.decision

    def _fail(self, error: str, blame: Blame, trace: str = "") -> list[actions.Action]:
        self.detail = trace
        return self._end(JobPhase.FAILED, error, blame)

    def _end(self, phase: JobPhase, why: str, blame: Blame = Blame.NONE) -> list[actions.Action]:
        self._move(phase, why)
        self.blame = blame
        return [actions.EndJob(phase, why, blame)]

    def _move(self, to: JobPhase, why: str) -> None:
        assert to in LEGAL[self.phase], f"job {self.spec.name}: {self.phase} -> {to} is not legal ({why})"
        self.phase, self.why = to, why
