"""Autoscales a job that reads a stream: measures and forecasts its traffic, and sets the number of workers.

`planning.online.decision` and `job.stragglers` decide. Learned values are journaled. Decisions use stream time,
which can run faster than the clock, for example in a replay. At a speedup of 60, one clock second covers 60 stream
seconds. Each sample then counts as 60, so samples per second are the same in clock time and in stream time.
"""

import asyncio
import logging
import math
import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

import msgspec

from springtide import errors
from springtide.domain.core.roles import Life, RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import (
    ForecastStatus,
    OnlinePoint,
    OnlineRules,
    OnlineState,
    OnlineTotals,
    OnlineView,
    Scaling,
    ScalingStatus,
)
from springtide.job import stragglers
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import plan
from springtide.master.autoscale.forecast import JobForecaster, TrafficForecast
from springtide.master.autoscale.stream_stats import StreamStats, counts_of
from springtide.master.core.context import MasterContext, without_numbers
from springtide.planning.online import capacity_model, decision
from springtide.planning.online.capacity_model import Kind, solver
from springtide.planning.online.slo_metrics import SloSums
from springtide.rpc.messages.types import MemberReport, PartitionLag
from springtide.telemetry.events import Series
from springtide.telemetry.logs import RunFiles

log = logging.getLogger(__name__)

NOTES_KEY = "online: notes"
"""Key of the learned values in the record, so that a master that takes over finds them."""
LOOK_S = 0.25
RATES_S = 120.0
"""Window for mean arrival rates, in stream seconds. The window is at least `LEAST_S` clock seconds long, so that it has
a few heartbeats of each worker."""
LEAST_S = 4.0
NOTE_S = 10.0  # seconds between two journal entries of the learned values
COLD_S = 60.0  # stream seconds between two plans, if the job has almost no history
POINTS = 5760  # most points to keep: a day of steps of 15 s
BEATS = 3.0  # during scaling, a job counts as stopped if it trains no sample for this many heartbeat intervals


class OnlineNotes(msgspec.Struct, frozen=True):
    """Learned values and counters that a new master takes over."""

    learned: capacity_model.LearnedCapacity = capacity_model.LearnedCapacity()
    """Throughput by number of workers, in samples per clock second."""
    kept: SloSums = SloSums()
    scalings: int = 0
    marks: dict[int, stragglers.SlowMark] = msgspec.field(default_factory=dict)
    slow: tuple[int, ...] = ()
    start_s: float | None = None
    """Clock seconds from the request for a worker to its first trained sample; None until observed."""
    unkept_why: str = ""
    """Reason why a worker only counted its dead letters instead of storing them; empty if all dead letters are
    stored.
    """


class LastTimes(msgspec.Struct):
    """Times when each part of the loop last ran, in clock time; the time of `plan` is in stream time."""

    growth: float = -math.inf
    decision: float = -math.inf
    note: float = -math.inf
    measurement: float = -math.inf
    point: float = -math.inf
    plan: float = -math.inf
    shape: float = 0.0


class StreamSample(NamedTuple):
    """Totals of the stream at one moment."""

    at: float
    came: int
    trained: int


def open_autoscaler(context: MasterContext) -> "OnlineAutoscaler":
    job, files = context.record.state.spec.online, RunFiles(context.folder)
    if job.on:
        solver()  # load the solver before the job needs it, because loading takes half a second
    wall, at = time.time(), context.clock()
    foresight = TrafficForecast(job, JobForecaster(job.forecaster), files, wall=wall, at=at)
    points = Series(files.online, OnlinePoint, most=POINTS)
    return OnlineAutoscaler(context, StreamStats(wall=wall, at=at), foresight, points)


