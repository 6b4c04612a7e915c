"""Pure. State of all live jobs of a brain: last views, promised plans and pending decisions. Time is an argument of
every function.

Out: one `PolicyTask` per policy, with a view of the whole cluster; then one `Advice` for each job that asked for one.
If a job did not ask, the brain stores the job's plan as an offer until the job asks. The brain never promises resources
that another job has yet to release.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from springtide import errors
from springtide.brain.decide import triggers
from springtide.brain.decide.triggers import Administrator, DecisionRequest, EventKind
from springtide.domain.core.shape import NOTHING, ResourceBudget, Shape, resources_of
from springtide.domain.plan.plan import Advice, Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.dataworkers import allocation
from springtide.planning.dataworkers.allocation import FedJob

MOST_NOTES = 20  # most notes in one advice; a decision about a whole cluster may contain thousands of notes
PLAN_FOR = "plan for "


class DecisionByJob:
    """A decision with its plans and notes grouped by job. Grouping once is fast, even with thousands of jobs."""

    def __init__(self, decision: Decision) -> None:
        self.plans = {plan.job: plan for plan in decision.plans}
        self._why = decision.why
        self._own: dict[str, list[str]] = {}
        self._common: list[str] = []
        for note in decision.notes:
            about, mark, rest = note.partition(": ")
            if about.startswith(PLAN_FOR):
                self._own.setdefault(about.removeprefix(PLAN_FOR).removesuffix(" refused"), []).append(note)
            elif mark:
                self._own.setdefault(about, []).append(rest)
            else:
                self._common.append(note)

    def advice(self, job: str, *, epoch: int, notes: Sequence[str] = ()) -> Advice:
        """Return the job's part of the decision, without notes about other jobs."""
        own, plan = self._own.get(job, []), self.plans.get(job)
        if plan is not None:
            return Advice(epoch=epoch, plan=plan, why=plan.reason, notes=(*notes, *own, *self._common)[:MOST_NOTES])
        why = own[0] if own else f"the job does not change: {self._why}"
        return Advice(epoch=epoch, why=why, notes=(*notes, *own[1:], *self._common)[:MOST_NOTES])


def shifted(view: JobView, by: float) -> JobView:
    return replace(
        view,
        progress=view.progress.shifted(by),
        profiles=tuple(replace(profile, at=profile.at + by) for profile in view.profiles),
    )


MARK = "@"


class JobNames:
    """Names of jobs by key. The key identifies the job, because a job's name may change between submission and
    start."""

    def __init__(self) -> None:
        self._by_digest: dict[str, str] = {}

    def of(self, job: str, key: str) -> str:
        """Return `job@1a2b3c4d5e6f7a8b`, with the first name seen for the key; the name alone without a key."""
        if not key:
            return job
        digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        return self._by_digest.setdefault(digest, f"{job}{MARK}{digest}")

    def restore(self, names: Iterable[str]) -> None:
        for name in names:
            _, mark, digest = name.rpartition(MARK)
            if mark:
                self._by_digest.setdefault(digest, name)

    def forget(self, name: str) -> None:
        self._by_digest.pop(name.rpartition(MARK)[2], None)


def own_words(advice: Advice, job: str) -> Advice:
    return advice if advice.plan is None else replace(advice, plan=replace(advice.plan, job=job))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledge:
    """A plan that the brain sent to a job."""

    plan: ShapePlan
    epoch: int
    made_at: float
    until: float
    """Deadline of the plan. If the job reports a different shape after the deadline, it has refused the plan or never
    received the plan.
    """

    def open(self, view: JobView, epoch: int, *, at: float) -> bool:
        """Return True if the job may still carry out the plan.

        If a master asks again with the same epoch, it did not accept the plan: masters drop late replies. If the job
        has a newer epoch and another shape, it could not carry out the plan.
        """
        if view.shape == self.plan.shape or epoch == self.epoch or at >= self.until:
            return False
        changed_at = view.progress.last_change_at
        changed = changed_at is not None and changed_at > self.made_at
        return not (changed and view.shape is not None)


def holds(view: JobView, pledge: Pledge | None) -> ResourceBudget:
    has = resources_of(view.shape)
    if pledge is None:
        return has
    return has.joined(resources_of(pledge.plan.shape), max)


def grows(plan: ShapePlan | None, view: JobView) -> bool:
    return plan is not None and resources_of(plan.shape).exceeds(resources_of(view.shape))


def has_room(plan: ShapePlan, view: JobView, others: ResourceBudget, capacity: ResourceBudget) -> bool:
    """Return True if the plan needs no more resources than the job has, or if all jobs together still fit into the
    capacity."""
    wants, has = resources_of(plan.shape).amounts, resources_of(view.shape).amounts
    amounts = zip(wants, has, others.amounts, strict=True)
    return capacity.fits(*(0.0 if wanted <= held else wanted + other for wanted, held, other in amounts))


