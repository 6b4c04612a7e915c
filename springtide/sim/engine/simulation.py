"""Main loop of the simulation: jobs arrive, a policy decides, plans are carried out, faults happen, jobs end.

In: a `ClusterWorld`, jobs, a `System` and a `PlanningConfig`. All randomness is in the jobs. Out: a `Story` with every
outcome and decision. The policy is real code, and sees only the view from `running_job.view`. Next: `sim.report`.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import GIB, ResourceBudget, Shape, resources_of
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.view import ClusterView, LaunchTime, PastJob
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.guards.memory import RowCount
from springtide.planning.lifecycle import stages
from springtide.sim.engine import running_job
from springtide.sim.engine.running_job import JobEnd, JobOutcome, SimulatedJob
from springtide.sim.engine.systems import ServerChange, System
from springtide.sim.world import world as world_model
from springtide.sim.world.parameters import DAY_S, ClusterWorld
from springtide.sim.world.world import Cluster, TrueJob

HISTORY, LAUNCHES, PROFILES, SEEN, POINTS = 200, 50, 48, 18, 6
MINUTE_S, WINDOWS, SETTLE_S, WINDOW_S = 60.0, 6, 3.0, 5.0
"""A measurement of a job covers its last minute, in `WINDOWS` windows. The settle time and the length of a window
are those of a master (`PlanRules`).
"""
LONGEST_S = 60 * DAY_S
MOST_TRIES = 2
Watch = Callable[[float, int], None]


Act = Callable[[], None]


class Clock:
    """A heap of scheduled actions. Time never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Act]] = []

    def at(self, when: float, act: Act) -> None:
        """Schedule an action. A time in the past means now."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act))

    def after(self, seconds: float, act: Act) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float) -> None:
        """Advance the time to `until`, or until no action is left."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            act()


