"""Pure. Data workers of a job: how many are wanted, who joins, who leaves, and what becomes of one that is lost.

In: `job.state` with whatever concerns them. Out: actions, and the roster: where those are that feed, numbered, for the
trainers (`master.data.data_workers` tells them). A data worker holds nothing: it is started again by the rules of
`job.recovery.recovery`, but its loss never fails the job, and nobody waits for one at the end. After too many failures,
or when what they would do cannot be handed to them, the job goes on without data workers and says so.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.data_workers import FeedRules, StageTarget, stage_of
from springtide.domain.spec.job_spec import JobPhase
from springtide.job import deadlines
from springtide.job.core import actions, events
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.recovery import recovery
from springtide.job.scaling import unschedulable

if TYPE_CHECKING:
    from springtide.job.state import JobState

Concern = (
    events.DataWorkersScaled
    | events.DataWorkersRefused
    | events.RoleReady
    | events.RoleExited
    | events.RoleSilent
    | events.RoleLate
    | events.DrainOverdue
)
MOST = 1024  # that can be asked for: more is a mistake
LOOSE_CPU = 1.0  # what one without a limit counts for: mostly it is one thread of Python


@dataclass(slots=True, kw_only=True)
class DataWorkerState:
    """What a job wants of its data workers."""

    wanted: int = 0
    cpu: float | None = None
    """Cores of each; None: no limit."""
    stages: tuple[StageTarget, ...] = ()
    """Of each stage, first to last, once it is known that there are several; `cpu` is then the last one's."""
    pinned: bool = False
    """The user has set the number by hand."""
    given_up: str = ""
    """Why there are none any more, and tuning is to ask for none."""
    epoch: int = 0
    """How often the roster, or the number wanted, has changed."""

    def cores(self, rules: FeedRules) -> float:
        """That they have or were asked for with the job: whoever plans the rest of the job leaves them alone."""
        if self.given_up:
            return 0.0
        if self.stages:
            return sum(one.workers * (one.cpu or LOOSE_CPU) for one in self.stages)
        if self.epoch or self.pinned:
            return self.wanted * (self.cpu or LOOSE_CPU)
        return (rules.workers or 0) * (rules.cpu or LOOSE_CPU)

    def more(self, missing: int, why: str) -> events.DataWorkersScaled:
        """So many beyond what there is to be; where there are stages, for those that have the fewest."""
        stages = list(self.stages)
        for _ in range(missing if stages else 0):
            least = min(range(len(stages)), key=lambda stage: (stages[stage].workers, -stage))
            stages[least] = stages[least]._replace(workers=stages[least].workers + 1)
        return events.DataWorkersScaled(self.wanted + missing, self.cpu, why, stages=tuple(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingNode:
    """A data worker that feeds."""

    name: str
    """Of its present life: `data-worker-1.2`. A connection to an earlier one is of no use."""
    rank: int
    address: str


def concerns(event: events.Event) -> TypeGuard[Concern]:
    """Whether it is about a data worker, and for this room; they join and are heard like anyone."""
    match event:
        case events.RoleExited(ended):
            return ended.role.kind is RoleKind.DATA_WORKER
        case events.RoleReady(role) | events.RoleSilent(role) | events.RoleLate(role) | events.DrainOverdue(role):
            return role.kind is RoleKind.DATA_WORKER
        case _:
            return False


def take(state: "JobState", event: Concern, at: float) -> list[actions.Action]:
    """Take in what concerns data workers."""
    before = roster(state), state.feeding.wanted
    done = _take(state, event, at)
    _relieve(state, at)
    state.feeding.epoch += (roster(state), state.feeding.wanted) != before
    return done


def replace(state: "JobState", node: RoleNode, why: str, at: float) -> list[actions.Action]:
    """Its host takes it away soon, or there is a better one: another joins, and once that feeds this one leaves."""
    stages = max(1, len(state.feeding.stages))
    ((role,), cpu) = _unused(state, stage_of(node.role.rank, stages), stages, 1), node.cpu
    node.replaced = True
    _add(state, role, at)
    state.node(role).cpu = cpu
    return [state.decide(f"{role} in place of {node.role}, which feeds until then", why)]


def roster(state: "JobState") -> tuple[FeedingNode, ...]:
    """Those that trainers may send indices to, by rank."""
    return tuple(
        FeedingNode(name=f"{node.role}.{node.incarnation}", rank=node.role.rank, address=node.address)
        for node in of(state)
        if node.state is NodeState.JOINED and node.address
    )


def of(state: "JobState") -> list[RoleNode]:
    """All data workers that the job has ever had, by rank."""
    return state.of_kind(RoleKind.DATA_WORKER)


def check(state: "JobState") -> None:
    """What must hold while a job goes on."""
    active = sum(node.active and not node.replaced for node in of(state))
    assert active <= state.feeding.wanted, f"{active} data workers where {state.feeding.wanted} are wanted"
    if state.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        assert active == state.feeding.wanted, f"{active} data workers, {state.feeding.wanted} are wanted"
    assert not (state.feeding.given_up and active), "data workers were given up, and some are wanted"


def _take(state: "JobState", event: Concern, at: float) -> list[actions.Action]:
    match event:
        case events.DataWorkersScaled():
            return _scaled(state, event, at)
        case events.DataWorkersRefused(why):
            return [] if state.feeding.given_up else _without(state, why, at)
        case events.RoleReady(role, address, incarnation):
            node = state.node(role)
            if not state.fenced(role, incarnation) and node.state in ALIVE:
                node.address = address
            return []
        case events.RoleExited(ended):
            return _gone(state, ended, at)
        case events.RoleSilent() | events.RoleLate() | events.DrainOverdue():
            return _overdue(state, event, at)


def _scaled(state: "JobState", event: events.DataWorkersScaled, at: float) -> list[actions.Action]:
    own = state.feeding
    if state.phase is JobPhase.DRAINING:
        raise errors.BadInput(f"job {state.spec.name} is draining: {state.why}")
    if not 0 <= event.count <= MOST:
        raise errors.BadInput(f"{event.count} data workers: wanted 0 to {MOST}")
    if event.stages and sum(stage.workers for stage in event.stages) != event.count:
        raise errors.BadInput(f"{event.count} data workers, but of stages {[one.workers for one in event.stages]}")
    if own.given_up and not event.pinned:
        raise errors.BadInput(f"job {state.spec.name} goes on without data workers: {own.given_up}")
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
    what = f"scale from {before} to {event.count} data workers{_sizes(event)}: {changed or 'nobody comes or goes'}"
    return [state.decide(what, event.why)]


def _sizes(event: events.DataWorkersScaled) -> str:
    """How large they are, in words."""
    if not event.count:
        return ""
    if len(event.stages) > 1:
        each = (str(one.workers) + ("" if one.cpu is None else f" of {one.cpu:g} CPU") for one in event.stages)
        return f" (stages: {', '.join(each)})"
    return "" if event.cpu is None else f" of {event.cpu:g} CPU"


def _resize(
    state: "JobState", stage: int, stages: int, target: StageTarget, why: str, at: float
) -> tuple[list[Role], list[Role]]:
    """Ranks of one stage: the highest leave, the lowest free ones come. Who comes, and who leaves."""
    own = [node for node in of(state) if stage_of(node.role.rank, stages) == stage]
    active = [node for node in own if node.active and not node.replaced]
    coming = _unused(state, stage, stages, max(0, target.workers - len(active)))
    leaving = active[target.workers :]
    for node in leaving:
        _let_go(node, why, at)
    for role in coming:
        _add(state, role, at)
    for node in of(state):
        if node.state is not NodeState.GONE and stage_of(node.role.rank, stages) == stage:
            node.cpu = target.cpu
    return coming, [node.role for node in leaving]


def _unused(state: "JobState", stage: int, stages: int, count: int) -> list[Role]:
    """So many ranks of a stage that nobody has, the lowest first."""
    own = [node for node in of(state) if stage_of(node.role.rank, stages) == stage]
    known = {node.role.rank for node in own}
    free = [node.role for node in own if node.state is NodeState.GONE]
    ranks = (rank for rank in range(stages - 1 - stage, MOST * stages * 2, stages) if rank not in known)
    return [*free, *(Role(RoleKind.DATA_WORKER, rank) for rank in itertools.islice(ranks, count))][:count]


def _relieve(state: "JobState", at: float) -> None:
    """Where as many feed as are wanted, those leave that others have come for."""
    targets = state.feeding.stages or (StageTarget(state.feeding.wanted, state.feeding.cpu),)
    for stage, target in enumerate(targets):
        own = [node for node in of(state) if stage_of(node.role.rank, len(targets)) == stage]
        there = [node for node in own if node.state is NodeState.JOINED]
        if sum(bool(node.address) and not node.replaced for node in there) >= target.workers:
            for node in there:
                if node.replaced:
                    _let_go(node, "another feeds in its place", at)


def _add(state: "JobState", role: Role, at: float) -> None:
    if str(role) in state.nodes:
        node = state.nodes[str(role)]
        node.move(NodeState.EXPECTED, at=at, why="wanted again")
        node.failures = node.oom_kills = 0
        node.after_s = 0.0
    else:
        node = state.nodes[str(role)] = RoleNode(role=role, since=at, heard_at=at)
    node.memory = state.spec.worker_memory


def _let_go(node: RoleNode, why: str, at: float) -> None:
    """It is not wanted any more: one that feeds gets no new indices, and leaves when all it made is fetched."""
    node.replaced = False
    if node.state is NodeState.JOINED:
        node.move(NodeState.DRAINING, at=at, why=why)
    else:
        node.removed = True
        node.move(NodeState.GONE, at=at, why=why)


def _gone(state: "JobState", ended: RoleExit, at: float) -> list[actions.Action]:
    node = state.node(ended.role)
    if ended.incarnation != node.incarnation or node.state is NodeState.GONE:
        return []
    if ended.unplaced and state.phase is not JobPhase.DRAINING:
        return _unplaced(state, node, ended, at) if node.state is NodeState.EXPECTED else []
    return _lost(state, node, recovery.after_exit(node, ended, state.spec, at=at), str(ended), at)


def _unplaced(state: "JobState", node: RoleNode, ended: RoleExit, at: float) -> list[actions.Action]:
    """There is no room for it: fewer feed, or the one stays that it was to replace."""
    _let_go(node, str(ended), at)
    own = state.feeding
    stages = max(1, len(own.stages))
    for old in of(state):
        if old.replaced and stage_of(old.role.rank, stages) == stage_of(node.role.rank, stages):
            old.replaced = False
            return [state.decide(f"{old.role} goes on: there is no place for {node.role}", str(ended))]
    own.wanted -= 1
    if own.stages:
        short = stage_of(node.role.rank, len(own.stages))
        own.stages = tuple(one._replace(workers=one.workers - (k == short)) for k, one in enumerate(own.stages))
    why = unschedulable.note(state, node, ended, at, data_workers=1)
    return [state.decide(f"go on with {state.feeding.wanted} data workers, without {node.role}", why)]


def _overdue(
    state: "JobState", event: events.RoleSilent | events.RoleLate | events.DrainOverdue, at: float
) -> list[actions.Action]:
    node = state.node(event.role)
    if node.incarnation != event.incarnation or node.state not in (NodeState.EXPECTED, *ALIVE):
        return []
    if isinstance(event, events.DrainOverdue):
        node.move(NodeState.GONE, at=at, why=f"not drained within {state.spec.drain_s:g} s")
        return []
    limit_s = state.spec.join_s if isinstance(event, events.RoleLate) else deadlines.patience_s(state, node)
    verdict = recovery.after_silence(node, event.silent_s, limit_s, state.spec, at=at)
    return _lost(state, node, verdict, f"silent for {event.silent_s:.0f} s", at)


def _lost(
    state: "JobState", node: RoleNode, verdict: recovery.Relaunch | recovery.FailJob, how: str, at: float
) -> list[actions.Action]:
    if node.state is NodeState.DRAINING or state.phase is JobPhase.DRAINING or node.replaced:
        node.replaced = False
        node.move(NodeState.GONE, at=at, why=how)
        return []
    if isinstance(verdict, recovery.FailJob):
        node.move(NodeState.GONE, at=at, why=how)
        return _without(state, verdict.error, at)
    state.begin_again(node, verdict, verdict.after_s, at)
    pause = f" after {verdict.after_s:g} s" if verdict.after_s else ""
    return [state.decide(f"relaunch {node.role} as incarnation {node.incarnation}{pause}", verdict.why)]


def _without(state: "JobState", why: str, at: float) -> list[actions.Action]:
    """No more of them; the job goes on."""
    state.feeding.wanted, state.feeding.stages, state.feeding.given_up = 0, (), why
    for node in of(state):
        if node.active:
            _let_go(node, why, at)
    return [state.decide("go on without data workers: workers read for themselves", why)]