class OnlineAutoscaler:
    """Autoscaler of one online job. The autoscaler does nothing if the job reads no stream."""

    def __init__(
        self, context: MasterContext, streams: StreamStats, foresight: TrafficForecast, points: Series[OnlinePoint]
    ) -> None:
        self._context, self._streams, self._foresight, self._points = context, streams, foresight, points
        self._job = context.state.spec.online
        self._notes = context.record.shared.load(NOTES_KEY, OnlineNotes, OnlineNotes())
        self._looks: deque[StreamSample] = deque(maxlen=4096)
        self._last = LastTimes()
        self._awaited: dict[Life, float] = {}
        self._shape: tuple[Life, ...] = ()
        self._asking: asyncio.Task[None] | None = None
        self._scaling = Scaling(workers=self._context.state.workers, why="")
        self._why = ""
        self._servers: int | None = None

    @property
    def on(self) -> bool:
        return self._job.on and self.reads

    @property
    def reads(self) -> bool:
        return any(data_pass.card.stream is not None for data_pass in self._context.record.book.passes)

    @property
    def _batch(self) -> float:
        """Return the samples in a full batch of one worker. A bsp group shares a batch."""
        size = self._context.record.book.passes[-1].card.batch_size
        return size / max(1, len(self._shape)) if self._context.state.spec.sync == "bsp" else size

    def on_report(self, life: Life, report: MemberReport, *, at: float) -> None:
        if report.stream is not None:
            self._streams.on_report(life.role, life.incarnation, report.stream, at=at)
            if report.stream.unkept and not self._notes.unkept_why:
                self._notes = msgspec.structs.replace(self._notes, unkept_why=report.stream.unkept_why)
                self._store_notes(at)
                self._context.log_event("letters_not_kept", role=str(life.role), why=report.stream.unkept_why)

    def tick(self, now: float, *, moving: int) -> None:
        """Measure the stream, and decide about the number of workers if it is time. `moving` is the number of slots in
        transfer.
        """
        if not self.reads or (self._looks and now < self._looks[-1].at + LOOK_S) or self._context.state.phase.over:
            return
        alive = tuple(
            Life(node.role, node.incarnation)
            for node in self._context.state.of_kind(RoleKind.WORKER)
            if node.state is NodeState.JOINED
        )
        if alive != self._shape:
            over = {life.role.rank for life in self._shape} - {life.role.rank for life in alive if life in self._shape}
            marks = {rank: mark for rank, mark in self._notes.marks.items() if rank not in over}
            self._notes = msgspec.structs.replace(self._notes, marks=marks)
            self._shape, self._last.shape = alive, now
        self._let_cores_go()
        self._see_starts(now)
        pausing = plan.unsettled(self._context.state, moving=moving)
        self._observe(now, pausing=bool(pausing))
        self._measure(now)
        due = now >= self._last.decision + self._job.every_s / self._job.speedup
        if self._job.on and self._context.state.phase is JobPhase.RUNNING and due and self._asking is None:
            self._last.decision = now
            self._asking = asyncio.get_running_loop().create_task(self._decide(now, pausing))
            self._asking.add_done_callback(self._on_asked)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._foresight.close()

    @property
    def slow(self) -> tuple[int, ...]:
        return self._notes.slow

    # ---- looking ----

    def _observe(self, now: float, *, pausing: bool) -> None:
        streams, job = self._streams, self._job
        streams.poll(self._shape, at=now)
        before = self._looks[-1] if self._looks else StreamSample(now, streams.arrived, streams.trained)
        looked = StreamSample(now, streams.arrived, streams.trained)
        if looked.trained > before.trained or not streams.backlog:
            self._last.growth = now
        down = pausing and now - self._last.growth > BEATS * self._context.state.spec.heartbeat_s
        if self._looks:
            self._foresight.arrived(before.at, now, looked.came - before.came)
            kept = self._notes.kept.then(
                (now - before.at) * job.speedup,
                lag_s=streams.lag_s(now) * job.speedup,
                workers=len(self._shape),
                down=down,
                slo_s=job.rules.slo_lag_s,
            )
            self._notes = msgspec.structs.replace(self._notes, kept=kept)
        self._looks.append(looked)
        if now >= self._last.point + job.every_s / job.speedup:
            self._last.point = now
            self._points.add(self._point(now, down=down))
        if now >= self._last.note + NOTE_S:
            self._store_notes(now)

    def _let_cores_go(self) -> None:
        """Raise CPU limits that are below the quota to the quota, because only the number of roles scales a stream
        job."""
        rules, state = self._context.state.spec.planning, self._context.state
        if not self._job.on or rules.bounds is None or state.phase is not JobPhase.RUNNING:
            return
        for kind in (RoleKind.WORKER, RoleKind.SERVER):
            size = state.planned.sizes[kind]
            if size.cpu is not None and size.cpu < rules.bounds.quota.cpu:
                why = "on a stream the number of workers follows the traffic, so their CPU is not limited"
                self._context.apply(events.RolesResized(kind, rules.bounds.quota.cpu, size.memory, why))

    def _see_starts(self, now: float) -> None:
        nodes = self._context.state.of_kind(RoleKind.WORKER)
        here = {Life(node.role, node.incarnation): node for node in nodes if node.active}
        self._awaited = {life: since for life, since in self._awaited.items() if life in here}
        for life, node in here.items():
            if node.state is NodeState.EXPECTED:
                self._awaited.setdefault(life, now)
            elif life in self._awaited and self._streams.at_work(life):
                took, before = now - self._awaited.pop(life), self._notes.start_s
                self._notes = msgspec.structs.replace(
                    self._notes, start_s=took if before is None else (before + took) / 2
                )

    def _measure(self, now: float) -> None:
        """Learn the throughput of a stable number of workers. The slow first steps of a job count only until
        something else was measured.
        """
        seconds = capacity_model.window_s(self._job.speedup)
        settled_at = self._last.shape + (seconds if self._notes.learned.known else 0.0)
        if not self._shape or now < max(settled_at, self._last.measurement) + seconds:
            return
        works = self._streams.works(seconds, self._shape, at=now)
        if len(works) < len(self._shape):
            return
        learned = self._notes.learned.then(works, batch=self._batch, at=now * self._job.speedup)
        if learned is self._notes.learned:
            return
        self._last.measurement = now
        paces = {rank: pace for rank, work in works.items() if (pace := work.pace) is not None}
        sure = capacity_model.full(works, self._batch)
        marks = stragglers.update_marks(self._notes.marks, paces, works, self._context.state.spec.stragglers, sure)
        self._notes = msgspec.structs.replace(self._notes, learned=learned, marks=marks)
        if (slow := stragglers.slow_workers(marks)) != self._notes.slow:
            self._notes = msgspec.structs.replace(self._notes, slow=slow)
            why = "; ".join(marks[rank].why for rank in slow) or "no worker is slow any more"
            self._context.log_event("slow", why=why, workers=[f"worker-{rank}" for rank in slow])

    def _fixed(self) -> str:
        if not self._job.on:
            return "the number of workers was given (--workers, or --online off)"
        by_hand = "the number of workers was set by hand: `springtide scale` changes it"
        return by_hand if "workers" in self._context.state.planned.pinned else ""

    def _capacity(self, now: float) -> tuple[float, ...] | None:
        kind: Kind = "sync" if self._context.state.spec.sync == "bsp" else "async"
        return self._notes.learned.capacity(
            self._rules().most, now=len(self._shape), at=now * self._job.speedup, kind=kind
        )

    def _rates(self, now: float) -> tuple[float, float]:
        seconds = max(LEAST_S, RATES_S / self._job.speedup)
        first = next((look for look in self._looks if look.at >= now - seconds), None)
        last = self._looks[-1] if self._looks else None
        if first is None or last is None or last.at <= first.at:
            return 0.0, 0.0
        gone = last.at - first.at
        return (last.came - first.came) / gone, max(0, last.trained - first.trained) / gone

    # ---- deciding ----

    async def _decide(self, now: float, pausing: str) -> None:
        speedup, rules = self._job.speedup, self._rules()
        arriving, _ = self._rates(now)
        outlook = await self._foresight.outlook(now, arriving)
        capacity = self._capacity(now)
        if held := self._fixed():
            return self._keep_workers(held)
        if capacity is None:
            return self._keep_workers("no worker has trained for long enough to measure its throughput")
        works = self._streams.works(capacity_model.window_s(speedup), self._shape, at=now)
        view = OnlineView(
            at=now * speedup,
            workers=max(rules.fewest, self._context.state.workers),
            backlog=float(self._streams.backlog) * speedup,
            lag_s=self._streams.lag_s(now) * speedup,
            arrivals=arriving,
            utilization=capacity_model.utilization(works),
            outlook=outlook,
            capacity=capacity,
            pausing=bool(pausing),
        )
        cold = self._foresight.cold and view.at >= self._last.plan + COLD_S
        if cold or decision.due(view, rules, planned_at=self._last.plan):
            self._last.plan = view.at
            self._act(decision.decide(view, rules), pausing)
        else:
            self._act(self._scaling, pausing)

    def _rules(self) -> OnlineRules:
        rules, start_s = self._job.rules, self._notes.start_s
        fewest, most = self._context.state.planned.limits.get("workers", (rules.fewest, rules.most))
        rules = replace(rules, fewest=fewest, most=most)
        return rules if start_s is None else replace(rules, start_s=start_s * self._job.speedup)

    def _on_asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()):
            log.error("scaling failed", exc_info=error)
            self._keep_workers(f"the scaling decision failed: {type(error).__name__}: {error}")

    def _act(self, scaling: Scaling, pausing: str) -> None:
        rules, state = self._rules(), self._context.state
        before, self._scaling = self._scaling, scaling
        if scaling.alert and without_numbers(scaling.alert) != without_numbers(before.alert):
            self._context.log_event("alert", why=scaling.alert)
        elif before.alert and not scaling.alert:
            self._context.log_event("alert_over", why=scaling.why)
        wanted = min(rules.most, max(rules.fewest, scaling.workers))
        if wanted == state.workers or pausing:
            return self._keep_workers(f"{scaling.why}{f'; for now {pausing}' if wanted != state.workers else ''}")
        self._why = why = scaling.why
        try:
            self._context.record.book.check_group(wanted)
            self._context.apply(events.WorkersScaled(wanted, why))
            self._notes = msgspec.structs.replace(self._notes, scalings=self._notes.scalings + 1)
            self._context.is_news("online", "")  # log the next reason even if it is the same as the last reason
            self._have_servers(wanted)
        except errors.BadInput as refused:
            self._keep_workers(f"{why}; not now: {refused}")
        self._store_notes(self._looks[-1].at)

    def _have_servers(self, workers: int) -> None:
        """Keep the initial ratio of servers to workers, unless the user or another part of the master has set the
        number of servers."""
        state, spec = self._context.state, self._context.state.spec
        usual = max(1, math.ceil(workers * spec.servers / spec.workers))
        least, most = state.planned.limits.get("servers", (1, usual))
        usual = max(least, min(usual, most))
        others = "servers" in state.planned.pinned or self._servers not in (None, state.servers_wanted)
        if not self._job.servers_follow or others or usual == state.servers_wanted:
            return
        self._servers = usual
        ratio = f"{spec.workers} to {spec.servers}"
        self._context.apply(events.ServersScaled(usual, f"keep the initial ratio of workers to servers, {ratio}"))

    def _keep_workers(self, why: str) -> None:
        """Change nothing, and log the reason. If only the numbers in the reason changed, the decision is not logged
        again.
        """
        self._why = why
        if self._context.is_news("online", why):
            self._context.log_event("online", why=why, workers=self._context.state.workers)

    # ---- telling ----

    def _point(self, now: float, *, down: bool) -> OnlinePoint:
        arriving, trained = self._rates(now)
        mean, high = self._foresight.expected(now)
        workers = len(self._shape)
        capacity = self._capacity(now)
        return OnlinePoint(
            at=self._foresight.wall(now),
            arriving=arriving,
            trained=trained,
            lag_s=self._streams.lag_s(now) * self._job.speedup,
            backlog=float(self._streams.backlog),
            workers=workers,
            wanted=self._context.state.workers,
            forecast=mean,
            high=high,
            down=down,
            capacity=capacity[workers] if capacity and workers < len(capacity) else None,
        )

    def status(self, now: float) -> OnlineState | None:
        if not self.reads:
            return None
        point, kept, job = self._point(now, down=False), self._notes.kept, self._job
        works = self._streams.works(capacity_model.window_s(job.speedup), self._shape, at=now)
        total = self._streams.total
        held = self._fixed()
        fewest, most = (self._context.state.workers,) * 2 if held else (self._rules().fewest, self._rules().most)
        return OnlineState(
            lag_s=point.lag_s,
            slo_lag_s=job.rules.slo_lag_s,
            lag_p50_s=total.lag_p50_s,
            lag_p99_s=total.lag_p99_s,
            backlog=self._streams.backlog,
            arriving=point.arriving,
            trained=point.trained,
            utilization=capacity_model.utilization(works) if works else None,
            capacity=point.capacity,
            why=held or self._why,
            alert=self._scaling.alert,
            expected=ForecastStatus(
                mean=point.forecast, high=point.high, why=self._foresight.why, trouble=self._foresight.trouble
            ),
            scaling=ScalingStatus(
                fewest=fewest,
                most=most,
                changes=self._notes.scalings,
            ),
            totals=OnlineTotals(
                hours=kept.seconds / 3600,
                violation=kept.violation,
                lag_min=kept.lag_min,
                down_min=kept.down_min,
                worker_hours=kept.worker_hours,
            ),
            stream=counts_of(total, unkept_why=self._notes.unkept_why),
        )

    def partitions(self, now: float) -> tuple[PartitionLag, ...]:
        """Return the backlog and the lag of each partition, with the worker that reads it."""
        flows, speedup = self._context.record.book.flows(), self._job.speedup
        owners = {number: known.owner for ledger in flows for number, known in ledger.partitions.items()}
        lags = self._streams.lags(now)
        return tuple(
            PartitionLag(
                partition=number,
                backlog=max(0, part.end - part.trained),
                lag_s=lags[number] * speedup,
                owner=owners.get(number),
            )
            for number, part in sorted(self._streams.known.items())
        )

    def _store_notes(self, now: float) -> None:
        self._last.note = now
        self._context.store(NOTES_KEY, self._notes)