@dataclass(slots=True)
class Story:
    """Record of a simulation run."""

    outcomes: list[JobOutcome] = field(default_factory=list)
    decisions: int = 0
    """Number of calls of the policy."""
    complaints: dict[str, int] = field(default_factory=dict)
    """Error messages of a failed policy, with their counts."""
    refused: int = 0
    """Number of plans that did not fit the cluster, a node or the job's state."""
    ended_at: float = 0.0
    reasons: list[tuple[float, str, str]] = field(default_factory=list)
    """Time, job and reason of each plan that was carried out."""
    speeds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Steps per second over time, for the jobs whose speed is recorded."""
    held: list[tuple[float, float, float]] = field(default_factory=list)
    """Time, cores and bytes that all jobs held."""


class Simulation:
    """A simulation of one system on one workload."""

    def __init__(
        self,
        world: ClusterWorld,
        jobs: Iterable[TrueJob],
        system: System,
        *,
        config: PlanningConfig | None = None,
        history: Iterable[PastJob] = (),
        watch: Watch | None = None,
        record: Iterable[str] = (),
    ) -> None:
        self.world, self.system = world, system
        self.config = replace(config or PlanningConfig(exact_seconds=0.0), workers_stay=True)  # see `_change`
        self.clock, self.cluster, self.story = Clock(), Cluster(world), Story()
        self.bounds = running_job.bounds(world, elastic=system.mechanisms.elastic)
        self.loss_rate = (world.faults.pod_failures_a_day + world.faults.preemptions_a_day) / DAY_S
        self.jobs: dict[str, SimulatedJob] = {}
        self.history: list[PastJob] = list(history)[-HISTORY:]
        self.launches: list[LaunchTime] = []
        self.watch, self.record = watch, frozenset(record)
        self.expected = 0
        self.ticking = False
        for job in jobs:
            self.submit(job)

    def run(self, until: float = LONGEST_S) -> Story:
        self.clock.run(until)
        for running in [*self.jobs.values()]:
            self.end(running, JobEnd.UNFINISHED)
        self.story.ended_at = self.clock.now
        return self.story

    def submit(self, job: TrueJob) -> None:
        self.expected += 1
        self.clock.at(job.arrives_at, lambda: self._arrive(job))

    def _arrive(self, job: TrueJob) -> None:
        running = self.jobs[job.name] = SimulatedJob(job)
        self.clock.after(self.world.pods.patience_s, lambda: self._impatient(running))
        self._ask([running])
        if not self.ticking:
            self.ticking = True
            self.clock.after(self.system.every_s, self._tick)

    def _impatient(self, running: SimulatedJob) -> None:
        """Fail a job whose first pods have not started in time."""
        if running.shape is None and not running.launching and not running.ended:
            self.end(running, JobEnd.SCHEDULING)

    def _tick(self) -> None:
        self.ticking = bool(self.jobs)
        if not self.ticking:
            return
        due = [running for running in self.jobs.values() if self._due(running)]
        if due:
            self._ask(due)
        self.story.held.append((self.clock.now, self.cluster.cpu, self.cluster.memory))
        self.clock.after(self.system.every_s, self._tick)

    def _due(self, running: SimulatedJob) -> bool:
        if running.launching or running.ended:
            return False
        if running.shape is None:
            return True
        if not self.system.mechanisms.elastic or running.paused:
            return False
        now, since = self.clock.now, running.changed_at
        if now - since < self.config.sample_s:
            return False
        return running.observed.news or now - running.observed.looked_at >= max(
            self.system.again_s, self.system.rarely * (now - since)
        )

    def _ask(self, due: list[SimulatedJob]) -> None:
        """Ask the policy to divide the resources of these jobs and the free resources among these jobs."""
        free = self.cluster.free
        for running in due:
            if running.shape is not None:
                self._observe(running)
        capacity = ResourceBudget(
            cpu=free.cpu + sum(running.reserved.cpu for running in due),
            memory=free.memory + sum(running.reserved.memory for running in due),
        )
        seen = ClusterView(
            now=self.clock.now,
            capacity=capacity,
            history=tuple(self.history),
            launches=tuple(self.launches),
            jobs=tuple(running_job.view(running, self.bounds) for running in due),
        )
        decision = self.system.policy(seen, self.config)
        self.story.decisions += 1
        if not decision.plans and " failed: " in decision.why:
            self.story.complaints[decision.why] = self.story.complaints.get(decision.why, 0) + 1
        for running in due:
            running.observed.looked_at, running.observed.news = self.clock.now, running.stage is PlanningStage.SAMPLING
        self._carry_out(decision)

    def _observe(self, running: SimulatedJob) -> None:
        self.touch(running)
        before = running.observed.row_counts[-1].samples if running.observed.row_counts else 0.0
        for part in range(1, POINTS + 1):  # points in time at which heartbeats would have arrived
            samples = max(before + (running.progress.done - before) * part / POINTS, float(part))
            running.observed.row_counts.append(RowCount(samples, world_model.rows_bytes(running.job, samples)))
        del running.observed.row_counts[:-SEEN]
        if self.system.mechanisms.foresees:
            running.observed.need = running_job.need(running)
        shape, speed = running.shape, running.rate.speed
        if shape is not None and speed is not None and speed.steps_s > 0:
            self._measure(running, shape, speed)

    def _measure(self, running: SimulatedJob, shape: Shape, speed: world_model.Speed) -> None:
        """Add profiles of the last minute, or of the time since the last change if that is shorter.

        The noise of the simulated world is given for a whole minute, so shorter windows have larger errors.
        """
        seconds = min(max(self.clock.now - running.changed_at, 1.0), MINUTE_S) / WINDOWS
        larger = math.sqrt(MINUTE_S / seconds)
        terms = np.exp(larger * running.random.normal(0.0, self.world.measured.noise, size=(WINDOWS, 5))).tolist()
        cores = np.exp(
            larger * running.observed.errors.normal(0.0, self.world.measured.use_noise, size=(WINDOWS, 2))
        ).tolist()
        for number, (noise, (workers, servers)) in enumerate(zip(terms, cores, strict=True), start=1):
            running.observed.use_errors = (workers, servers)
            running.observed.profiles.append(
                world_model.profile(
                    running.job,
                    shape,
                    speed,
                    steps=max(1, round(speed.steps_s * seconds)),
                    noise=noise,
                    at=self.clock.now - (WINDOWS - number) * seconds,
                    cores=running.observed.use_errors,
                )
            )
        del running.observed.profiles[:-PROFILES]

    def _carry_out(self, decision: Decision) -> None:
        # apply plans that shrink jobs first, because these free resources
        for plan in sorted(decision.plans, key=lambda plan: plan.shape.cpu - self._held(plan.job)):
            running = self.jobs.get(plan.job)
            if running is None or running.launching:
                continue
            if not self.cluster.allows(plan.shape):
                self.story.refused += 1
            elif running.shape is None:
                self._start(running, plan)
            elif plan.shape != running.shape:
                self._change(running, plan)

    def _held(self, name: str) -> float:
        running = self.jobs.get(name)
        return running.reserved.cpu if running else 0.0

    def _start(self, running: SimulatedJob, plan: ShapePlan) -> None:
        if not self._reserve(running, resources_of(plan.shape)):
            return
        running.launching = True
        delay = self._pods_s(running, None, plan.shape)
        if not self.system.mechanisms.elastic and delay > self.world.pods.patience_s:
            self.clock.after(self.world.pods.patience_s, lambda: self.end(running, JobEnd.SCHEDULING))
            return
        self._record_reason(running, plan)
        self.clock.after(min(delay, self.world.pods.patience_s), lambda: self._begin(running, plan))

    def _begin(self, running: SimulatedJob, plan: ShapePlan) -> None:
        running.launching = False
        running.progress.since = running.started_at = self.clock.now
        running.tally.initial = plan.shape
        self._apply_plan(running, plan)
        running.last_change_at = None
        if running.rate.condition.hot > 1:
            _schedule_repair(self, running, 0.0)
        if (
            running.stage is PlanningStage.SAMPLING
            and self.system.every_s <= MINUTE_S
            and running.rate.speed is not None
        ):
            self.clock.after(self._sample_s(running.rate.speed), lambda: self._sampled(running))

    def _sample_s(self, speed: world_model.Speed) -> float:
        """Return the seconds until a master would have its sample."""
        steps_s = self.config.sample_steps / max(speed.steps_s, 1e-9)
        return min(self.config.sample_s, max(SETTLE_S + stages.SAMPLED * WINDOW_S, steps_s))

    def _sampled(self, running: SimulatedJob) -> None:
        if running.last_change_at is None and not running.launching and not running.ended:
            self._ask([running])

    def _change(self, running: SimulatedJob, plan: ShapePlan) -> None:
        """Change the shape of a job. New pods start while the job trains, and then the change takes effect.

        If the cluster has no room for both shapes at once, the role that shrinks changes first (`job.scaling.plan`).
        Then the simulated job pauses until the new pods run.
        """
        assert running.shape is not None
        now, then = running.shape, plan.shape
        both = world_model.between(now, then)
        beside = self._room(running, both)
        if not self._reserve(running, both if beside else world_model.larger(now, then)):
            return
        running.launching = True
        self._record_reason(running, plan)
        seconds = self._pods_s(running, running.shape, plan.shape)
        if self.system.mechanisms.servers is ServerChange.INITIALIZE and _servers_change(running.shape, plan.shape):
            # new pods initialize together with the old ones, and their pause is counted separately
            seconds = max(0.0, seconds - self.world.pods.init_s)
        if not beside:
            self.pause(running, seconds)
        self.clock.after(seconds, lambda: self._changed(running, plan))

    def _changed(self, running: SimulatedJob, plan: ShapePlan) -> None:
        if running.ended:
            return
        old, new = running.shape, plan.shape
        assert old is not None
        running.launching = False
        running.tally.changes += 1
        self._apply_plan(running, plan)
        if _servers_change(old, new):
            self.pause(running, self.system.mechanisms.pause_s(self.world))

    def _apply_plan(self, running: SimulatedJob, plan: ShapePlan) -> None:
        """Apply the new shape, release surplus resources, and start the measurements again."""
        self.touch(running)
        running.shape = plan.shape
        running.stage = plan.stage or (
            PlanningStage.OPTIMIZING if running.stage is PlanningStage.WAITING else running.stage
        )
        running.last_change_at = self.clock.now
        running.observed.news = True
        self._reserve(running, resources_of(plan.shape))
        self.refresh(running)

    def _reserve(self, running: SimulatedJob, wanted: ResourceBudget) -> bool:
        if not self._room(running, wanted):
            self.story.refused += 1
            return False
        self.cluster.take(wanted.cpu - running.reserved.cpu, wanted.memory - running.reserved.memory)
        running.reserved = wanted
        return True

    def _room(self, running: SimulatedJob, wanted: ResourceBudget) -> bool:
        cpu, memory = wanted.cpu - running.reserved.cpu, wanted.memory - running.reserved.memory
        return (cpu <= 0 and memory <= 0) or self.cluster.fits(max(cpu, 0.0), max(memory, 0.0))

    def _pods_s(self, running: SimulatedJob, old: Shape | None, new: Shape) -> float:
        slowest = 0.0
        for kind, (cpu, pods) in zip((RoleKind.WORKER, RoleKind.SERVER), world_model.new_pods(old, new), strict=True):
            if pods:
                seconds = world_model.pending_s(self.world, cpu, pods, running.random)
                seconds += self.world.pods.launch_s + self.world.pods.init_s
                memory = new.worker_memory if kind is RoleKind.WORKER else new.server_memory
                launch = LaunchTime(kind=kind, cpu=cpu, memory=memory, seconds=seconds)
                running.observed.launches.append(launch)
                self.launches.append(launch)
                slowest = max(slowest, seconds)
        del self.launches[:-LAUNCHES], running.observed.launches[:-10]
        return slowest

    def _record_reason(self, running: SimulatedJob, plan: ShapePlan) -> None:
        self.story.reasons.append((self.clock.now, running.job.name, plan.reason))

    def touch(self, running: SimulatedJob) -> None:
        running.touch(self.clock.now, self.loss_rate)

    def refresh(self, running: SimulatedJob) -> None:
        """Update the job's rate, and reschedule its end and its faults."""
        running.rate.generation += 1
        running.set_speed(dynamic=self.system.mechanisms.dynamic_shards)
        rate, generation = running.samples_s, running.rate.generation
        if running.job.name in self.record:
            steps = rate / running.job.facts.batch
            self.story.speeds.setdefault(running.job.name, []).append((self.clock.now, steps))
        if rate > 0:
            left = (running.job.samples - running.progress.done) / rate
            self.clock.after(left, lambda: self._finish(running, generation))
        schedule_faults(self, running, rate)

    def _finish(self, running: SimulatedJob, generation: int) -> None:
        if running.rate.generation == generation and not running.ended:
            self.touch(running)
            self.end(running, JobEnd.FINISHED)

    def resized(self, running: SimulatedJob, shape: Shape) -> bool:
        if not self._reserve(running, resources_of(shape)):
            return False
        running.shape, running.last_change_at, running.observed.news = shape, self.clock.now, True
        running.tally.changes += 1
        return True

    def pause(self, running: SimulatedJob, seconds: float) -> None:
        """Pause the job. If pauses overlap, the job continues after the last pause."""
        self.touch(running)
        running.paused_until = max(running.paused_until, self.clock.now + seconds)
        self.refresh(running)
        self.clock.at(running.paused_until, lambda: self._go_on(running))

    def _go_on(self, running: SimulatedJob) -> None:
        if not running.ended and self.clock.now >= running.paused_until > 0:
            self.touch(running)
            running.paused_until = 0.0
            self.refresh(running)

    def end(self, running: SimulatedJob, end: JobEnd) -> None:
        """End the job; the user submits a failed job again."""
        if running.ended:
            return
        self.touch(running)
        running.ended = True
        del self.jobs[running.job.name]
        self.cluster.take(-running.reserved.cpu, -running.reserved.memory)
        self.story.outcomes.append(running.outcome(end, self.clock.now))
        if running.shape is not None:
            self.history.append(running_job.past(running, end, self.clock.now))
            del self.history[:-HISTORY]
        if end not in (JobEnd.FINISHED, JobEnd.UNFINISHED) and running.job.tries < MOST_TRIES:
            at = self.clock.now + self.world.requests.rerun_after_s
            self.submit(world_model.again(running.job, at=at, more_memory=end is JobEnd.OOM))
        if self.watch is not None:
            self.watch(self.clock.now, len(self.story.outcomes))


