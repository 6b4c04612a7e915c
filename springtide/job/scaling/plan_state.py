"""Pure. What planning has made of a job: its stage, what its roles may take, and the plan that is being carried out.

In: `job.state` with the events of a plan. Out: what was decided, for the story. All of it is journaled with the job, so
a master that takes over goes on with a plan where the one before was. Next: `job.scaling.plan_moves` says which move
comes next.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.core.stages import PlanningStage
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import bounds as bounding

if TYPE_CHECKING:
    from springtide.job.state import JobState

Reasoned = tuple[str, str]
Happening = events.RolesResized | events.PlanTaken | events.PlanEnded | events.BoundsChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSize:
    """What one role may take; None: as much as there is."""

    cpu: float | None = None
    memory: int | None = None


@dataclass(slots=True, kw_only=True)
class PlanState:
    """Of one job."""

    stage: PlanningStage = PlanningStage.WAITING
    sizes: dict[RoleKind, RoleSize]
    """Of roles to come, by kind."""
    target: Shape | None = None
    """The plan that is being carried out; None: none is."""
    cpus: tuple[tuple[int, float], ...] = ()
    extra_target: int = 0
    """Workers of low priority that the plan has beside its shape."""
    extra: int = 0
    """Those that are wanted now: the job's number of workers counts them, its shape does not."""
    servers_first: bool = False
    asked: tuple[str, ...] = ()
    """Moves of it that were asked for already."""
    why: str = ""
    changed_at: float | None = None
    """When the shape was changed last, by whomever."""
    pinned: tuple[str, ...] = ()
    """`workers`, `servers`: what the user has set by hand while the job ran."""
    limits: bounding.Limits = field(default_factory=dict)
    """Bounds that the user has changed while the job ran, by `bounding.NUMBERS`."""
    epoch: int = 0
    """How often anything here has changed: advice for an earlier one does not count."""

    def changed(self, at: float, *, planned: bool, asked: str, pinned: bool = False) -> None:
        """The shape is another one from now on. If nobody planned that, the plan is not what is wanted any more."""
        self.changed_at, self.epoch = at, self.epoch + 1
        if planned:
            self.asked = (*self.asked, asked)
        else:
            self.drop()
        if pinned and asked not in self.pinned:
            self.pinned = (*self.pinned, asked)

    def drop(self) -> None:
        """No plan is being carried out."""
        self.target, self.cpus, self.asked, self.extra_target = None, (), (), self.extra


def begin(spec: JobSpec) -> PlanState:
    """A job's first shape is what it was asked for."""
    return PlanState(
        stage=spec.planning.stage if spec.planning.on else PlanningStage.WAITING,
        why=spec.planning.why,
        sizes={
            RoleKind.WORKER: RoleSize(cpu=spec.worker_cpu, memory=spec.worker_memory),
            RoleKind.SERVER: RoleSize(cpu=spec.server_cpu, memory=spec.server_memory),
        },
    )


def take(state: "JobState", event: Happening, at: float) -> Reasoned | None:
    """Take in an event of a plan; what was decided, if that is news."""
    planned = state.planned
    if state.phase is JobPhase.DRAINING:
        raise errors.BadInput(f"job {state.spec.name} is draining: {state.why}")
    match event:
        case events.PlanTaken():
            planned.epoch += 1
            planned.changed_at = at
            planned.target, planned.cpus, planned.asked = event.shape, event.cpus, ()
            planned.extra_target = event.extra_workers
            planned.stage, planned.servers_first, planned.why = event.stage, event.servers_first, event.why
            low = f", {event.extra_workers} more workers of low priority" if event.extra_workers else ""
            return f"plan: {event.shape}{low}", event.why
        case events.PlanEnded():
            planned.epoch += 1
            target, planned.stage = planned.target, event.stage
            planned.drop()
            return (f"drop the plan for {target}", event.why) if event.why and target else None
        case events.RolesResized():
            return _resize(state, event, at)
        case events.BoundsChanged():
            return bounding.take(state, event)


