"""Pure. All live jobs of a brain: what each showed last, what it was promised, and what is to be decided on together.

In: consults of masters, as they come; decisions of executors. Out: `PolicyTask`s, one a policy, each with a view of the
whole cluster; then an `Advice` a job that asked. Next: `brain.service.service` moves these about. Time is an argument.

A plan may be for a job that did not ask: it is kept as an offer until that job asks. Nobody gets what another one has
yet to give back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from springtide import errors
from springtide.brain.decide import algorithms, clocks, pledges
from springtide.brain.decide.algorithms import DecisionRequest
from springtide.brain.decide.answers import DecisionByJob
from springtide.brain.decide.pledges import Pledge
from springtide.brain.decide.triggers import Administrator, EventKind
from springtide.domain.core.shape import ResourceBudget, Shape
from springtide.domain.plan.advice import Advice
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.dataworkers.cluster import core_shares, metrics
from springtide.planning.dataworkers.cluster.allocation import FedJob

MOST_LAUNCHES = 500  # of all jobs together, that a decision looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainRules:
    """How a brain works."""

    capacity: ResourceBudget
    config: PlanningConfig = field(default_factory=PlanningConfig)
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """Policies by event, or by event and cause; the config's own for all others."""
    period_s: float = 10.0
    """Seconds after which a job is looked at again though nothing is new. Its master may ask more often."""
    pledge_s: float = 180.0
    """A job that shows itself after so long and is not what it was promised will not be. One that is silent may still
    be on its way: its promise holds, unless nothing of it ever ran."""
    forget_s: float = 600.0
    """A job that has not been heard of for so long is gone, and what it had and was promised is free."""

    def __post_init__(self) -> None:
        for name in ("period_s", "pledge_s", "forget_s"):
            if not getattr(self, name) > 0:
                raise errors.BadInput(f"brain: {name} {getattr(self, name):g}; wanted seconds, more than 0")


@dataclass(slots=True, kw_only=True)
class LiveJobView:
    """One job, by the brain's clock and under the brain's name for it."""

    view: JobView
    epoch: int
    seen_at: float
    administrator: Administrator
    pledge: Pledge | None = None
    asks: DecisionRequest | None = None
    """What is to be decided on it in the next round."""
    offer: tuple[ShapePlan, float, Shape | None] | None = None
    """A plan it has not asked for, when that was made, and which shape the job had then."""
    order: DecisionRequest | None = None
    """The last one."""
    advice: Advice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTask:
    """One policy, and all that it is to look at."""

    policy: str
    view: ClusterView
    asking: Mapping[str, int]
    """Jobs that wait for an answer of this policy, and the epochs they showed."""


