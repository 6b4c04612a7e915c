"""A job survives the reader of its output: `2>&1 | head`, a dead or stalled collector, `/dev/full`."""

import contextlib
import os
import signal

import pytest

from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.platforms.local import job_handle
from springtide.telemetry import events, logs
from springtide.testing.cluster import LocalCluster
from tests import waiting
from tests.process import forked_command, running

pytestmark = pytest.mark.process

CHATTY = running.loop(body="print('training', 'x' * 200, flush=True)", samples=20 * 400)


@contextlib.contextmanager
def started(folder, out):
    """`springtide run train.py` with both of its outputs there; it is dead afterwards."""
    environment = {**os.environ, "PYTHONPATH": str(running.ROOT)}
    job = forked_command.ForkedCommand(["springtide", "run", "--no-plan", "train.py"], folder, environment, out=out)
    try:
        yield job
    finally:
        job.kill()
        job.wait()


@contextlib.contextmanager
def read_by_us(folder):
    """The job, and a file with its output."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as reader, started(folder, theirs) as job:
        os.close(theirs)
        yield job, reader


def status(folder):
    """The status that `springtide status` reads."""
    (run,) = logs.find_runs(folder / ".springtide/runs")
    return job_handle.LocalJobHandle(run).status()


def all_was_trained(folder):
    """Whether the job has finished and its log has every line."""
    log = (folder / ".springtide/runs/train/logs/worker-0.log").read_text().splitlines()
    found = status(folder)
    return (found.phase, found.samples, len(log), log[-1]) == (JobPhase.FINISHED, 8000, 401, "trained 8000")


def test_job_continues_when_its_output_reader_exits(tmp_path):
    running.script(tmp_path, CHATTY)
    with read_by_us(tmp_path) as (job, reader):
        for _ in range(3):  # as `| head -3` does
            assert reader.readline()
        reader.close()
        assert job.wait(running.PATIENCE_S) == 0
    assert all_was_trained(tmp_path)


def test_job_continues_when_its_output_device_is_full(tmp_path):
    running.script(tmp_path, CHATTY)
    with open("/dev/full", "w") as full, started(tmp_path, full.fileno()) as job:
        assert job.wait(running.PATIENCE_S) == 0
    assert all_was_trained(tmp_path)


@pytest.mark.soak  # how output waits for its reader is tested in tests/unit/telemetry/test_output.py
def test_job_does_not_wait_for_a_stalled_output_reader(tmp_path):
    running.script(tmp_path, CHATTY)
    story = tmp_path / ".springtide/runs/train/events.jsonl"
    with read_by_us(tmp_path) as (job, reader):
        waiting.until(lambda: [e for e in events.read(story) if e["event"] == "ended"], "the job is over")
        said = reader.read()  # it reads again
        assert job.wait(running.PATIENCE_S) == 0 and "job train finished in" in said
    assert all_was_trained(tmp_path)


def test_job_without_an_output_reader_still_drains_on_request(tmp_path):
    running.script(tmp_path, running.endless_loop())
    with read_by_us(tmp_path) as (job, reader):
        while "training" not in reader.readline():
            pass
        reader.close()
        job.send_signal(signal.SIGINT)
        assert job.wait(running.PATIENCE_S) == 130
    assert status(tmp_path).phase is JobPhase.STOPPED


def test_local_cluster_error_fails_its_job(tmp_path):
    class Broken(LocalCluster):
        def _on_status(self, status):
            raise ZeroDivisionError("a fault of its own")

    script = tmp_path / running.script(tmp_path, running.endless_loop())
    with (
        Broken(script, spec=JobSpec(name="train"), folder=tmp_path / "runs") as job,
        pytest.raises(ZeroDivisionError),
    ):
        job.wait()
    (run,) = logs.find_runs(tmp_path / "runs")
    found = job_handle.last_status(run)
    assert found.phase is JobPhase.FAILED
    assert found.why == "the job's agent failed: ZeroDivisionError: a fault of its own"
