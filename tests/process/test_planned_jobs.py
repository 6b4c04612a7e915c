"""A job that plans its own size changes workers, servers and cores during training with exact counts."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.domain.spec.planning_config import PlanningConfig, PlanRules
from springtide.platforms.local import process_group
from springtide.testing.cluster import LocalCluster
from tests.process import counting, group_counting, running

pytestmark = pytest.mark.process

BATCH = 32


def spec(**more):
    held = not process_group.why_not()
    least, most = (0.2, 1.0) if held else (0.5, 0.5)
    rules = PlanRules(
        bounds=ShapeBounds(
            least=Shape(workers=1, servers=1, worker_cpu=least, server_cpu=least),
            most=Shape(workers=2, servers=2, worker_cpu=most, server_cpu=most),
            quota=ResourceBudget(cpu=4.0, memory=2**40),
        ),
        resize=held,
        every_s=0.2,
        settle_s=0.1,
        window_s=1.0,
        warm_up_steps=1,
        config=PlanningConfig(policy="tests.process.steps_policy:steps", between_changes_s=0.3),
    )
    cpu = 1.0 if held else None
    return JobSpec(
        name="planned",
        worker_cpu=cpu,
        server_cpu=cpu,
        planning=rules,
        slots=128,
        heartbeat_s=0.2,
        silence_s=10.0,
        relaunches=1000,
        backoff_s=0.0,
        checkpoints=CheckpointRules(every_s=1.0),
        **more,
    )


def outcomes(job):
    return [event["outcome"] for event in job.story if event["event"] == "plan"]


def ranks(status):
    """Of the workers, as the job shows them."""
    return {member.role.rank for member in status.members if member.role.kind == "worker"}


def test_counts_are_exact_after_a_plan_changed_workers_and_cores(tmp_path):
    ids = counting.draw(np.random.default_rng(5), 40 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    with LocalCluster(script, [tmp_path, 40, BATCH, 0.05], spec=spec(), folder=tmp_path / "runs") as job:
        job.until(lambda status: "done" in outcomes(job) and ranks(status) == {0, 1})  # a worker has come
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert counting.differences(tmp_path, ids, epochs=40, batch=BATCH) == {}
    said = [str(event.get("what", "")) for event in job.story if event["event"] == "decision"]
    assert any("scale from 1 to 2 workers" in what for what in said)
    assert not spec().planning.resize or any("give each worker 0.9 CPU" in what for what in said)
    assert outcomes(job)[0] == "started"


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_exact_when_master_and_worker_are_killed_during_plans(tmp_path, seed):
    rng = np.random.default_rng(seed)
    ids = counting.draw(rng, 200 * BATCH - 5)
    script = counting.write(tmp_path, ids)
    with LocalCluster(script, [tmp_path, 16, BATCH, 0.05], spec=spec(seed=seed), folder=tmp_path / "runs") as job:
        for turn in range(3):
            job.until(lambda status: status.planning.target is not None)
            job.kill("master")
            job.until(lambda status, term=turn + 2: status.master.term == term)
            job.until(lambda status: any(m.role.kind == "worker" and m.joined and m.alive for m in status.members))
            job.kill(f"worker-{int(rng.integers(0, 2))}") or job.kill("worker-0")
            job.until(
                lambda status, done=turn + 1: outcomes(job).count("done") >= done and status.planning.target is None
            )
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert counting.differences(tmp_path, ids, epochs=16, batch=BATCH) == {}
    assert "refused" not in outcomes(job)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_bsp_job_is_given_more_workers_by_its_plan_and_counts_once(tmp_path):
    rules = spec().planning
    bounds = replace(
        rules.bounds, most=replace(rules.bounds.most, workers=3), quota=ResourceBudget(cpu=6.0, memory=2**40)
    )
    config = PlanningConfig(sample_steps=20, sample_s=2.0, between_changes_s=1.0)
    in_step = replace(spec(), sync="bsp", planning=replace(rules, bounds=bounds, config=config))
    script = group_counting.COUNTING.replace("else pause_s)", "else 0.002 * len(x))")
    ids = counting.draw(np.random.default_rng(7), 3000 * BATCH)
    with LocalCluster(
        counting.write(tmp_path, ids, script), [tmp_path, 1, BATCH, 0.0], spec=in_step, folder=tmp_path / "runs"
    ) as job:
        job.until(lambda status: "done" in outcomes(job))
        grown = job.status
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert sum(member.role.kind == "worker" and member.joined for member in grown.members) > 1, outcomes(job)
    taken = [event for event in job.story if event["event"] == "plan" and event["outcome"] == "taken"]
    assert taken and all("2 workers" in event["shape"] for event in taken[:1]), "twice as many before more is known"
    counts = dict(np.load(tmp_path / "counts.npz"))
    np.savez(tmp_path / "counts.npz", **{**counts, "small": counts["small"] * BATCH, "rows": counts["rows"] * BATCH})
    assert counting.differences(tmp_path, ids, epochs=1, batch=BATCH) == {}


@pytest.mark.soak
def test_job_without_sizes_plans_itself_and_the_next_starts_from_its_result(tmp_path):
    ids = counting.draw(np.random.default_rng(1), 400 * BATCH)
    counting.write(tmp_path, ids)
    quick = [f"--planning={each}" for each in ("sample_s=4", "between_changes=4", "settle=1", "window=2")]
    asked = ["run", "count.py", "--plan", *quick, "--json", "--", str(tmp_path), "10", str(BATCH), "0.01"]
    with running.springtide(*asked, folder=tmp_path) as job:
        job.wait_for("begin small")
        code, out = job.finish()
    assert code == 0, out
    assert counting.differences(tmp_path, ids, epochs=10, batch=BATCH) == {}
    told = [event for event in running.events(tmp_path, "count") if event["event"] == "plan"]
    assert told[0]["outcome"] == "started" and len(told) > 1 and all(event["why"] for event in told)
    with running.springtide(*asked, folder=tmp_path) as job:
        job.wait_for("warm start from 1 similar job")
        assert job.finish()[0] == 0
    assert counting.differences(tmp_path, ids, epochs=10, batch=BATCH) == {}