class ClusterState:
    """The state of a brain. `jobs` is by the brain's names."""

    def __init__(self, rules: BrainRules) -> None:
        self.rules = rules
        self.jobs: dict[str, LiveJobView] = {}
        self._held = pledges.NOTHING
        self._fed: dict[str, FedJob] = {}
        self._data_cores: dict[str, tuple[float, str]] = {}
        metrics.load(rules.config.data_workers)  # a mistake is said now

    def consult(self, view: JobView, *, epoch: int, at: float, ahead: float = 0.0) -> Advice | None:
        """A job shows itself; its answer, or None: it waits for the next decision. Its clock is so much behind."""
        advice = self._consulted(view, epoch=epoch, at=at, ahead=ahead)
        return None if advice is None else self._with_data_cores(view.name, advice)

    def _consulted(self, view: JobView, *, epoch: int, at: float, ahead: float) -> Advice | None:
        live = self._shown(clocks.shifted(view, ahead), epoch, at)
        event = live.administrator.shown(live.view, at=at)
        if live.pledge is not None:
            return self._told(live, f"it was told to become {live.pledge.plan.shape}, and has not become that yet")
        if event is not None:
            rules = self.rules
            live.asks = live.order = algorithms.order(event, live.view, rules.algorithms, otherwise=rules.config.policy)
            return None
        if live.asks is not None:  # asked again before the answer
            return None
        return self._offered(live, at) or self._told(live, _again(live, at))

    def conclude(self, name: str) -> None:
        self.jobs.pop(name, None)

    def forget(self, at: float) -> list[str]:
        """Let go of jobs that have not been heard of for long; which."""
        gone = [name for name, live in self.jobs.items() if at - live.seen_at > self._patience(live)]
        for name in gone:
            del self.jobs[name]
        return gone

    def held(self) -> ResourceBudget:
        return pledges.total(pledges.holds(live.view, live.pledge) for live in self.jobs.values())

    def assignments(self, history: tuple[PastJob, ...], at: float) -> list[PolicyTask]:
        """What is to be decided now: one a policy, each on all jobs that are not being changed."""
        self._feed()
        asking: dict[str, dict[str, int]] = {}
        for name, live in self.jobs.items():
            if live.asks is not None:
                asking.setdefault(live.asks.policy, {})[name] = live.epoch
        changing = [live for live in self.jobs.values() if live.pledge is not None]
        taken = pledges.total(pledges.holds(live.view, live.pledge) for live in changing)
        launches = [launch for live in self.jobs.values() for launch in live.view.launches]
        view = ClusterView(
            now=at,
            capacity=pledges.beside(self.rules.capacity, taken),
            jobs=tuple(live.view for live in self.jobs.values() if live.pledge is None),
            history=history,
            launches=tuple(launches[-MOST_LAUNCHES:]),
        )
        return [PolicyTask(policy=policy, view=view, asking=jobs) for policy, jobs in asking.items()]

    def settle(self, assignment: PolicyTask, decision: Decision, at: float) -> dict[str, Advice]:
        """Answers to the jobs that asked; one that has shown something else since is left for the next round."""
        said, told = DecisionByJob(decision), {}
        asked = [(name, live) for name, live in self._asked(assignment) if live.asks is not None]
        self._held = self.held()
        for name, live in sorted(asked, key=lambda one: self._grows(one[1], said)):  # who gives back goes first
            live.asks = None
            live.advice = self._answer(live, said, at)
            told[name] = self._with_data_cores(name, live.advice)
        shown = {view.name: view for view in assignment.view.jobs}
        for name, plan in said.plans.items():
            other = self.jobs.get(name)
            if other is None or name in assignment.asking or other.asks is not None or other.pledge is not None:
                continue
            if self._usual == assignment.policy and other.view is shown.get(name):
                other.offer = (plan, at, other.view.shape)
        return told

    def _feed(self) -> None:
        """Share out among data workers what workers and servers of all jobs leave."""
        free = self.rules.capacity.cpu - self.held().cpu
        allotted, self._fed = core_shares.shared(
            (live.view for live in self.jobs.values()), self._fed, free, metrics.load(self.rules.config.data_workers)
        )
        self._data_cores = {name: (cores, allotted.why[name]) for name, cores in allotted.cores.items()}

    def _with_data_cores(self, name: str, advice: Advice) -> Advice:
        cores, why = self._data_cores.get(name, (None, ""))
        if cores is None:
            return advice
        return replace(advice, data_cores=cores, notes=(*advice.notes, f"data workers: {why}"))

    def _asked(self, assignment: PolicyTask) -> list[tuple[str, LiveJobView]]:
        found = [(name, self.jobs.get(name), epoch) for name, epoch in assignment.asking.items()]
        return [(name, live) for name, live, epoch in found if live is not None and live.epoch == epoch]

    def _answer(self, live: LiveJobView, said: DecisionByJob, at: float) -> Advice:
        plan = said.plans.get(live.view.name)
        order = live.order
        notes = () if order is None else (f"{order.kind} ({order.cause}): {order.why}",)
        if plan is not None and not self._promise(live, plan, at):
            why = f"{plan.reason}; it waits until other jobs have given back what that takes"
            return Advice(epoch=live.epoch, why=why, notes=notes)
        return said.advice(live.view.name, epoch=live.epoch, notes=notes)

    def _promise(self, live: LiveJobView, plan: ShapePlan, at: float) -> bool:
        """Promise a plan if there is room. `_held` is what all jobs hold now."""
        has = pledges.holds(live.view, live.pledge)
        others = pledges.beside(self._held, has)
        if not pledges.has_room(plan, live.view, others, self.rules.capacity):
            return False
        live.pledge = Pledge(plan=plan, epoch=live.epoch, made_at=at, until=at + self.rules.pledge_s)
        live.offer = None
        self._held = pledges.total((others, pledges.holds(live.view, live.pledge)))
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

    def _shown(self, view: JobView, epoch: int, at: float) -> LiveJobView:
        live = self.jobs.get(view.name)
        if live is None:
            administrator = Administrator(view.name, period_s=self.rules.period_s)
            live = self.jobs[view.name] = LiveJobView(view=view, epoch=epoch, seen_at=at, administrator=administrator)
        live.view, live.epoch, live.seen_at = view, epoch, at
        if live.pledge is not None and not live.pledge.open(view, epoch, at=at):
            live.pledge = None
        return live

    def _patience(self, live: LiveJobView) -> float:
        """One of which nothing has run yet was given up before it began, as its promise is."""
        return min(self.rules.forget_s, self.rules.pledge_s) if live.view.shape is None else self.rules.forget_s

    def _told(self, live: LiveJobView, why: str) -> Advice:
        return Advice(epoch=live.epoch, why=why)

    def _grows(self, live: LiveJobView, said: DecisionByJob) -> bool:
        plan = said.plans.get(live.view.name)
        return plan is not None and pledges.grows(plan, live.view)

    @property
    def _usual(self) -> str:
        return self.rules.algorithms.get(EventKind.PERIODIC, self.rules.config.policy)


def _again(live: LiveJobView, at: float) -> str:
    """What is said to a job with which nothing is new: what it was told before, if that was to stay as it is."""
    if live.advice is not None and live.advice.plan is None:
        return live.advice.why
    return f"nothing is new; it is looked at again in {max(0.0, live.administrator.next_look() - at):.0f} s"
