"""Training from a real Kafka broker under faults: each record is trained exactly once."""

import threading

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from springtide_lab.testing import kafka_broker
from tests import waiting
from tests.process import counting, stream_counting
from tests.process.faulty_broker import FaultyBroker

pytestmark = [
    pytest.mark.extra("confluent_kafka"),
    pytest.mark.process,
    pytest.mark.skipif(bool(kafka_broker.missing()), reason=kafka_broker.missing()),
]

BATCH = 32


def fill(url, count, *, partitions, first=0):
    """Append numbered records round-robin to all partitions, for stream_counting's script."""
    from springtide.data.stream.stream import open_stream

    rows = np.random.default_rng(8).zipf(1.3, size=(count, 3)).astype(np.int64) % 1000
    rows[:, 0] = np.arange(first, first + count)
    stream = open_stream(url)
    waiting.until(lambda: stream.partitions() == partitions, "partitions that were just added", every_s=0.1)
    writer = stream.writer()
    for number in range(partitions):
        mine = rows[number::partitions]
        writer.append(number, mine.tobytes(), 24 * np.arange(1, len(mine) + 1, dtype=np.int64))
    writer.close()
    stream.close()
    return rows


def job_of(folder, url, *, pause_s, servers=1, until="now", script=stream_counting.SCRIPT):
    """Two workers, until where the topic ends now."""
    spec = JobSpec(
        name="kafka",
        workers=2,
        servers=servers,
        heartbeat_s=0.2,
        relaunches=1000,
        backoff_s=0.0,
        drain_s=10,
        slots=128,
        checkpoints=CheckpointRules(every_s=0.5),
    )
    (folder / "count.py").write_text(script)
    arguments = [folder, BATCH, pause_s, {"linger_s": 0.2, "until": until, "url": url}]
    return LocalCluster(folder / "count.py", arguments, spec=spec, folder=folder / "runs")


def check(folder, status, rows):
    """Check that no record is missing or repeated."""
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == len(rows), status
    assert not (wrong := stream_counting.differences(folder, rows)), wrong


def train_while_broker_and_worker_are_killed(folder, broker, url):
    """A job on records of the topic at `url`, which it has hardly begun with then."""
    rows = fill(url, 3000, partitions=3)
    with job_of(folder, url, pause_s=0.2) as job:
        job.until(lambda status: status.samples > 300)
        broker.kill()
        job.kill_each("worker-1")
        broker.start()
        counting.hurry(folder)
        check(folder, job.wait(), rows)


@pytest.mark.timeout(400)
def test_each_record_is_trained_once_though_broker_and_worker_are_killed(tmp_path):
    with FaultyBroker(tmp_path / "kafka", partitions=3) as broker:
        url = broker.url("counts", queued_min_messages="1", fetch_message_max_bytes="2000")  # so that much is to come
        train_while_broker_and_worker_are_killed(tmp_path, broker, url)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_each_record_is_trained_once_though_the_broker_hangs_and_all_roles_are_killed(tmp_path):
    with FaultyBroker(tmp_path / "kafka", partitions=3) as broker:
        url = broker.url("counts", queued_min_messages="1", fetch_message_max_bytes="2000")
        rows = fill(url, 30_000, partitions=3)
        with job_of(tmp_path, url, pause_s=0.05, servers=2) as job:
            job.until(lambda status: status.samples > 300)
            broker.stop()
            waker = threading.Timer(30.0, broker.wake)
            waker.start()
            assert job.kill("worker-0")
            assert job.kill("master")
            waker.join()
            before = job.status.samples
            job.until(lambda status: status.samples > before + 600)
            assert job.kill("server-0")
            broker.kill()
            job.scale(3)
            broker.start()
            check(tmp_path, job.wait(), rows)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_partitions_added_to_a_topic_are_trained_once_though_workers_are_killed(tmp_path):
    script = stream_counting.SCRIPT.replace("if not job.leaving:", "if True:")  # a topic has no end: the job is stopped
    with FaultyBroker(tmp_path / "kafka", partitions=2) as broker:
        url = broker.url("counts")
        rows = fill(url, 2000, partitions=2)
        with job_of(tmp_path, url, pause_s=0.01, until=None, script=script) as job:
            for partitions in (5, 6):
                half = len(rows) // 2
                job.until(lambda status, half=half: status.samples > half and "worker-1" in job.pids())
                broker.grow("counts", partitions)
                rows = np.concatenate([rows, fill(url, 2000, partitions=partitions, first=len(rows))])
                assert job.kill("worker-1")
            job.until(lambda status: status.samples == len(rows) and status.roles.workers.alive == 2)
            job.stop()
            status = job.wait()
    assert status.phase is JobPhase.STOPPED and status.samples == len(rows), status
    assert not (wrong := stream_counting.differences(tmp_path, rows)), wrong
