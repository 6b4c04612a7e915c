"""A trainer that waits for data lends its cores to data workers within kernel quotas.

Needs control groups that this user may make.
"""

import pathlib

import numpy as np
import pytest

from springtide.domain.core.resources import ProcessLimits
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.telemetry.host import control_groups
from springtide.telemetry.host.control_groups import GroupV1, GroupV2
from springtide.testing.cluster import LocalCluster
from tests.process import counting, held

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(400)]

BATCH, BATCHES = 16, 12_000
READING_SLOWLY = counting.SCRIPT.replace(
    "        trap = ", "        time.sleep(0.0 if hurry.exists() else 0.004)\n        trap = "
)
"""A sample takes 4 ms of waiting: what data workers make grows with their number, whatever else the machine does."""


def quota(pid):
    """Cores that the kernel holds a process to."""
    found = control_groups.find_hierarchy(pathlib.Path(f"/proc/{pid}"))
    group = GroupV1(found.folders) if found.version == 1 else GroupV2(found.folders["cpu"])
    return group.limits().cpu


@pytest.fixture(autouse=True)
def _held():
    held.skip_unless(ProcessLimits(cpu=1.0))


def test_waiting_trainer_lends_unused_cores_and_the_job_gets_faster(tmp_path):
    ids = counting.draw(np.random.default_rng(8), BATCHES * BATCH)
    script = counting.write(tmp_path, ids, READING_SLOWLY)
    rules = JobSpec(
        name="lending",
        workers=1,
        servers=1,
        worker_cpu=2.0,
        heartbeat_s=0.1,
        seed=8,
        relaunches=1000,
        feeding=FeedRules(cpu=0.5, cores=3.2, every_s=4.0),
    )
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.0], spec=rules, folder=tmp_path) as job:
        job.until(lambda status: tuning_reasons(job, "no cores are free, and trainers that wait"), within_s=200)
        lent = job.until(lambda status: quota(job.pids()["worker-0"]) < 2.0)
        kept = job.until(lambda status: tuning_reasons(job, "the others lent to data workers"), within_s=100)
        pids = job.pids()
        held = {role: quota(pid) for role, pid in pids.items() if role.startswith(("worker", "data-worker"))}
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert tuning_reasons(job, "the others lent to data workers")[0].endswith("kept"), tuning_reasons(job, "lent")
    assert held["worker-0"] < 2.0 and sum(cpu == 0.5 for cpu in held.values()) >= 3, held
    assert sum(held.values()) <= 3.2 + 1e-6, held
    assert lent.roles.data_workers.alive < kept.roles.data_workers.alive, "those that came by it"
    assert status.roles.relaunches == 0
    assert not counting.differences(tmp_path, ids, epochs=1, batch=BATCH)


def tuning_reasons(job, words):
    """Tuning reasons logged so far that contain these words."""
    return [str(event["why"]) for event in job.story if words in str(event.get("why"))]
