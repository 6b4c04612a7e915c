"""A run with new data trains it exactly once, with the other run's model and schedules, and leaves that run alone."""

import shutil

import numpy as np
import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

SEED = 20261119
BATCH = 20
SCRIPT = counting.SCRIPT.replace(
    "for x in batches:\n",
    """schedule = job.register(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
with open(folder / "steps.txt", "a") as file:
    print(schedule.last_epoch, file=file)
for x in batches:
    schedule.step()
""",
)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def day(tmp_path, ids, name, rules, *, epochs, pause_s=0.0, servers=1):
    script = counting.write(tmp_path, ids, SCRIPT)
    spec = JobSpec(
        name=name, heartbeat_s=0.1, relaunches=10, backoff_s=0.0, servers=servers, slots=64, checkpoints=rules
    )
    return LocalCluster(script, [tmp_path, epochs, BATCH, pause_s], spec=spec, folder=tmp_path / "runs")


@pytest.mark.timeout(400)
def test_new_data_is_trained_exactly_once_with_the_model_of_the_day_before(tmp_path):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    first, second = counting.draw(rng, 800), counting.draw(rng, 1200)
    with day(tmp_path, first, "monday", CheckpointRules(every_s=3600), epochs=1) as job:
        assert job.wait().phase is JobPhase.FINISHED
    monday, kept = job.files.root, contents(job.files.root)
    manifest = checkpoint_io.latest(str(monday)).manifest
    rules = CheckpointRules(
        every_s=3600,  # the only checkpoint is the final one, so the lost server restores monday's
        resume=str(monday),
        resume_number=manifest.number,
        resume_run=manifest.run,
        numbers_after=manifest.number,
        new_data=True,
    )
    with day(tmp_path, second, "tuesday", rules, epochs=2, pause_s=0.02, servers=2) as job:
        job.until(lambda status: status.samples >= 200)
        job.kill_each("server-1")
        job.until(lambda _: any(event["event"] == "ready" and event.get("checkpoint") for event in job.story))
        before = job.status.samples
        job.until(lambda status: status.samples > before)
        assert job.kill("worker-0")
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED and status.samples == 2 * len(second), status
    assert counting.differences(tmp_path, np.concatenate([first, second, second]), epochs=1, batch=BATCH) == {}
    steps = [int(line) for line in (tmp_path / "steps.txt").read_text().split()]
    assert steps[:2] == [0, len(first) // BATCH] and min(steps[2:]) >= steps[1], "the schedule goes on"
    assert contents(monday) == kept
    shutil.rmtree(monday)
    last = checkpoint_io.latest(str(job.files.root))
    assert last.manifest.number > manifest.number and not last.troubles, "tuesday's checkpoint stands alone"
