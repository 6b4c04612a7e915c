"""Autoscales one job: asks an adviser, checks the advice, and carries out the plan one change at a time.

    settled? -> with a plan: make its next move | without, now and then: view -> adviser -> accepted? -> PlanTaken

`planning` makes the plans, `planning.policy.acceptance` rejects bad advice, and `job.scaling.plan` orders the
changes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.brain.service.advisers import AdviserThread
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import FeedShare
from springtide.domain.plan.plan import WITHOUT_BRAIN, Advice, Adviser, ShapePlan
from springtide.domain.plan.view import MEMORY, ClusterView, JobView
from springtide.domain.spec.planning_config import PlanningStage
from springtide.job.core import events
from springtide.job.scaling import plan
from springtide.master.autoscale import job_view
from springtide.master.autoscale.job_view import ViewSources
from springtide.master.autoscale.profiler import Profiler, ProfileWindow
from springtide.master.core.context import MasterContext
from springtide.master.servers.guards import ServerGuards
from springtide.master.servers.migration import SlotMigration
from springtide.planning.perf_model import measurements
from springtide.planning.policy import acceptance
from springtide.telemetry.planner_views import PlannerView

log = logging.getLogger(__name__)
T = TypeVar("T")

AFTER_FAILURE_S = 10.0  # seconds to wait after an adviser has failed
CONCLUDE_S = 5.0  # most seconds that the end of a job waits until the job is recorded in the history


class AdviserSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The adviser of a job, and its connections to the outside."""

    make: Callable[[], Adviser]
    """Function that creates the adviser at the first request, in the adviser's thread."""
    name: str
    """Name of the run, which is unique; the job's name is not."""
    wall: Callable[[], float]
    """Wall clock, for records that outlive the job."""
    show: Callable[[PlannerView], None] = lambda _: None
    """Function that saves the view that the adviser gets, for people to read."""
    keep: Callable[[int], None] = lambda _: None
    """Function that stores the last saved view as the basis of an epoch's plan."""
    thread: AdviserThread | None = None
    """Thread of the adviser; None means that the adviser runs in the caller's event loop."""


