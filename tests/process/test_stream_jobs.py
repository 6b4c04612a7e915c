"""Training from a stream under faults and scaling: every record is trained exactly once."""

import contextlib
import shutil
import threading

import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, stream_counting
from tests.process.fault_injector import WITH_SERVERS, FaultInjector, FaultPlan

pytestmark = pytest.mark.process

BATCH = 32
SILENCE_S = 2.0


def spec(**more):
    """A job that notices quickly, and never gives up."""
    given = dict(
        workers=2,
        servers=2,
        heartbeat_s=0.2,
        silence_s=SILENCE_S,
        server_silence_s=SILENCE_S,
        relaunches=1000,
        backoff_s=0.0,
        drain_s=10,
        slots=128,
        checkpoints=CheckpointRules(every_s=0.5),
    )
    return JobSpec(name="stream", **(given | more))


def job_of(folder, *, pause_s=0.005, linger_s=0.2, parts=1, shuffle="advanced", environment=None, **more):
    """A job that counts the records of this folder's log, with this many batches per step."""
    text = stream_counting.SCRIPT
    (folder / "count.py").write_text(text if parts == 1 else counting.summing(text, parts))
    arguments = [folder, BATCH, pause_s, {"linger_s": linger_s, "shuffle": shuffle}]
    return LocalCluster(
        folder / "count.py", arguments, spec=spec(**more), folder=folder / "runs", environment=environment or {}
    )


def check(folder, status, producer):
    """Check that no record is missing or repeated."""
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == len(producer.records), status
    assert not (wrong := stream_counting.differences(folder, producer.records)), wrong


@contextlib.contextmanager
def appending(producer, count, *, every_s=0.05, unless=lambda: False):
    """Append records unevenly in the background, except while `unless` holds, for slow machines."""
    ended = threading.Event()

    def append():
        turn = 0
        while not ended.wait(every_s):
            if unless():
                continue
            turn += 1
            producer.append(count, partition=turn % 3 if turn % 5 == 0 else None)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.timeout(400)
def test_every_record_is_trained_once_though_roles_are_killed_and_job_and_stream_grow(tmp_path):
    producer = stream_counting.Producer(tmp_path, partitions=3)
    producer.append(500)
    with job_of(tmp_path, silence_s=30.0, server_silence_s=30.0) as job:
        with appending(producer, 40, unless=lambda: len(producer.records) - job.status.samples > 2000):
            job.until(lambda status: status.samples > 500)
            job.kill_each("worker-1")
            producer.grow(5)
            before = len(producer.records)
            job.until(lambda status: status.samples > before)
            assert job.kill("master")
            before = len(producer.records)
            job.until(lambda status: status.master.term == 2 and status.samples > before and status.checkpoints.number)
            assert job.kill("server-0")
            job.scale(3)
            before = len(producer.records)
            job.until(lambda status: status.samples > before and status.roles.workers.alive == 3)
            job.scale(1)
            producer.append(2000)  # a burst
            job.until(lambda status: status.roles.workers.alive == 1)
        producer.append(7)
        producer.seal()
        status = job.wait()
    check(tmp_path, status, producer)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_random_faults_lose_and_repeat_no_record(tmp_path, seed):
    plan = FaultPlan(seed=seed, silence_s=SILENCE_S, pause_s=(0.5, 2.5), kinds=WITH_SERVERS)
    producer = stream_counting.Producer(tmp_path, partitions=4, seed=seed)
    with job_of(tmp_path, parts=1 + seed % 3) as job:
        with appending(producer, 30):
            done = FaultInjector(plan, job).run(at_most=15)
        producer.seal()
        status = job.wait()
    print(f"seed {seed}: {done}")
    check(tmp_path, status, producer)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("shuffle", ["none", "advanced"])
def test_tenfold_bursts_are_trained_once_though_roles_are_killed(tmp_path, shuffle):
    producer = stream_counting.Producer(tmp_path, partitions=3)
    producer.append(500)
    with job_of(tmp_path, shuffle=shuffle) as job:
        for role in ("worker-1", "server-0", "master"):
            with appending(producer, 30):
                before = len(producer.records)
                job.until(lambda status, before=before: status.samples > before and status.checkpoints.number)
            with appending(producer, 300):
                before = len(producer.records) + 3000
                job.until(lambda _, before=before, role=role: len(producer.records) > before and role in job.pids())
                assert job.kill(role)
                before = len(producer.records)
                job.until(lambda status, before=before: status.samples > before)
            job.until(lambda status: status.samples == len(producer.records))  # what had piled up is worked off
        producer.seal()
        status = job.wait()
    check(tmp_path, status, producer)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sync", ["async", pytest.param("bsp", marks=pytest.mark.soak)])
def test_job_refuses_a_recreated_log_even_if_it_is_longer(tmp_path, sync):
    producer = stream_counting.Producer(tmp_path, partitions=2)
    producer.append(20_000)
    size = dict(workers=1, servers=1, silence_s=30.0, server_silence_s=30.0, sync=sync, pause_s=0.1)
    with job_of(tmp_path, **size) as job:
        job.until(lambda status: status.samples > 100 and status.checkpoints.number)
        job.stop()
        stopped = job.wait()
    assert stopped.phase is JobPhase.STOPPED, stopped
    producer.seal()
    shutil.rmtree(tmp_path / "log")
    another = stream_counting.Producer(tmp_path, partitions=2)
    another.append(30_000)
    another.seal()
    counting.hurry(tmp_path)
    where, number = str(job.files.checkpoints), stopped.checkpoints.number
    run = checkpoint_io.read(where, number).run
    rules = CheckpointRules(every_s=0.5, resume=where, resume_number=number, resume_run=run, numbers_after=number)
    with job_of(tmp_path, checkpoints=rules, **size) as job:
        status = job.wait()
    assert status.phase is JobPhase.FAILED and "log was recreated since this job read it" in status.why, status


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_stopped_stream_job_resumes_at_the_exact_record(tmp_path):
    producer = stream_counting.Producer(tmp_path, partitions=3)
    with job_of(tmp_path, silence_s=30.0) as job, appending(producer, 40):
        job.until(lambda status: status.samples > 1000)
        job.stop()
        stopped = job.wait()
    assert stopped.phase is JobPhase.STOPPED and 0 < stopped.samples <= len(producer.records)
    producer.append(500)
    producer.seal()
    number, where = stopped.checkpoints.number, str(job.files.checkpoints)
    run = checkpoint_io.read(where, number).run
    rules = CheckpointRules(every_s=0.5, resume=where, resume_number=number, resume_run=run, numbers_after=number)
    with job_of(tmp_path, workers=1, servers=1, silence_s=30.0, checkpoints=rules) as job:
        status = job.wait()
    check(tmp_path, status, producer)
