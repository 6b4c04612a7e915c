"""Workers forward stream batches to each other: each record is trained once if owner or receiver is killed."""

import signal

import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import stream_counting

pytestmark = pytest.mark.process

BATCH = 16
NOTING = """
import os as _os
import pathlib as _pathlib
import sys as _sys
import springtide.worker.online.shuffle_unit as _unit

_took = _unit.ShuffleUnit.peer_sent


def _noted(self, peer, run):
    (_pathlib.Path(_sys.argv[1]) / f"{_os.environ['SPRINGTIDE_MEMBER']} took from {peer}").touch()
    _took(self, peer, run)


_unit.ShuffleUnit.peer_sent = _noted
"""


def job_of(folder, *, workers=3, pause_s=0.05, shuffle="advanced", silence_s=30.0):
    """One that notes which worker has taken a batch from which."""
    (folder / "count.py").write_text(NOTING + stream_counting.SCRIPT)
    spec = JobSpec(
        name="shuffled",
        workers=workers,
        servers=1,
        heartbeat_s=0.2,
        silence_s=silence_s,
        relaunches=1000,
        backoff_s=0.0,
        drain_s=10,
        slots=64,
        checkpoints=CheckpointRules(every_s=0.5),
    )
    arguments = [folder, BATCH, pause_s, {"linger_s": 0.2, "shuffle": shuffle}]
    return LocalCluster(folder / "count.py", arguments, spec=spec, folder=folder / "runs")


def takers_and_owners(folder):
    """Pairs (receiver, owner with its incarnation) of forwarded batches."""
    notes = [path.name.split(" took from ") for path in folder.glob("worker-* took from *")]
    return {(receiver, owner) for receiver, owner in notes}


def wait_until_shuffled(folder, job, producer, *, but=()):
    """Produce more than one worker can train until a batch of another owner is taken."""

    def found(status):
        if len(producer.records) - status.samples < 2000:  # else a slow machine would take for ever to be through
            producer.append(12)
        return sorted(pair for pair in takers_and_owners(folder) if pair[1] not in but)

    return found(job.until(found))[0]


def check(folder, status, producer):
    assert status.phase is JobPhase.FINISHED, status
    assert not (wrong := stream_counting.differences(folder, producer.records)), wrong


@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_shuffled_partition_is_trained_once_though_owner_and_receiver_are_killed(tmp_path, workers):
    producer = stream_counting.Producer(tmp_path, partitions=1)
    with job_of(tmp_path, workers=workers) as job:
        _, owner = wait_until_shuffled(tmp_path, job, producer)
        job.kill_each(owner.partition(".")[0])
        receiver, _ = wait_until_shuffled(tmp_path, job, producer, but={owner})
        job.kill_each(receiver)
        producer.append(300)
        producer.seal()
        status = job.wait()
    check(tmp_path, status, producer)
    assert len({owner for _, owner in takers_and_owners(tmp_path)}) >= 2


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("shuffle", ["basic", "advanced"])
def test_suspended_receiver_delays_no_other_worker(tmp_path, shuffle):
    producer = stream_counting.Producer(tmp_path, partitions=1)
    producer.append(4000)
    with job_of(tmp_path, shuffle=shuffle, silence_s=2.0) as job:
        receiver, _ = wait_until_shuffled(tmp_path, job, producer)
        assert job.signal(receiver, signal.SIGSTOP)
        before = job.status.samples
        job.until(lambda status: status.samples > before + 1000)
        producer.seal()
        status = job.wait()
    check(tmp_path, status, producer)
