"""Manages data workers on the master: how they join, the list of data workers for trainers, statistics, and scaling.

`planning.dataworkers` decides. Out: events for `job.scaling.data_workers`, and the list of data workers for members
that have an older list. Statistics are not journaled: a master that takes over observes again.
"""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from springtide import errors
from springtide.domain.core.roles import Life, Role, RoleKind, RoleUsage
from springtide.domain.data.data_workers import (
    FeedSeen,
    FeedShare,
    FeedState,
    FeedTarget,
    StageTarget,
    spread,
    stage_of,
)
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import events
from springtide.job.core.nodes import ALIVE, NodeState, RoleNode
from springtide.job.scaling import data_workers
from springtide.job.state import JobState
from springtide.master.autoscale.loop import Autoscaler
from springtide.master.core.context import MasterContext
from springtide.master.data.shared_values import SharedValues
from springtide.planning.dataworkers import observation, tuner
from springtide.planning.dataworkers.observation import Cores, StageCores, TrainerReport
from springtide.planning.dataworkers.tuning_rules import Tuning
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ValueRequest
from springtide.rpc.messages.data_workers import (
    PACKAGE_KEY,
    CannotFeed,
    DataWorkerReady,
    DataWorkerWelcome,
    Feeder,
    Feeders,
    Package,
    TrainedWithout,
    WorkerDecision,
)
from springtide.rpc.messages.types import Reply, Request
from springtide.telemetry.host import gpus
from springtide.telemetry.logs import RunFiles

USE_EVERY_S = 1.0  # seconds between two readings of a role's CPU time
KEPT = 4096  # most reports to keep for a trainer, and most readings for a role: about an hour at one a second


class StageLayout(NamedTuple):
    """Number of stages of the job's data program, as far as the master knows it, and the GPUs of the stages."""

    number: int = 1
    gpu: tuple[int, ...] = ()
    free_gpu: int = 0


ONE_STAGE = StageLayout()