def _servers_change(old: Shape, new: Shape) -> bool:
    return (old.servers, old.server_cpu, old.server_memory) != (new.servers, new.server_cpu, new.server_memory)


# ---- faults ---- Each job accumulates hazard (number of pods times time), and loses a pod when the hazard passes a
# threshold. The threshold is drawn per job, so a job has the same faults under every policy.


def schedule_faults(sim: Simulation, running: SimulatedJob, rate: float) -> None:
    """Schedule the next faults at a new rate: full memory, stragglers and the next pod loss."""
    generation, faults = running.rate.generation, running.job.faults
    shape = running.shape
    assert shape is not None
    pods = shape.workers + shape.servers
    loss = (
        (running.progress.next_loss - running.progress.hazard) / (sim.loss_rate * pods)
        if sim.loss_rate > 0
        else math.inf
    )
    if math.isfinite(loss):
        sim.clock.after(loss, lambda: _lose(sim, running, generation))
    if rate <= 0:
        return
    full = world_model.full_at(running.job, shape, running.rate.condition.hot)
    if math.isfinite(full):
        sim.clock.after(max(0.0, (full - running.progress.done) / rate), lambda: _overflow(sim, running, generation))
    for at, kind in ((faults.straggles_at, RoleKind.WORKER), (faults.slow_server_at, RoleKind.SERVER)):
        samples = at * running.job.samples
        if running.progress.done <= samples < running.job.samples:
            slow_down = partial(_slow_down, sim, running, generation, kind, samples)
            sim.clock.after((samples - running.progress.done) / rate, slow_down)


