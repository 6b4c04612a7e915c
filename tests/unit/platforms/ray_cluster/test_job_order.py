"""Names and resources of a job's actors on Ray, without a cluster."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given

pytest.importorskip("ray")

from springtide import errors
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import RANKED, Life, Role, RoleKind
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.elastic_job import RayWish
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.ray_cluster import job_order, platform, steward
from tests.unit.checkpoint import stores

LIVES = st.builds(Life, st.builds(Role, st.sampled_from(RANKED), st.integers(0, 999)), st.integers(0, 999))
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
WORKER = Life(Role(RoleKind.WORKER, 1), 2)


@given(NAMES, LIVES)
def test_incarnation_is_recovered_from_its_actor_name(job, life):
    assert job_order.life_of(job, job_order.holder_of(job, life)) == life


@given(NAMES, NAMES, LIVES)
def test_actors_of_other_jobs_and_programs_are_ignored(job, other, life):
    if job != other:
        assert job_order.life_of(job, job_order.holder_of(other, life)) is None
    assert job_order.life_of(job, job_order.steward_of(job)) is None
    assert job_order.life_of(job, f"springtide/{job}/something") is None


def test_servers_are_spread_and_workers_placed_where_there_is_room():
    server = job_order.needs(RoleKind.SERVER, ProcessLimits(cpu=0.5, memory=1 << 30), {})
    assert server == {"num_cpus": 0.5, "memory": 1 << 30, "scheduling_strategy": "SPREAD"}
    worker = job_order.needs(RoleKind.WORKER, ProcessLimits(gpu=0.5), {"worker": {"fast_disk": 1.0}})
    assert worker == {
        "num_cpus": 0.8,
        "num_gpus": 0.5,
        "resources": {"fast_disk": 1.0},
        "scheduling_strategy": "DEFAULT",
    }


def test_ray_capacity_is_summed_and_a_role_bounded_by_the_largest_node():
    large = {"CPU": 16.0, "memory": 4e9, "GPU": 2.0}
    nodes = [{"Resources": {"CPU": 4.0, "memory": 8e9}}, {"Resources": large}, {"Resources": {}}]
    has = job_order.capacity_of(nodes)
    assert (has.cpu, has.memory, has.node_cpu, has.node_memory, has.gpus) == (20.0, 12e9, 16.0, 8e9, 2)
    assert not has.holds, "limits of an actor that runs cannot change"
    with pytest.raises(errors.BadInput, match="no node with processors"):
        job_order.capacity_of([{"Resources": {"memory": 1e9}}])


def test_unknown_role_in_ray_resources_is_refused():
    plan = RunPlan(spec=JobSpec(name="a"), script="a.py")
    with pytest.raises(errors.UnknownName, match="Did you mean 'worker'"):
        job_order.JobOrder(plan=plan, run_folder="/tmp/a", wish=RayWish(resources={"workers": {"GPU": 1}}))


def test_gpu_stage_and_gpu_worker_request_a_gpu_from_ray():
    staged = job_order.needs(RoleKind.DATA_WORKER, ProcessLimits(), {"data-worker": {"GPU": 1}})
    assert staged["num_gpus"] == 1
    assert "num_gpus" not in job_order.needs(RoleKind.WORKER, ProcessLimits(gpu=0.0), {})
    plan = RunPlan(spec=JobSpec(name="a"), script="a.py")
    with pytest.raises(errors.BadInput, match=r"give workers\.gpu instead"):
        job_order.JobOrder(plan=plan, run_folder="/tmp/a", wish=RayWish(resources={"worker": {"GPU": 1}}))


def test_more_than_one_core_is_requested_in_whole_cores():
    assert [job_order.whole(cpu) for cpu in (0.3, 1.0, 1.2, 4.0)] == [0.3, 1.0, 2.0, 4.0]


def test_unplaced_role_reports_its_request_and_the_free_resources():
    free = {"a": {"CPU": 1.5, "memory": 8.0}, "b": {"CPU": 0.5}}
    said = job_order.lacking({"num_cpus": 2.0}, free)
    assert "asks for 2 CPU" in said and "has that free (the most: 1.5 CPU)" in said
    assert "1 of 2 nodes have that, but" in job_order.lacking({"num_cpus": 1.0}, free)


@pytest.mark.parametrize(
    ("error", "node_lives", "oom", "evicted"),
    [
        ("The actor died because its node has died.", False, False, True),
        ("worker was killed because the node was running low on memory", True, True, False),
        ("The actor is unavailable: Socket closed", True, False, True),
        ("killed by OOM, and then the node died", False, False, True),
    ],
)
def test_exit_of_a_lost_actor_is_derived_from_its_error(error, node_lives, oom, evicted):
    ended = platform.exit_of_lost(WORKER, 7, RuntimeError(error), node_lives=node_lives)
    assert (ended.oom, ended.evicted, ended.signal, ended.pid) == (oom, evicted, "SIGKILL", 7)
    assert (ended.role, ended.incarnation) == (WORKER.role, WORKER.incarnation)


def test_significant_line_of_a_long_ray_error_is_found():
    error = RuntimeError(
        "The actor died unexpectedly\n\tclass_name: H\n\tpid: 3\nThe actor died because its node has died"
    )
    assert platform.first_line(error) == "The actor died because its node has died"


def test_job_whose_run_folder_is_lost_restarts_from_its_own_copies_or_from_the_other_run(tmp_path):
    url = str(tmp_path / "copies")
    other = CheckpointRules(
        every_s=30, url=url, resume="s3://monday", resume_number=3, resume_run="run0", new_data=True
    )
    plan = RunPlan(spec=JobSpec(name="ctr", slots=stores.SLOTS, checkpoints=other), script="train.py")
    assert steward.restart_plan(plan, "gone") == plan
    stores.publish(tmp_path / "copies", 7, stores.save(stores.store(), tmp_path / "copies", 7))
    again = steward.restart_plan(plan, "gone").spec.checkpoints
    assert (again.resume, again.resume_number, again.resume_run, again.new_data) == (url, 7, stores.RUN, False)


def test_term_is_never_given_twice(tmp_path):
    async def three(counter):
        return [await counter.next() for _ in range(3)]

    assert asyncio.run(three(steward.TermCounter(tmp_path))) == [1, 2, 3]
    assert asyncio.run(three(steward.TermCounter(tmp_path))) == [4, 5, 6], "also by a steward that was started again"


def test_damaged_term_counter_fails_instead_of_restarting_at_one(tmp_path):
    (tmp_path / "term").write_text("many")
    with pytest.raises(errors.JobFailed, match="number of the last master"):
        asyncio.run(steward.TermCounter(tmp_path).next())
