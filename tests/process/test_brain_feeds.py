"""A real brain shares cores among data workers of two real jobs by its metric.

Needs control groups that this user may make.
"""

import contextlib

import numpy as np
import pytest

from springtide.brain.service import serve
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.domain.spec.planning_config import AdviserRules, PlanningConfig, PlanRules
from springtide.testing.cluster import LocalCluster
from tests.process import counting, held, running

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(500)]

BATCH, BATCHES = 16, 12_000
SAMPLE_S = {"light": 0.001, "heavy": 0.004}
"""Of waiting: what data workers make grows with their number, whatever else the machine does."""
CAPACITY, SIZE = 5.0, Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=0.5)
LEFT = CAPACITY - len(SAMPLE_S) * SIZE.cpu
EACH = 0.5


@pytest.fixture(autouse=True)
def _held():
    held.skip_unless(ProcessLimits(cpu=1.0))


def spec(name, brain, folder):
    rules = PlanRules(
        bounds=ShapeBounds(least=SIZE, most=SIZE, quota=ResourceBudget(cpu=CAPACITY, memory=2**40)),
        adviser=AdviserRules(brain=brain, key=name, secret_file=str(serve.secret_file(folder))),
        every_s=0.5,
        settle_s=0.1,
        window_s=1.0,
        warm_up_steps=1,
        config=PlanningConfig(sample_s=1.0, between_changes_s=0.3),
    )
    return JobSpec(
        name=name,
        workers=1,
        servers=1,
        worker_cpu=1.0,
        server_cpu=0.5,
        heartbeat_s=0.1,
        silence_s=10.0,
        seed=8,
        relaunches=1000,
        planning=rules,
        feeding=FeedRules(cpu=EACH, cores=CAPACITY, every_s=4.0),
    )


# tests/unit/planning/dataworkers/cluster covers what each metric favours; one shows that the brain's choice arrives
FAIR = pytest.param("fair", "heavy", marks=pytest.mark.soak)


@pytest.mark.parametrize(("metric", "favoured"), [("maxtp", "light"), FAIR])
def test_brain_metric_shares_cores_between_two_jobs_with_exact_counts(tmp_path, metric, favoured):
    other = next(name for name in SAMPLE_S if name != favoured)
    brain = running.springtide(
        "brain",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--capacity",
        f"{CAPACITY:g},64G",
        "--policy",
        "static",
        "--planning",
        f"data_workers={metric}",
        folder=tmp_path,
    )
    with brain as served, contextlib.ExitStack() as stack:
        where = served.wait_for("brain: serving at ").split("serving at ")[1].split(";")[0]
        ids, jobs = counting.draw(np.random.default_rng(8), BATCHES * BATCH), {}
        for name, wait_s in SAMPLE_S.items():
            folder = tmp_path / name
            folder.mkdir()
            slowly = f"        time.sleep(0.0 if hurry.exists() else {wait_s})\n        trap = "
            script = counting.write(folder, ids, counting.SCRIPT.replace("        trap = ", slowly))
            rules = spec(name, where, tmp_path / ".springtide" / "brain")
            jobs[name] = stack.enter_context(LocalCluster(script, [folder, 1, BATCH, 0.0], spec=rules, folder=folder))
        most = round(LEFT / EACH) - 1
        jobs[favoured].until(
            lambda status: (status.roles.data_workers.alive, jobs[other].status.roles.data_workers.alive) == (most, 1),
            within_s=300,
        )
        for name in SAMPLE_S:
            counting.hurry(tmp_path / name)
        ended = {name: job.wait() for name, job in jobs.items()}
    for name, status in ended.items():
        assert status.phase is JobPhase.FINISHED and status.roles.relaunches == 0, status
        assert not counting.differences(tmp_path / name, ids, epochs=1, batch=BATCH)