def _current(running: SimulatedJob, generation: int) -> bool:
    return running.rate.generation == generation and not running.ended


def _slow_down(sim: Simulation, running: SimulatedJob, generation: int, kind: RoleKind, samples: float) -> None:
    """Make a worker or a server slow after this many samples of the job."""
    if not _current(running, generation):
        return
    sim.touch(running)
    running.progress.done = max(running.progress.done, math.nextafter(samples, math.inf))
    faults, before = running.job.faults, running.rate.condition
    worker = kind is RoleKind.WORKER
    if worker:
        running.rate.condition = replace(before, worker_speed=faults.straggler_speed)
    else:
        running.rate.condition = replace(before, server_speed=faults.server_speed)
    sim.refresh(running)
    _schedule_repair(sim, running, _one_pod_s(sim, running) if worker else 0.0)


def _schedule_repair(sim: Simulation, running: SimulatedJob, seconds: float) -> None:
    """Schedule the repair that follows the detection: a new pod or moved slots in a live system, and a restart in any
    other."""
    if not sim.system.mechanisms.relieves:
        return
    if sim.system.mechanisms.servers is ServerChange.RESTART:
        sim.clock.after(sim.world.faults.detect_s, lambda: _restart(sim, running))
    else:
        sim.clock.after(sim.world.faults.detect_s + seconds, lambda: _on_repaired(sim, running))


