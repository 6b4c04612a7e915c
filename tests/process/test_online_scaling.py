"""The closed loop of an online job with real processes: workers follow the traffic despite kills."""

import os
import time

import pytest

from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import OnlineJob, OnlineRules
from springtide.telemetry import events
from springtide_lab.bench.stream import online_day

pytestmark = pytest.mark.process

PAUSE_S = 0.05
ONE = online_day.BATCH / PAUSE_S  # records a second of one worker, at most
QUICK = OnlineJob(on=True, rules=OnlineRules(most=2, start_s=600.0), speedup=300.0, every_s=60.0)
"""Five minutes of the stream pass in a second: it is planned every two."""


def job_of(folder, producer, online=QUICK):
    return online_day.job_of(folder, producer, online, pause_s=PAUSE_S, cpu=None, checkpoint_s=0.5)


def scaled(job, workers):
    """Whether the job decided to scale to this many workers."""
    return any(event["event"] == "decision" and f"to {workers} workers" in str(event["what"]) for event in job.story)


@pytest.mark.timeout(400)
def test_workers_follow_traffic_though_the_master_is_killed_during_scaling(tmp_path):
    producer = online_day.Producer(tmp_path, lambda _: 1.2 * ONE, partitions=4)
    with job_of(tmp_path, producer) as job:
        job.until(lambda status: status.online is not None)
        producer.start()
        job.until(lambda status: scaled(job, 2))
        assert job.kill("master")
        job.until(lambda now: now.master.term == 2 and now.roles.workers.alive == now.roles.workers.wanted == 2)
        assert "worker-1" in job.pids()
        job.until(lambda now: now.online is not None and now.online.capacity is not None)
        producer.seal()
        ended = job.wait()
    assert (
        ended.phase is JobPhase.FINISHED and ended.online.scaling.changes >= 1 and ended.online.totals.worker_hours > 0
    )
    assert online_day.miscounted(tmp_path, producer.appended) == 0
    why = next(str(event["why"]) for event in job.story if "to 2 workers" in str(event.get("what", "")))
    assert "samples/s" in why


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_falling_traffic_releases_workers(tmp_path):
    began = time.time()
    producer = online_day.Producer(tmp_path, lambda now: 1.5 * ONE if now < began + 25 else 0.2 * ONE, partitions=4)
    with job_of(tmp_path, producer) as job:
        producer.start()
        job.until(lambda status: status.roles.workers.alive == 2)
        job.until(lambda status: status.roles.workers.wanted == 1 and status.roles.workers.alive == 1)
        producer.seal()
        ended = job.wait()
    assert ended.phase is JobPhase.FINISHED and online_day.miscounted(tmp_path, producer.appended) == 0


SLOW = """
import threading
def forecast(history, steps):
    threading.Event().wait()
"""


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_hanging_forecaster_costs_only_its_forecast(tmp_path, monkeypatch):
    (tmp_path / "slow_forecaster.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    online = OnlineJob(on=True, rules=QUICK.rules, speedup=300.0, every_s=60.0, forecaster="slow_forecaster:forecast")
    producer = online_day.Producer(tmp_path, lambda _: 1.5 * ONE, partitions=4)
    with job_of(tmp_path, producer, online) as job:
        producer.start()
        job.until(lambda status: status.roles.workers.wanted == 2)
        job.until(lambda status: status.online is not None and "failed" in status.online.expected.trouble)
        producer.seal()
        ended = job.wait()
    assert ended.phase is JobPhase.FINISHED and online_day.miscounted(tmp_path, producer.appended) == 0


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_clock_jump_triggers_no_scaling(tmp_path, monkeypatch):
    jumped = [0.0]
    producer = online_day.Producer(tmp_path, lambda _: 0.4 * ONE, partitions=4, clock=lambda: time.time() + jumped[0])
    with job_of(tmp_path, producer) as job:
        job.until(lambda status: status.online is not None)
        producer.start()
        job.until(lambda status: status.online.capacity is not None)
        for jump in (7200.0, -86_400.0, 0.0):
            jumped[0] = jump
            before = job.status.samples
            job.until(lambda status, before=before: status.samples > before + 5 * ONE * 0.4)
            assert job.status.online.lag_s / QUICK.speedup < 30.0
        producer.seal()
        ended = job.wait()
    assert ended.phase is JobPhase.FINISHED and ended.roles.workers.wanted == 1
    assert not [event for event in events.read(job.files.events) if event["event"] == "alert"]
    assert online_day.miscounted(tmp_path, producer.appended) == 0