def _resize(state: "JobState", event: events.RolesResized, at: float) -> Reasoned:
    size = RoleSize(cpu=event.cpu, memory=event.memory)
    state.planned.sizes[event.kind] = size
    state.planned.changed(at, planned=True, asked=f"{event.kind}_cpu")
    for node in state.of_kind(event.kind):
        if node.state is not NodeState.GONE:
            node.cpu, node.memory = size.cpu, size.memory
    cores = "all cores" if size.cpu is None else f"{size.cpu:g} CPU"
    return f"give each {event.kind} {cores}", event.why


def shape_of(state: "JobState") -> Shape:
    """The shape that the job is to have now. A role without a limit counts as what the bounds reckon it to take."""
    bounds = state.spec.planning.bounds
    assert bounds is not None
    sizes = state.planned.sizes
    return Shape(
        workers=state.workers - state.planned.extra,
        servers=state.servers_wanted,
        worker_cpu=sizes[RoleKind.WORKER].cpu or bounds.least.worker_cpu,
        server_cpu=sizes[RoleKind.SERVER].cpu or bounds.least.server_cpu,
        worker_memory=sizes[RoleKind.WORKER].memory or 0,
        server_memory=sizes[RoleKind.SERVER].memory or 0,
    )


def bounds_of(state: "JobState") -> ShapeBounds:
    """Shapes that the job may have: its bounds, with what the user has set by hand and what bsp does not allow pinned.

    The workers of a bsp group may be more or fewer, its servers stay as they are. Cores of data workers are not for
    workers and servers; what those have already is not taken from them.
    """
    bounds, now = state.spec.planning.bounds, shape_of(state)
    assert bounds is not None
    pinned = (*state.planned.pinned, "servers") if state.in_step else state.planned.pinned
    fixed = {name: getattr(now, name) for name in ("workers", "servers") if name in pinned}
    least, most = (replace(end, **fixed) for end in bounding.within(bounds, state.planned.limits))
    for name in ("workers", "servers"):
        if getattr(state.short, name):  # there is no room for more: that is not planned again at once
            fewest, here = getattr(least, name), getattr(now, name)
            least, most = replace(least, **{name: min(fewest, here)}), replace(most, **{name: here})
    quota, fed = bounds.quota, state.feeding.cores(state.spec.feeding)
    if fed:
        quota = replace(quota, cpu=max(quota.cpu - fed, min(quota.cpu, now.cpu)))
    if not quota.holds(least):  # what the user wants by hand is the user's to answer for
        quota = replace(quota, cpu=max(quota.cpu, least.cpu), memory=max(quota.memory, least.memory))
    return replace(bounds, least=least, most=most, quota=quota)


def unsettled(state: "JobState", *, moving: int) -> str:
    """Why what runs is not what is wanted, so that nothing is measured or changed; empty: it is."""
    if state.phase is not JobPhase.RUNNING:
        return f"the job is {state.phase}"
    if state.healing:
        return "a server is away"
    if moving:
        return f"{moving} slots are on their way"
    for kind, wanted in ((RoleKind.SERVER, state.servers_wanted), (RoleKind.WORKER, state.workers)):
        nodes = state.of_kind(kind)
        if any(node.state is NodeState.DRAINING for node in nodes):
            return f"a {kind} drains"
        if any(node.finished and not node.removed for node in nodes):
            return "a script has ended"
        if any(node.state is NodeState.EXPECTED or node.replaced for node in nodes):
            return f"a {kind} is awaited"
        joined = sum(node.state is NodeState.JOINED for node in nodes)
        if joined != wanted:
            return f"{joined} of {wanted} {kind}s are there"
    if state.in_step and state.group and len(state.group) != state.workers:
        return f"{len(state.group)} of {state.workers} workers are in the bsp group: it is formed anew soon"
    return ""