def _restart(sim: Simulation, running: SimulatedJob) -> None:
    if not running.ended:
        sim.pause(running, sim.system.mechanisms.pause_s(sim.world))
        _on_repaired(sim, running)


def _on_repaired(sim: Simulation, running: SimulatedJob) -> None:
    """Clear the hot server and the stragglers: slots have moved, and new pods replace slow pods."""
    if not running.ended:
        sim.touch(running)
        running.rate.condition = replace(running.rate.condition, hot=1.0, server_speed=1.0, worker_speed=1.0)
        sim.refresh(running)


def _lose(sim: Simulation, running: SimulatedJob, generation: int) -> None:
    if not _current(running, generation):
        return
    sim.touch(running)
    running.progress.hazard = running.progress.next_loss
    running.progress.next_loss += float(running.random.exponential())
    if not sim.system.mechanisms.elastic:
        sim.end(running, JobEnd.POD_LOST)
        return
    shape = running.shape
    assert shape is not None
    if running.random.random() * (shape.workers + shape.servers) < shape.workers:
        running.rate.condition = replace(running.rate.condition, missing=running.rate.condition.missing + 1)
        sim.refresh(running)
        sim.clock.after(_one_pod_s(sim, running), lambda: _joined(sim, running))
    else:
        _server_lost(sim, running)


def _joined(sim: Simulation, running: SimulatedJob) -> None:
    if not running.ended:
        sim.touch(running)
        running.rate.condition = replace(running.rate.condition, missing=max(0, running.rate.condition.missing - 1))
        sim.refresh(running)


def _server_lost(sim: Simulation, running: SimulatedJob) -> None:
    """Rewind the job to its last checkpoint and pause it until the server is back."""
    since_save = float(running.random.random()) * sim.world.changes.save_every_s
    running.progress.done = max(0.0, running.progress.done - running.samples_s * since_save)
    sim.pause(running, _one_pod_s(sim, running, server=True))


def _one_pod_s(sim: Simulation, running: SimulatedJob, *, server: bool = False) -> float:
    shape = running.shape
    assert shape is not None
    cpu = shape.server_cpu if server else shape.worker_cpu
    return world_model.pending_s(sim.world, cpu, 1, running.random) + sim.world.pods.launch_s + sim.world.pods.init_s


def _overflow(sim: Simulation, running: SimulatedJob, generation: int) -> None:
    """Kill a server whose memory is full. An elastic system restarts the job with twice the memory (001 §4.2)."""
    if not _current(running, generation):
        return
    sim.touch(running)
    shape = running.shape
    assert shape is not None
    running.tally.ooms += 1
    running.tally.ran_out = shape
    larger = _more_memory(sim, shape)
    if not sim.system.mechanisms.elastic or not sim.resized(running, larger):
        sim.end(running, JobEnd.OOM)
        return
    _server_lost(sim, running)


def _more_memory(sim: Simulation, shape: Shape) -> Shape:
    """Double the memory of each server; if a node has no more memory, double the number of servers."""
    most = int(sim.world.size.node_memory * GIB)
    if 2 * shape.server_memory <= most:
        return replace(shape, server_memory=2 * shape.server_memory)
    return replace(shape, server_memory=most, servers=2 * shape.servers)