class Autoscaler:
    """Autoscaler of one job. The autoscaler does nothing if the job does not plan or has no adviser."""

    def __init__(
        self, context: MasterContext, guards: ServerGuards, migration: SlotMigration, advised: AdviserSetup | None
    ) -> None:
        self._context, self._migration, self._advised = context, migration, advised
        record = context.record
        self._rules = context.state.spec.planning
        self.watching = Profiler(self._rules)
        name = advised.name if advised else self._context.state.spec.name
        self._sources = ViewSources(name=name, record=record, watching=self.watching, guards=guards, usage={})
        self._next_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._concluding: asyncio.Task[None] | None = None
        self._adviser: Adviser | None = None
        self._pace: float | None = None
        self._fed: FeedShare | None = None
        self.data_cores: float | None = None
        """Cores for data workers in the last advice of a shared brain; None if the adviser gave no advice."""
        self._content = False
        """True if the adviser's last advice was to leave the job unchanged."""

    @property
    def shape(self) -> Shape | None:
        return self.watching.era.shape if self.watching.era else None

    @property
    def settled(self) -> bool:
        own = self._context.state.planned
        return self._content and own.target is None and own.stage is PlanningStage.ADJUSTING

    def begin(self) -> None:
        if self._rules.on and self._advised is not None:
            self._log_plan("started", None, f"{plan.shape_of(self._context.state)}: {self._rules.why}")

    def tick(self, usage: Mapping[Role, RoleUsage], fed: FeedShare | None = None) -> None:
        """Take the next step. `fed` describes the data workers, for a planner that divides cores among jobs."""
        if not self._rules.on or self._advised is None:
            return
        now, state = self._context.clock(), self._context.state
        self._sources, self._fed = replace(self._sources, usage=usage), fed
        why = plan.unsettled(state, moving=self._migration.moving)
        nodes = [*state.of_kind(RoleKind.SERVER), *state.of_kind(RoleKind.WORKER)]
        shape = None if why or state.planned.target is not None else plan.shape_of(state)
        self.watching.poll(shape, nodes, usage, at=now)
        if state.phase.over:
            self._conclude()
        elif not why and state.planned.target is not None:
            self._context.apply(events.PlanAdvanced(self._sources.record.book.largest_group))
        elif not why and self._asking is None and now >= self._next_at and self._worth_asking(now):
            self._next_at = now + self._rules.every_s
            self._asking = asyncio.get_running_loop().create_task(self._ask_adviser())
            self._asking.add_done_callback(self._on_asked)

    def _worth_asking(self, now: float) -> bool:
        era = self.watching.era
        measured = era is not None and now >= era.since + self._rules.settle_s + self._rules.window_s
        return measured or any(finding.trouble in MEMORY for finding in job_view.findings(self._sources, now=now))

    async def close(self) -> None:
        if self._advised is None:
            return
        if self._asking is not None:
            self._asking.cancel()
        tasks = [task for task in (self._asking, self._concluding) if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        adviser = self._adviser
        try:
            async with asyncio.timeout(CONCLUDE_S):
                if adviser is not None:
                    await self._aside(lambda: adviser.close())
        except Exception as error:  # an adviser may run third-party code
            log.warning("the adviser could not be closed: %s", error)
        if self._advised.thread is not None:
            self._advised.thread.stop()

    # ---- asking ----

    async def _ask_adviser(self) -> None:
        now = self._context.clock()
        view = job_view.view(self._sources, now=now)
        if view is None or self._advised is None:
            return
        view = replace(view, fed=self._fed)
        window = self.watching.window(view.facts.batch)
        epoch, seen = self._context.state.planned.epoch, view

        async def think() -> tuple[JobView, Advice]:
            measured = self._measured(seen, window, now)
            return measured, await self._make_adviser().advise(measured, epoch=epoch, now=now)

        try:
            async with asyncio.timeout(self._rules.patience_s):
                measured, advice = await self._aside(think)
        except TimeoutError:
            return self._failed(f"the adviser has not answered for {self._rules.patience_s:g} s")
        except errors.SpringtideError as error:
            return self._failed(f"the adviser cannot answer: {error}")
        except Exception as error:  # a policy or a brain may run third-party code
            return self._failed(f"the adviser failed: {type(error).__name__}: {error}")
        self._answer(advice, measured)

    def _on_asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()):
            log.error("planning failed", exc_info=error)
            self._failed(f"planning failed: {type(error).__name__}: {error}")

    async def _aside(self, work: Callable[[], Coroutine[Any, Any, T]], *, wait: bool = False) -> T:
        assert self._advised is not None
        return await (self._advised.thread.run(work, wait=wait) if self._advised.thread is not None else work())

    def _make_adviser(self) -> Adviser:
        assert self._advised is not None
        self._adviser = self._adviser or self._advised.make()
        return self._adviser

    def _measured(self, view: JobView, window: ProfileWindow, now: float) -> JobView:
        """Add profiles to the view, and save it. Runs in the adviser's thread, because the profiles of many workers
        take time to compute."""
        view = replace(view, profiles=window.profiles())
        here = measurements.now(view)
        self._pace = here.throughput if here is not None else self._pace
        seen = ClusterView(now=now, capacity=view.bounds.quota, jobs=(view,), launches=view.launches)
        try:
            assert self._advised is not None
            self._advised.show(PlannerView(view=seen, config=self._rules.config))
        except errors.SpringtideError as error:
            log.warning("the planner's view of the job cannot be saved: %s", error)
        return view

    def _failed(self, why: str) -> None:
        self.data_cores = None
        self._content = False
        self._next_at = self._context.clock() + AFTER_FAILURE_S
        self._log_plan("failed", None, why)

    # ---- answering ----

    def _answer(self, advice: Advice, asked: JobView) -> None:
        now = self._context.clock()
        by_now = job_view.view(self._sources, now=now)
        if by_now is None or plan.unsettled(self._context.state, moving=self._migration.moving):
            return  # recovery and the end of the job take precedence
        self._content = False
        wrong = acceptance.refused(advice, by_now, self._rules.config, epoch=self._context.state.planned.epoch, now=now)
        if wrong:
            return self._log_plan("refused", advice.plan, wrong)
        self.data_cores = advice.data_cores
        if advice.plan is None:
            self._keep_shape(advice, asked)
        else:
            self._take(advice.plan, advice.notes)

    def _keep_shape(self, advice: Advice, asked: JobView) -> None:
        """Leave the job unchanged. A job that was measured for long enough then has its final size."""
        config, stage = self._rules.config, self._context.state.planned.stage
        here, quiet = measurements.now(asked), asked.progress.unchanged_s(at=self._context.clock())
        enough = here is not None and (here.steps >= config.sample_steps or quiet >= config.sample_s)
        self._content = enough and quiet >= config.between_changes_s
        self._log_plan("nothing", None, advice.why, notes=advice.notes)
        if self._content and stage is not PlanningStage.ADJUSTING:
            self._apply(events.PlanEnded(PlanningStage.ADJUSTING))

    def _take(self, plan: ShapePlan, notes: tuple[str, ...]) -> None:
        stage = self._context.state.planned.stage
        assert self._advised is not None
        self._advised.keep(self._context.state.planned.epoch)
        self._log_plan("taken", plan, plan.reason, notes=notes)
        self._apply(events.PlanTaken(plan.shape, plan.stage or stage, plan.reason))

    def _apply(self, event: events.JobEvent) -> None:
        try:
            self._context.apply(event)
        except errors.BadInput as refused:
            log.info("the job refuses %s: %s", type(event).__name__, refused)

    def _log_plan(self, outcome: str, plan: ShapePlan | None, why: str, notes: tuple[str, ...] = ()) -> None:
        """Log a decision. Skip a decision without a plan whose reason differs from the last reason only in numbers."""
        alone = any(note.startswith(WITHOUT_BRAIN) for note in notes)
        news = self._context.is_news("plan", f"{outcome} {why}{' by itself' if alone else ''}")
        if outcome != "taken" and not news:
            return
        shape = str(plan.shape) if isinstance(plan, ShapePlan) else None
        details = {"throughput": plan.throughput, "cost": plan.cost} if isinstance(plan, ShapePlan) else {}
        stage, epoch = self._context.state.planned.stage, self._context.state.planned.epoch
        self._context.log_event(
            "plan", outcome=outcome, shape=shape, why=why, stage=stage, epoch=epoch, notes=list(notes), **details
        )
        if outcome != "taken":
            same = "leave the job as it is"
            what = {"nothing": same, "failed": same, "started": "begin small"}.get(outcome, "reject a plan")
            what = (
                "begin with the final sizes of similar jobs"
                if what == "begin small" and stage is PlanningStage.OPTIMIZING
                else what
            )
            self._apply(events.DecisionMade(what, why, told=True))

    # ---- the end ----

    def _conclude(self) -> None:
        if self._concluding is None:
            self._concluding = asyncio.get_running_loop().create_task(self._remember())

    async def _remember(self) -> None:
        assert self._advised is not None
        over = job_view.past(self._sources, self._pace, ended_at=self._advised.wall())
        if over.shape is None and not self._rules.adviser.brain:
            # the job ended while the loop sampled, so the sample is of no use; only a shared brain needs to know that
            # the job ended
            return
        try:
            async with asyncio.timeout(CONCLUDE_S):
                await self._aside(lambda: self._make_adviser().conclude(over), wait=True)
        except Exception as error:  # do not fail, because the job itself has ended well
            log.warning("the job could not be recorded in the history: %s: %s", type(error).__name__, error)
            self._context.log_event("plan", outcome="forgotten", shape=None, why=f"{type(error).__name__}: {error}")