class FeedStats:
    """Feed statistics of one job."""

    def __init__(self) -> None:
        self._told: dict[Life, deque[TrainerReport]] = {}
        self._used: dict[Life, deque[tuple[float, float]]] = {}

    def on_report(self, life: Life, state: FeedState, *, at: float) -> None:
        self._told.setdefault(life, deque(maxlen=KEPT)).append(TrainerReport(at, state))

    def measure(self, usage: Mapping[Role, RoleUsage], *, at: float) -> None:
        for role, used in usage.items():
            seen = self._used.setdefault(Life(role, used.incarnation), deque(maxlen=KEPT))
            if not seen or at >= seen[-1][0] + USE_EVERY_S:
                seen.append((at, used.cpu_s))

    def forget(self, before: float) -> None:
        for reports in self._told.values():
            while len(reports) > 1 and reports[1].at < before:
                reports.popleft()
        for used in self._used.values():
            while len(used) > 1 and used[1][0] < before:
                used.popleft()
        self._told = {life: reports for life, reports in self._told.items() if reports[-1].at >= before}
        self._used = {life: used for life, used in self._used.items() if used[-1][0] >= before}

    def seen(
        self,
        state: JobState,
        *,
        at: float,
        since: float,
        cores: float,
        hold: bool,
        stages: StageLayout = ONE_STAGE,
        given: float | None = None,
    ) -> FeedSeen | None:
        """Return the observation of the interval from `since` to `at`; None if there is not enough data. `cores` are
        the cores of the whole job. `hold` is True if CPU limits of trainers can be changed. `given` are the data
        workers' cores, if a brain has set them.
        """
        reports = {str(life): words for life, words in self._living(state).items()}
        held = self._cores(state, since, cores, stages, hold=hold)
        if given is not None:
            held = held._replace(free_cpu=given - of_data_workers(state))
        feeding = [_feeding(state, stage, stages.number) for stage in range(stages.number)]
        asked = [{str(_life(node)): self._told.get(_life(node), ()) for node in nodes} for nodes in feeding[1:]]
        seen = observation.see(reports, held, at=at, since=since, earlier=asked)
        return seen and replace(seen, free_gpu=stages.free_gpu)

    def _stage(self, nodes: Sequence[RoleNode], since: float, gpu: bool) -> StageCores:
        used = _mean([self._used_by(node, since) for node in nodes])
        return StageCores(len(nodes), _mean([node.cpu or 0.0 for node in nodes]), used, gpu)

    def _living(self, state: JobState) -> dict[Life, Sequence[TrainerReport]]:
        nodes = [node for node in state.of_kind(RoleKind.WORKER) if node.state in ALIVE]
        return {life: self._told[life] for node in nodes if (life := _life(node)) in self._told}

    def _cores(self, state: JobState, since: float, cores: float, stages: StageLayout, *, hold: bool) -> Cores:
        present = [node for node in state.nodes.values() if node.state is not NodeState.GONE and not _relieved(node)]
        feeding = [_feeding(state, stage, stages.number) for stage in range(stages.number)]
        gpu = stages.gpu if stages.number > 1 else ()
        workers = [node for node in state.of_kind(RoleKind.WORKER) if node.state in ALIVE]
        held = sum(node.cpu for node in present if node.cpu is not None)
        loose = sum(self._used_by(node, since) for node in present if node.cpu is None)
        return Cores(
            stages=tuple(self._stage(nodes, since, at in gpu) for at, nodes in enumerate(feeding)),
            trainer_cpu=_mean([node.cpu or 0.0 for node in workers]) if hold else 0.0,
            trainer_cpu_used=_mean([self._used_by(node, since) for node in workers]),
            free_cpu=_free(cores, held, loose),
            share_cpu=cores / max(1, len(workers)),
        )

    def _used_by(self, node: RoleNode, since: float) -> float:
        seen = [reading for reading in self._used.get(_life(node), ()) if reading[0] >= since]
        if len(seen) < 2:
            return 0.0
        return max(0.0, seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def _free(cores: float, held: float, loose: float) -> float:
    """Return the cores that no limit reserves. The number is negative if the limits exceed the job's cores. Roles
    without a limit use at most this many cores."""
    return min(cores - held, max(0.0, cores - held - loose))


def of_data_workers(state: JobState) -> float:
    return sum(node.cpu or 0.0 for node in _there(state))


def all_feed(state: JobState) -> bool:
    """Return True if no data worker is starting or leaving. While a data worker starts or leaves, the measured speed
    belongs to a different number of cores.
    """
    return all(node.state is NodeState.JOINED and node.address for node in _there(state))


def _there(state: JobState) -> list[RoleNode]:
    return [node for node in data_workers.of(state) if node.state is not NodeState.GONE and not _relieved(node)]


def _relieved(node: RoleNode) -> bool:
    """Return True for a data worker that serves only until its replacement serves. While a data worker and its
    replacement both run, only the replacement is counted.
    """
    return node.departure.replaced and node.role.kind is RoleKind.DATA_WORKER


def _feeding(state: JobState, stage: int, stages: int) -> list[RoleNode]:
    return [
        node
        for node in data_workers.of(state)
        if node.state is NodeState.JOINED and node.address and stage_of(node.role.rank, stages) == stage
    ]


def _life(node: RoleNode) -> Life:
    return Life(node.role, node.incarnation)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


TUNING_KEY = "data workers: tuning"
"""Key of the tuner's state in the record, so that a master that takes over continues the tuning."""
PACKAGE_S = 270.0
"""Seconds that trainers have to record batches, and to write and send the package."""
# cores in one scaling step; a machine with fewer cores than the second number uses half of that step
UNIT, MANY_CORES = 1.0, 8


class DataWorkerManager:
    """Tunes the data workers of one job."""

    def __init__(self, context: MasterContext, agreeing: SharedValues, autoscale: Autoscaler) -> None:
        """`autoscale` is the other part of the master that changes the job."""
        clock = context.clock
        self._state, self._rules = context.record.state, context.record.state.spec.feeding
        self._context, self._agreeing, self._clock, self._autoscale = context, agreeing, clock, autoscale
        self.package = str(RunFiles(context.folder).package.absolute())
        self._stats = FeedStats()
        self.share: FeedShare | None = None
        """The feed share of this job, for a planner that divides cores among jobs; None if data workers are not
        tuned.
        """
        self._why = ""
        self._shape: tuple[Any, ...] = ()
        self._changed_at = self._decided_at = self._wanted_at = clock()

    # ---- data workers ----

    def welcome(self) -> DataWorkerWelcome:
        return DataWorkerWelcome(self._state.spec.for_members(), self.package)

    async def answer(self, role: Role, incarnation: int, request: Request) -> Reply:
        match request:
            case messages.Heartbeat():
                self._context.apply(events.RoleAlive(role, incarnation))
                self.on_feed_state(role, incarnation, None if request.report is None else request.report.feed)
                return messages.HeartbeatReply(
                    stop=self._state.phase.over,
                    drain=self._state.node(role).state is NodeState.DRAINING,
                    feeders=self.news_for(request.feeders),
                )
            case DataWorkerReady(address):
                self._context.log_event("ready", role=str(role), address=address)
                self._context.apply(events.RoleReady(role, address, incarnation))
                return messages.Ok()
            case ValueRequest():
                return await self._agreeing.look_up(request)
            case _:
                raise errors.BadInput(f"a data worker may not send {type(request).__name__}")

    # ---- trainers ----

    def news_for(self, known: int) -> Feeders | None:
        own = self._state.feeding
        if own.epoch == known:
            return None
        members = tuple(Feeder(worker.name, worker.address, worker.rank) for worker in data_workers.roster(self._state))
        return Feeders(own.epoch, own.wanted, members)

    def on_trainer_report(self, role: Role, report: CannotFeed | WorkerDecision | TrainedWithout) -> None:
        if isinstance(report, TrainedWithout):
            if self._context.journaled(self._context.record.leave_out, report.left_out):
                samples, _, error = str(report.left_out).partition(": ")
                self._context.apply(events.DecisionMade(f"train without {samples}", f"{role}: {error}"))
            return
        if isinstance(report, CannotFeed):
            self._context.apply(events.DataWorkersRefused(f"{role}: {report.why}"))
        else:
            self._context.apply(events.DecisionMade(report.what, f"{role}: {report.why}"))

    def on_feed_state(self, role: Role, incarnation: int, state: FeedState | None) -> None:
        if state is not None and self._rules.workers is None:
            self._stats.on_report(Life(role, incarnation), state, at=self._clock())

    @property
    def together(self) -> FeedState | None:
        """Return the sum of the feed statistics that the present workers reported last; None if there are no
        reports."""
        workers = [node.role for node in self._state.of_kind(RoleKind.WORKER) if node.state in ALIVE]
        reports = [self._context.tally.reports.get(role) for role in workers]
        feeds = [report.feed for report in reports if report is not None and report.feed is not None]
        if not feeds:
            return None
        return FeedState(
            **{field.name: sum(getattr(feed, field.name) for feed in feeds) for field in fields(FeedState)}
        )

    @property
    def why(self) -> str:
        return self._state.feeding.given_up or self._why

    # ---- how many ----

    def tick(self, usage: Mapping[Role, RoleUsage]) -> None:
        if self._rules.off:
            return
        state, rules, now = self._state, self._rules, self._clock()
        may_scale = state.phase is JobPhase.RUNNING and not state.feeding.given_up and not state.feeding.pinned
        if rules.workers is not None:
            if may_scale and not state.feeding.epoch and self._context.record.span.leased_at is not None:
                self._scale(rules.workers, rules.cpu, "requested at the start of the job")
            return
        self._stats.measure(usage, at=now)
        self._notice(now)
        if may_scale:
            self._tune(now)
        else:
            self.share = None

    def scale(self, count: int, why: str) -> None:
        own = self._state.feeding
        cpu = self._rules.cpu if own.cpu is None else own.cpu
        self._scale(count, cpu, why, pinned=True, stages=spread(count, cpu, self.stages.number))

    def _scale(
        self, count: int, cpu: float | None, why: str, *, pinned: bool = False, stages: tuple[StageTarget, ...] = ()
    ) -> None:
        self._why, self._wanted_at = why, self._clock()
        self._context.apply(events.DataWorkersScaled(count, cpu, why, pinned=pinned, stages=stages))

    def _notice(self, now: float) -> None:
        """Note when the shape of the job last changed, because earlier reports do not describe the present shape."""
        sizes = self._state.planned.sizes[RoleKind.WORKER]
        shape = (self._state.feeding.epoch, self._state.feeding.cpu, self._state.workers, sizes.cpu)
        if shape != self._shape:
            self._shape, self._changed_at = shape, now

    def _tune(self, now: float) -> None:
        record, every_s = self._context.record, self._rules.every_s
        planning = self._state.spec.planning.on and not self._autoscale.settled
        if record.span.leased_at is None or planning:
            self._decided_at = now
            return
        if now < self._decided_at + every_s or self._awaits_package(now):
            return
        since, self._decided_at = max(self._decided_at, observation.settled_at(self._changed_at, every_s)), now
        self._stats.forget(since)
        hold = not self._state.spec.planning.on and self._state.planned.sizes[RoleKind.WORKER].cpu is not None
        seen = self._stats.seen(
            self._state,
            at=now,
            since=since,
            cores=self.cores,
            hold=hold,
            stages=self.stages,
            given=self._autoscale.data_cores,
        )
        if seen is None:
            return
        before = self._context.record.shared.load(TUNING_KEY, Tuning, tuner.begin(self._rules, unit=self._unit))
        tuning, target = tuner.decide(before, seen)
        if tuning != before:
            self._context.store(TUNING_KEY, tuning)
        self.share = self._share(seen, target)
        self._act(target, hold=hold)

    def _share(self, seen: FeedSeen, target: FeedTarget) -> FeedShare | None:
        """Return the report for a planner that divides cores among jobs; None if the job should have no data
        workers.

        Planners learn from a change of cores and the change of speed that follows. The report is therefore updated
        only when all data workers serve.
        """
        if not target.data_workers:
            return None
        if self.share is not None and not all_feed(self._state):
            return self.share
        return FeedShare(
            trainers=seen.trainers,
            speed=seen.steps_per_s,
            capable=seen.capable_per_s,
            cpu=of_data_workers(self._state),
            least=seen.trainers * self._unit,
        )

    def _awaits_package(self, now: float) -> bool:
        waits = self._state.feeding.wanted > 0 and PACKAGE_KEY not in self._context.record.shared.values
        return waits and not data_workers.roster(self._state) and now < self._wanted_at + PACKAGE_S

    def _act(self, target: FeedTarget, *, hold: bool) -> None:
        own, worker = self._state.feeding, self._state.planned.sizes[RoleKind.WORKER]
        if self._context.is_news("feeding", target.why):
            self._context.log_event(
                "feeding", why=target.why, data_workers=target.data_workers, cpu=target.data_worker_cpu
            )
        count = sum(stage.workers for stage in target.stages) if target.stages else target.data_workers
        cpu = target.data_worker_cpu if count else own.cpu
        if (count, cpu, target.stages if count else own.stages) != (own.wanted, own.cpu, own.stages):
            self._scale(count, target.data_worker_cpu, target.why, stages=target.stages)
        if hold and target.trainer_cpu is not None and target.trainer_cpu != worker.cpu:
            self._context.apply(events.RolesResized(RoleKind.WORKER, target.trainer_cpu, worker.memory, target.why))
        self._why = target.why

    @property
    def stages(self) -> StageLayout:
        found = self._context.record.shared.load(PACKAGE_KEY, Package, Package(""))
        own = sum(target.workers for at, target in enumerate(self._state.feeding.stages) if at in found.gpu_stages)
        there = gpus.count() if self._state.spec.gpus is None else self._state.spec.gpus
        return StageLayout(found.stages, found.gpu_stages, max(0, there - own) if found.gpu_stages else 0)

    @property
    def _unit(self) -> float:
        return UNIT if self.cores >= MANY_CORES else UNIT / 2

    @property
    def cores(self) -> float:
        return self._rules.cores or float(os.cpu_count() or 1)