MOST_LAUNCHES = 500  # most launch times in one decision, summed over all jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainRules:
    """Settings of a brain."""

    capacity: ResourceBudget
    config: PlanningConfig = field(default_factory=PlanningConfig)
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """Policies by event, or by event and cause. The configured policy handles all other events."""
    period_s: float = 10.0
    """Seconds until the brain reviews a job for which there was no event. A master may ask more often."""
    pledge_s: float = 180.0
    """Seconds until a promise expires, if the job has reported since the promise. If the job has not reported, the
    promise stays open.
    """
    forget_s: float = 600.0
    """Seconds without a report until the brain forgets a job and frees its resources and promises."""

    def __post_init__(self) -> None:
        for name in ("period_s", "pledge_s", "forget_s"):
            if not getattr(self, name) > 0:
                raise errors.BadInput(f"brain: {name} {getattr(self, name):g}; expected seconds, more than 0")


@dataclass(slots=True, kw_only=True)
class LiveJobView:
    """One live job. Its times are by the brain's clock, and its name is the one that the brain uses."""

    view: JobView
    epoch: int
    seen_at: float
    administrator: Administrator
    pledge: Pledge | None = None
    request: DecisionRequest | None = None
    """Last request for a decision."""
    asks: bool = False
    """True until the brain has decided on `request`."""
    offer: tuple[ShapePlan, float, Shape | None] | None = None
    """Plan that the brain made for a job that had not asked, the time of the plan, and the job's shape at that time."""
    advice: Advice | None = None
    kept_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTask:
    """A policy and the cluster view that it decides on."""

    policy: str
    view: ClusterView
    asking: Mapping[str, int]
    """Jobs that wait for this policy's decision, with the epochs of their views."""


