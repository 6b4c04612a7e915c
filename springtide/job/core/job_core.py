"""Pure. Data of a job's state machine, grouped by subject, and its elementary transitions.

`job.state` dispatches events to the rules of `job.recovery`, `job.scaling` and `job.bsp_group`, which change `JobCore`.
The journal keeps all of this data.
"""

from dataclasses import dataclass, field

import msgspec

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import FeedRules, StageTarget
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.domain.spec.planning_config import PlanningStage
from springtide.job.core import actions, events, nodes
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.recovery import Relaunch, RestorePoint, Suspicion

LEGAL: dict[JobPhase, frozenset[JobPhase]] = {
    JobPhase.STARTING: frozenset({JobPhase.RUNNING, JobPhase.DRAINING, JobPhase.FAILED}),
    JobPhase.RUNNING: frozenset({JobPhase.DRAINING, JobPhase.FINISHED, JobPhase.FAILED}),
    JobPhase.DRAINING: frozenset({JobPhase.STOPPED, JobPhase.FAILED}),
    JobPhase.FINISHED: frozenset(),
    JobPhase.STOPPED: frozenset(),
    JobPhase.FAILED: frozenset(),
}
# shortest interval, in seconds, between two requests for resources, even if the platform gives up sooner
SOONEST_S = 30.0
LATEST_S = 3600.0
# a role that found no host, this many seconds after its last retry, starts again with the shortest delay
FORGOTTEN_S = 3600.0
UNLIMITED_CPU = 1.0  # cores to count for a data worker without a limit, because it is mostly one Python thread
# default heartbeat timeout of servers if `silence_s` is shorter, because the loss of a server costs all workers time
SERVER_SILENCE_S = 30.0
BOUNDED = ("workers", "servers")
Limits = dict[str, tuple[int, int]]
"""New bounds on the number of workers and servers, for those bounds in `BOUNDED` that the user has changed."""


class BspGroup(msgspec.Struct, kw_only=True):
    """The bsp group of a job. `members` is empty if there is no group."""

    in_step: bool = False
    """True if workers train in step, so that no worker can be replaced alone."""
    generation: int = 0
    members: dict[int, int] = msgspec.field(default_factory=dict)


class JobEnding(msgspec.Struct, kw_only=True):
    """Facts that decide how a job ends."""

    suspicion: Suspicion | None = None
    untrained: int = 0
    poisoned: str = ""
    """Description of the first shard that the job gave up because it could not be read."""
    last_save: str | None = None
    """Outcome of the final checkpoint. None until all workers have ended, empty while the last checkpoint is being
    written, and then a text.
    """
    blame: Blame = Blame.NONE
    detail: str = ""


