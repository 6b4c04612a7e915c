"""Injects faults into simulated jobs and applies each runtime's reaction: lost pods, stragglers, hot servers, OOM.

In: a job that started or changed its rate. Out: events on the clock. Each job accumulates hazard (pods times time) and
loses a pod when the hazard passes a random threshold. The threshold is drawn per job, so a job has the same luck under
every policy. Next: back to `simulation`.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Protocol

from springtide.domain.core.shape import GIB, Shape
from springtide.sim.engine.running_job import JobEnd, SimulatedJob
from springtide.sim.engine.simulation import Clock
from springtide.sim.engine.systems import Mechanisms, ServerChange
from springtide.sim.world import world as clusters
from springtide.sim.world import world as physics
from springtide.sim.world.parameters import ClusterWorld


class FaultHost(Protocol):
    """The part of the simulation that faults use."""

    clock: Clock
    world: ClusterWorld
    mechanisms: Mechanisms
    loss_rate: float

    def touch(self, running: SimulatedJob) -> None: ...

    def refresh(self, running: SimulatedJob) -> None: ...

    def pause(self, running: SimulatedJob, seconds: float) -> None: ...

    def resized(self, running: SimulatedJob, shape: Shape) -> bool: ...

    def end(self, running: SimulatedJob, end: JobEnd) -> None: ...


def plan(sim: FaultHost, running: SimulatedJob) -> None:
    """Schedule the relief of a job that starts with a hot server, if the system detects hot servers."""
    if running.condition.hot > 1:
        _mend(sim, running, 0.0)


def watch(sim: FaultHost, running: SimulatedJob, rate: float) -> None:
    """Schedule the next faults at a new rate: full memory, stragglers and the next pod loss."""
    generation = running.generation
    shape = running.shape
    assert shape is not None
    pods = running.at_work.workers + shape.servers
    loss = (running.next_loss - running.hazard) / (sim.loss_rate * pods) if sim.loss_rate > 0 else math.inf
    if math.isfinite(loss):
        sim.clock.after(loss, lambda: _lose(sim, running, generation))
    if rate <= 0:
        return
    full = physics.full_at(running.job, shape, running.condition.hot)
    if math.isfinite(full):
        sim.clock.after(max(0.0, (full - running.done) / rate), lambda: _overflow(sim, running, generation))
    for share, act in ((running.job.straggles_at, _straggle), (running.job.slow_server_at, _slow_server)):
        at = share * running.job.samples
        if running.done <= at < running.job.samples:
            sim.clock.after((at - running.done) / rate, partial(act, sim, running, generation))


def _current(running: SimulatedJob, generation: int) -> bool:
    return running.generation == generation and not running.ended


def _straggle(sim: FaultHost, running: SimulatedJob, generation: int) -> None:
    if not _current(running, generation):
        return
    _passed(sim, running, running.job.straggles_at)
    running.condition = replace(running.condition, worker_speed=running.job.straggler_speed)
    sim.refresh(running)
    _mend(sim, running, _one_pod_s(sim, running))


def _slow_server(sim: FaultHost, running: SimulatedJob, generation: int) -> None:
    if not _current(running, generation):
        return
    _passed(sim, running, running.job.slow_server_at)
    running.condition = replace(running.condition, server_speed=running.job.server_speed)
    sim.refresh(running)
    _mend(sim, running, 0.0)


def _passed(sim: FaultHost, running: SimulatedJob, share: float) -> None:
    sim.touch(running)
    running.done = max(running.done, math.nextafter(share * running.job.samples, math.inf))


def _mend(sim: FaultHost, running: SimulatedJob, seconds: float) -> None:
    """Schedule the repair after detection: a new pod or moved slots for a live system, else a restart."""
    if not sim.mechanisms.relieves:
        return
    if sim.mechanisms.servers is ServerChange.RESTART:
        sim.clock.after(sim.world.detect_s, lambda: _restart(sim, running))
    else:
        sim.clock.after(sim.world.detect_s + seconds, lambda: _mended(sim, running))


def _restart(sim: FaultHost, running: SimulatedJob) -> None:
    if not running.ended:
        sim.pause(running, sim.mechanisms.pause_s(sim.world))
        _mended(sim, running)


def _mended(sim: FaultHost, running: SimulatedJob) -> None:
    """Clear the hot server and the stragglers: slots have moved, and new pods replace slow pods."""
    if not running.ended:
        sim.touch(running)
        running.condition = replace(running.condition, hot=1.0, server_speed=1.0, worker_speed=1.0)
        sim.refresh(running)


def _lose(sim: FaultHost, running: SimulatedJob, generation: int) -> None:
    if not _current(running, generation):
        return
    sim.touch(running)
    running.hazard = running.next_loss
    running.next_loss += float(running.random.exponential())
    if not sim.mechanisms.elastic:
        sim.end(running, JobEnd.POD_LOST)
        return
    shape = running.at_work
    if running.random.random() * (shape.workers + shape.servers) < shape.workers:
        running.condition = replace(running.condition, missing=running.condition.missing + 1)
        sim.refresh(running)
        sim.clock.after(_one_pod_s(sim, running), lambda: _joined(sim, running))
    else:
        _server_lost(sim, running)


def _joined(sim: FaultHost, running: SimulatedJob) -> None:
    if not running.ended:
        sim.touch(running)
        running.condition = replace(running.condition, missing=max(0, running.condition.missing - 1))
        sim.refresh(running)


def _server_lost(sim: FaultHost, running: SimulatedJob) -> None:
    """Rewind the job to its last checkpoint and pause it until the server is back."""
    since_save = float(running.random.random()) * sim.world.save_every_s
    running.done = max(0.0, running.done - running.samples_s * since_save)
    sim.pause(running, _one_pod_s(sim, running, server=True))


def _one_pod_s(sim: FaultHost, running: SimulatedJob, *, server: bool = False) -> float:
    shape = running.shape
    assert shape is not None
    cpu = shape.server_cpu if server else shape.worker_cpu
    return clusters.pending_s(sim.world, cpu, 1, running.random) + sim.world.launch_s + sim.world.init_s


def _overflow(sim: FaultHost, running: SimulatedJob, generation: int) -> None:
    """Kill a server whose memory is full. An elastic system restarts it with twice the memory (001 §4.2)."""
    if not _current(running, generation):
        return
    sim.touch(running)
    shape = running.shape
    assert shape is not None
    running.ooms += 1
    running.ran_out = shape
    larger = _more_memory(sim, shape)
    if not sim.mechanisms.elastic or not sim.resized(running, larger):
        sim.end(running, JobEnd.OOM)
        return
    _server_lost(sim, running)


def _more_memory(sim: FaultHost, shape: Shape) -> Shape:
    """Double the memory of each server; if a node has no more memory, double the number of servers."""
    most = int(sim.world.node_memory * GIB)
    if 2 * shape.server_memory <= most:
        return replace(shape, server_memory=2 * shape.server_memory)
    return replace(shape, server_memory=most, servers=2 * shape.servers)