class ClusterState:
    """The brain's state. The keys of `jobs` are the brain's names for jobs."""

    def __init__(self, rules: BrainRules) -> None:
        self.rules = rules
        self.jobs: dict[str, LiveJobView] = {}
        self._held = NOTHING
        self._fed: dict[str, FedJob] = {}
        self._data_cores: dict[str, tuple[float, str]] = {}
        allocation.load(rules.config.data_workers)  # report a wrong setting at the start

    def consult(self, view: JobView, *, epoch: int, at: float, ahead: float = 0.0) -> Advice | None:
        """Return the advice; None if the job must wait for the next decision. `ahead` is the brain's clock minus the
        master's clock, in seconds."""
        advice = self._consulted(view, epoch=epoch, at=at, ahead=ahead)
        return None if advice is None else self._with_data_cores(view.name, advice)

    def _consulted(self, view: JobView, *, epoch: int, at: float, ahead: float) -> Advice | None:
        live = self._observe(shifted(view, ahead), epoch, at)
        event = live.administrator.observe(live.view, at=at)
        if live.pledge is not None:
            why = f"the job was advised to change to {live.pledge.plan.shape}, and does not have that shape yet"
            return Advice(epoch=live.epoch, why=why)
        if event is not None:
            rules = self.rules
            live.request = triggers.request(event, live.view, rules.algorithms, otherwise=rules.config.policy)
            live.asks = True
            return None
        if live.asks:  # the master has repeated its request before the brain decided
            return None
        return self._offered(live, at) or Advice(epoch=live.epoch, why=_again(live, at))

    def conclude(self, name: str) -> None:
        self.jobs.pop(name, None)

    def forget(self, at: float) -> list[str]:
        gone = [name for name, live in self.jobs.items() if at - live.seen_at > self._patience(live)]
        for name in gone:
            del self.jobs[name]
        return gone

    def held(self) -> ResourceBudget:
        return sum((holds(live.view, live.pledge) for live in self.jobs.values()), NOTHING)

    def assignments(self, history: tuple[PastJob, ...], at: float) -> list[PolicyTask]:
        """Return one task for each policy whose jobs wait for a decision. Each task includes all jobs without an open
        promise.
        """
        self._feed()
        asking: dict[str, dict[str, int]] = {}
        for name, live in self.jobs.items():
            if live.asks and live.request is not None:
                asking.setdefault(live.request.policy, {})[name] = live.epoch
        changing = [live for live in self.jobs.values() if live.pledge is not None]
        taken = sum((holds(live.view, live.pledge) for live in changing), NOTHING)
        launches = [launch for live in self.jobs.values() for launch in live.view.launches]
        view = ClusterView(
            now=at,
            capacity=self.rules.capacity - taken,
            jobs=tuple(live.view for live in self.jobs.values() if live.pledge is None),
            history=history,
            launches=tuple(launches[-MOST_LAUNCHES:]),
        )
        return [PolicyTask(policy=policy, view=view, asking=jobs) for policy, jobs in asking.items()]

    def advise(self, assignment: PolicyTask, decision: Decision, at: float) -> dict[str, Advice]:
        """Return advice for the jobs that asked. A job with a newer view waits for the next round."""
        by_job, advice = DecisionByJob(decision), {}
        asked = [
            (name, live)
            for name, epoch in assignment.asking.items()
            if (live := self.jobs.get(name)) is not None and live.epoch == epoch and live.asks
        ]
        self._held = self.held()
        # handle shrinking jobs first, because they free resources for growing jobs
        for name, live in sorted(asked, key=lambda pair: grows(by_job.plans.get(pair[0]), pair[1].view)):
            live.asks = False
            live.advice = self._answer(live, by_job, at)
            advice[name] = self._with_data_cores(name, live.advice)
        shown = {view.name: view for view in assignment.view.jobs}
        for name, plan in by_job.plans.items():
            other = self.jobs.get(name)
            if other is None or name in assignment.asking or other.asks or other.pledge is not None:
                continue
            if self._usual == assignment.policy and other.view is shown.get(name):
                other.offer = (plan, at, other.view.shape)
        return advice

    def _feed(self) -> None:
        """Divide the cores that workers and servers leave free among the data workers of all jobs."""
        free = self.rules.capacity.cpu - self.held().cpu
        allotted, self._fed = allocation.shared(
            (live.view for live in self.jobs.values()), self._fed, free, allocation.load(self.rules.config.data_workers)
        )
        self._data_cores = {name: (cores, allotted.why[name]) for name, cores in allotted.cores.items()}

    def _with_data_cores(self, name: str, advice: Advice) -> Advice:
        cores, why = self._data_cores.get(name, (None, ""))
        if cores is None:
            return advice
        return replace(advice, data_cores=cores, notes=(*advice.notes, f"data workers: {why}"))

    def _answer(self, live: LiveJobView, decision: DecisionByJob, at: float) -> Advice:
        plan = decision.plans.get(live.view.name)
        request = live.request
        notes = () if request is None else (f"{request.kind} ({request.cause}): {request.why}",)
        if plan is not None and not self._promise(live, plan, at):
            why = f"{plan.reason}; the plan waits until other jobs have released these resources"
            return Advice(epoch=live.epoch, why=why, notes=notes)
        return decision.advice(live.view.name, epoch=live.epoch, notes=notes)

    def _promise(self, live: LiveJobView, plan: ShapePlan, at: float) -> bool:
        """Promise a plan if the capacity suffices. `_held` is the total of all jobs."""
        has = holds(live.view, live.pledge)
        others = self._held - has
        if not has_room(plan, live.view, others, self.rules.capacity):
            return False
        live.pledge = Pledge(plan=plan, epoch=live.epoch, made_at=at, until=at + self.rules.pledge_s)
        live.offer = None
        self._held = others + holds(live.view, live.pledge)
        return True

    def _offered(self, live: LiveJobView, at: float) -> Advice | None:
        if live.offer is None:
            return None
        plan, made_at, shape = live.offer
        live.offer = None
        if shape != live.view.shape or at - made_at > 2 * self.rules.period_s:
            return None
        self._held = self.held()
        if not self._promise(live, plan, at):
            return None
        live.advice = Advice(epoch=live.epoch, plan=plan, why=plan.reason, notes=("decided with other jobs",))
        return live.advice

    def _observe(self, view: JobView, epoch: int, at: float) -> LiveJobView:
        live = self.jobs.get(view.name)
        if live is None:
            administrator = Administrator(period_s=self.rules.period_s)
            live = self.jobs[view.name] = LiveJobView(view=view, epoch=epoch, seen_at=at, administrator=administrator)
        live.view, live.epoch, live.seen_at = view, epoch, at
        if live.pledge is not None and not live.pledge.open(view, epoch, at=at):
            live.pledge = None
        return live

    def _patience(self, live: LiveJobView) -> float:
        """Return how many seconds without a report the brain waits until it forgets a job. The brain forgets a job that
        never ran when its promise expires."""
        return min(self.rules.forget_s, self.rules.pledge_s) if live.view.shape is None else self.rules.forget_s

    @property
    def _usual(self) -> str:
        return self.rules.algorithms.get(EventKind.PERIODIC, self.rules.config.policy)


def _again(live: LiveJobView, at: float) -> str:
    """Return the reason to send to a job without an event: the reason of the last advice, if that advice was to keep
    the shape."""
    if live.advice is not None and live.advice.plan is None:
        return live.advice.why
    return f"nothing has changed; the next decision is in {max(0.0, live.administrator.next_look() - at):.0f} s"
