"""Jobs whose script runs a framework's loop: warm starts with the framework, kills, stops and resumes."""

import contextlib
import json

import pytest

from springtide import config
from springtide.checkpoint.format import checkpoint_io
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local import fork_server
from springtide.testing.cluster import LocalCluster
from tests import waiting


@contextlib.contextmanager
def warm_starts(module):
    """A fork server that has imported a framework, which takes each process several core-seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "IMPORTS", (*fork_server.IMPORTS, module))
        client = fork_server.ForkServerClient(besides=["PYTEST_CURRENT_TEST"])
        plan = RunPlan(spec=JobSpec(name="any"), script="train.py")
        environment = config.child_environment({}, run_plan.environment_of(plan, ProcessLimits()))
        client.begin(environment)
        waiting.until(lambda: client.suits(environment) or client._process.poll() is not None, "imports", within_s=240)
        yield client
        client.close()


def start(folder, arguments, sync, warm, *, resumed=None):
    """Start folder/train.py as a job of 2 workers and 2 servers, or resume a job that was stopped."""
    rules = CheckpointRules(every_s=0.2)
    if resumed is not None:
        manifest = checkpoint_io.latest(str(resumed.files.root)).manifest
        where = str(resumed.files.checkpoints)
        rules = CheckpointRules(resume=where, resume_number=manifest.number, resume_run=manifest.run)
    spec = JobSpec(
        name="framework",
        workers=2,
        servers=2,
        heartbeat_s=0.1,
        silence_s=30.0,
        relaunches=1000,
        backoff_s=0.0,
        slots=64,
        checkpoints=rules,
        sync=sync,
    )
    return LocalCluster(folder / "train.py", [folder, *arguments], spec=spec, folder=folder / "runs", warm=warm)


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def all_wait_at(folder, what, *ranks):
    return lambda _: all((folder / f"{what}, rank {rank}").exists() for rank in ranks)


def lives(job, role):
    return sum(event["event"] == "joined" and event["role"] == role for event in job.story)


def run_with_faults(folder, arguments, sync, warm):
    """Kill a worker and a server in epoch 0, rank 0 in epoch 1, stop the job in epoch 2, and resume it to its end."""
    for epoch in range(3):
        (folder / f"hold in {epoch}").touch()
    with start(folder, arguments, sync, warm) as job:
        job.until(all_wait_at(folder, "in 0", 0, 1))
        assert job.kill("worker-1")
        job.kill_each("server-0")
        job.until(lambda _: lives(job, "worker-1") > 1 and lives(job, "server-0") > 1)
        (folder / "hold in 0").unlink()
        job.until(all_wait_at(folder, "in 1", 0, 1))
        assert job.kill("worker-0")
        (folder / "hold in 1").unlink()
        job.until(all_wait_at(folder, "in 2", 0, 1))
        job.stop()
        if sync == "bsp":  # a rank hears of it only when the group has trained what it had begun
            (folder / "hold in 2").unlink()
        assert job.wait().phase is JobPhase.STOPPED, job.status.why
    (folder / "hold in 2").unlink(missing_ok=True)
    with start(folder, arguments, sync, warm, resumed=job) as job:
        assert job.wait().phase is JobPhase.FINISHED, job.status.why