class RoleSize(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory limits of one role, in cores and bytes; None for no limit."""

    cpu: float | None = None
    memory: int | None = None


class PlanState(msgspec.Struct, kw_only=True):
    """Planning stage of the job, sizes of its roles, and the current plan."""

    stage: PlanningStage = PlanningStage.WAITING
    sizes: dict[RoleKind, RoleSize]
    target: Shape | None = None
    """Shape that the current plan leads to; None if the job has no plan."""
    asked: tuple[str, ...] = ()
    why: str = ""
    changed_at: float | None = None
    pinned: tuple[str, ...] = ()
    """Names in `BOUNDED` whose number the user set while the job ran."""
    limits: Limits = msgspec.field(default_factory=dict)
    epoch: int = 0
    """Number of changes to this state, which advice must match. Advice for an earlier epoch is ignored."""

    def note_change(self, at: float, *, planned: bool, asked: str, pinned: bool = False) -> None:
        """Record a change of shape. If the change is not a step of the plan, drop the plan."""
        self.changed_at, self.epoch = at, self.epoch + 1
        if planned:
            self.asked = (*self.asked, asked)
        else:
            self.drop()
        if pinned and asked not in self.pinned:
            self.pinned = (*self.pinned, asked)

    def accept(self, event: events.PlanTaken, at: float) -> str:
        self.epoch += 1
        self.changed_at = at
        self.target, self.asked = event.shape, ()
        self.stage, self.why = event.stage, event.why
        return f"plan: {event.shape}"

    def end(self, event: events.PlanEnded) -> str:
        """End the plan, and return the decision text; empty if the plan changed nothing."""
        self.epoch += 1
        target, self.stage = self.target, event.stage
        self.drop()
        return f"drop the plan for {target}" if event.why and target else ""

    def bound(self, given: Limits) -> None:
        """Set new bounds, unpin numbers that the user set, and drop the current plan."""
        self.limits = self.limits | given
        self.pinned = tuple(name for name in self.pinned if name not in given)
        self.epoch += 1
        self.drop()

    def drop(self) -> None:
        self.target, self.asked = None, ()


class Shortage(msgspec.Struct, kw_only=True):
    """Roles without which the job runs for now, because no host has room for them."""

    workers: int = 0
    servers: int = 0
    data_workers: int = 0
    again_at: float = 0.0
    tries: int = 0
    """Number of consecutive requests that found no room."""
    why: str = ""

    @property
    def any(self) -> bool:
        return bool(self.workers or self.servers or self.data_workers)

    def note(self, node: RoleNode, ended: RoleExit, at: float, **missing: int) -> str:
        """Record missing roles by kind. Return the reason, with the time of the next request for resources."""
        if not self.any:
            recent = self.tries and at - self.again_at < FORGOTTEN_S
            self.tries = self.tries + 1 if recent else 1
            waited = max(SOONEST_S, at - node.since)
            self.again_at = at + min(LATEST_S, waited * 2.0 ** (self.tries - 1))
        for name, more in missing.items():
            setattr(self, name, getattr(self, name) + more)
        self.why = ended.unplaced
        return f"{ended}; the job requests room again in {self.again_at - at:.0f} s"

    def describe(self, *, at: float) -> str:
        if not self.any:
            return ""
        counts = (("worker", self.workers), ("server", self.servers), ("data worker", self.data_workers))
        missing = " and ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts if count)
        seconds = max(0.0, self.again_at - at)
        return f"{missing} fewer than wanted: {self.why}; the job requests room again in {seconds:.0f} s"


@dataclass(slots=True, kw_only=True)
class DataWorkerState:
    """Wanted number and size of data workers."""

    wanted: int = 0
    cpu: float | None = None
    """CPU limit of each data worker in cores; None means no limit."""
    stages: tuple[StageTarget, ...] = ()
    """Target of each stage, first to last, if there are several stages. `cpu` is then the limit of the last stage."""
    pinned: bool = False
    given_up: str = ""
    """Reason why the job continues without data workers. Tuning then takes no cores from trainers."""
    epoch: int = 0
    """Number of changes to the list of data workers or to their wanted number."""

    def cores(self, rules: FeedRules) -> float:
        """Return the cores that data workers have or have requested. Plans for other roles do not use these cores."""
        if self.given_up:
            return 0.0
        if self.stages:
            return sum(stage.workers * (stage.cpu or UNLIMITED_CPU) for stage in self.stages)
        if self.epoch or self.pinned:
            return self.wanted * (self.cpu or UNLIMITED_CPU)
        return (rules.workers or 0) * (rules.cpu or UNLIMITED_CPU)

    def scale_up(self, missing: int, why: str) -> events.DataWorkersScaled:
        """Return the event that adds `missing` data workers, to the stages with the fewest workers."""
        stages = list(self.stages)
        for _ in range(missing if stages else 0):
            least = min(range(len(stages)), key=lambda stage: (stages[stage].workers, -stage))
            stages[least] = stages[least]._replace(workers=stages[least].workers + 1)
        return events.DataWorkersScaled(self.wanted + missing, self.cpu, why, stages=tuple(stages))


@dataclass(slots=True)
class JobCore:
    """Complete state of a job, from which its next actions follow, as plain data that can be journaled and rebuilt."""

    spec: JobSpec
    started_at: float = 0.0
    phase: JobPhase = JobPhase.STARTING
    why: str = "waiting for servers and workers to join"
    nodes: dict[str, RoleNode] = field(default_factory=dict)
    """Nodes by the name of their role, such as worker-0."""
    workers: int = 0
    """Workers that the job should have; `WorkersScaled` changes it."""
    servers_wanted: int = 0
    """Servers that the job should have; `ServersScaled` changes it."""
    bsp: BspGroup = field(default_factory=BspGroup)
    ending: JobEnding = field(default_factory=JobEnding)
    relaunches: int = 0
    safety: RestorePoint = field(default_factory=RestorePoint)
    decision: actions.LogDecision = field(default_factory=lambda: actions.LogDecision("", ""))
    planned: PlanState = field(default_factory=lambda: PlanState(sizes={}))
    short: Shortage = field(default_factory=Shortage)
    feeding: DataWorkerState = field(default_factory=DataWorkerState)

    def __post_init__(self) -> None:
        spec = self.spec
        self.workers = self.workers or spec.workers
        self.servers_wanted = self.servers_wanted or spec.servers
        self.bsp.in_step = self.bsp.in_step or spec.sync == "bsp"
        if not self.planned.sizes:
            self.planned = PlanState(
                stage=spec.planning.stage if spec.planning.on else PlanningStage.WAITING,
                why=spec.planning.why,
                sizes={
                    RoleKind.WORKER: RoleSize(cpu=spec.worker_cpu, memory=spec.worker_memory),
                    RoleKind.SERVER: RoleSize(cpu=spec.server_cpu, memory=spec.server_memory),
                },
            )
        if not self.nodes:
            for kind, count in ((RoleKind.SERVER, spec.servers), (RoleKind.WORKER, spec.workers)):
                for rank in range(count):
                    self.add_role(Role(kind, rank), at=self.started_at)

    # ---- queries ----

    def of_kind(self, kind: RoleKind) -> list[RoleNode]:
        return nodes.of_kind(self.nodes, kind)

    def node(self, role: Role) -> RoleNode:
        """Return the node of a role. Raise BadInput if the job has no such role."""
        node = self.nodes.get(str(role))
        if node is None:
            raise errors.BadInput(
                f"{role} is not part of job {self.spec.name}, "
                f"which has {self.servers_wanted} servers and {self.workers} workers"
            )
        return node

    def fenced(self, role: Role, incarnation: int) -> bool:
        """Return True if the master has fenced this incarnation, so that the master ignores its messages."""
        node = self.node(role)
        return incarnation < node.incarnation or (incarnation == node.incarnation and node.state is NodeState.GONE)

    def patience_s(self, kind: RoleKind) -> float:
        if kind is not RoleKind.SERVER:
            return self.spec.silence_s
        own = self.spec.server_silence_s
        return max(self.spec.silence_s, SERVER_SILENCE_S) if own is None else own

    @property
    def healing(self) -> bool:
        """Return True while a server is lost and its relaunched process is not ready yet."""
        return self.phase is not JobPhase.STARTING and not self.phase.over and not nodes.all_servers_ready(self.nodes)

    @property
    def group_lost(self) -> bool:
        """Return True if the bsp group has lost a member, so that the remaining members must form a new group."""
        return bool(nodes.lost_members(self.nodes, self.bsp.members))

    # ---- elementary transitions ----

    def decide(self, what: str, why: str, *, told: bool = False) -> actions.LogDecision:
        self.decision = actions.LogDecision(what, why, told)
        return self.decision

    def refuse_if_draining(self) -> None:
        if self.phase is JobPhase.DRAINING:
            raise errors.BadInput(f"job {self.spec.name} is draining: {self.why}")

    def add_role(self, role: Role, *, at: float) -> RoleNode:
        """Ask for a process of this role: a new role, or a new incarnation of a removed role."""
        if str(role) in self.nodes:
            node = self.nodes[str(role)]
            node.move(NodeState.EXPECTED, at=at, why="wanted again")
            node.faults.crashes = node.faults.oom_kills = 0
            node.after_s = 0.0
        else:
            node = self.nodes[str(role)] = RoleNode(role=role, since=at, heard_at=at)
        size = self.planned.sizes.get(role.kind, RoleSize(memory=self.spec.worker_memory))
        node.cpu, node.memory = size.cpu, size.memory
        return node

    def relaunch(self, node: RoleNode, verdict: Relaunch, after_s: float, at: float) -> None:
        node.move(NodeState.EXPECTED, at=at, why=verdict.why)
        node.heard_at = at + after_s
        node.faults.crashes, node.faults.oom_kills = verdict.failures, verdict.oom_kills
        node.memory, node.after_s = verdict.memory, after_s
        self.relaunches += 1

    def place_slots(self, at: float) -> list[actions.JobAction]:
        if not nodes.all_servers_ready(self.nodes):
            return []
        self.run_if_ready(at)
        self.safety.placed = True
        return [actions.PlaceSlots(tuple(server.address for server in self.of_kind(RoleKind.SERVER)))]

    def run_if_ready(self, at: float) -> None:
        if self.phase is not JobPhase.STARTING:
            return
        joined = [node.state is NodeState.JOINED for node in self.of_kind(RoleKind.WORKER) if node.active]
        if any(joined) and (all(joined) or not self.spec.gang) and nodes.all_servers_ready(self.nodes):
            who = "all workers have" if self.spec.gang else "a worker has"
            self.enter(JobPhase.RUNNING, f"all servers are ready and {who} joined")
            for node in self.nodes.values():
                # the role starts to send heartbeats now
                node.heard_at = at if node.state is NodeState.JOINED else node.heard_at

    def end_if_done(self) -> list[actions.JobAction]:
        workers = self.of_kind(RoleKind.WORKER)
        if not all(node.state in (NodeState.FINISHED, NodeState.GONE) for node in workers):
            return []
        if self.spec.checkpoints.on and not self.ending.last_save:
            self.ending.last_save = ""
            return []
        if self.phase is JobPhase.DRAINING:
            return self.end(JobPhase.STOPPED, self.why)
        if self.ending.poisoned:
            return self.fail(self.ending.poisoned, Blame.USER)
        some = f"; {self.ending.untrained} shards stay untrained, because the scripts left their loops early"
        left = some if self.ending.untrained else ""
        return self.end(JobPhase.FINISHED, f"every worker's script has ended{left}")

    def fail(self, error: str, blame: Blame, trace: str = "") -> list[actions.JobAction]:
        self.ending.detail = trace
        return self.end(JobPhase.FAILED, error, blame)

    def end(self, phase: JobPhase, why: str, blame: Blame = Blame.NONE) -> list[actions.JobAction]:
        self.enter(phase, why)
        self.ending.blame = blame
        return [actions.EndJob(phase, why, blame)]

    def enter(self, to: JobPhase, why: str) -> None:
        assert to in LEGAL[self.phase], f"job {self.spec.name}: {self.phase} -> {to} is not legal ({why})"
        self.phase, self.why = to, why
