"""Initial size of a job from its spec, and what is left to planning."""

import asyncio
import threading

import pytest

from springtide import errors
from springtide.brain.service.advisers import EmbeddedAdviser
from springtide.domain.core.shape import UNBOUNDED, Shape
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.plan.view import PastJob
from springtide.domain.spec.elastic_job import ElasticJob, Quota, RoleWish
from springtide.domain.spec.planning_config import PlanningStage
from springtide.launch.spec import initial_resources
from springtide.planning.policy import registry

GIB = 2.0**30


def start(cores=2, say=lambda _: None, trouble="", history="", own=True, nodes=1, **spec):
    job = ElasticJob(script="train.py", name="train", **spec)
    room = PlatformCapacity(
        cpu=float(nodes * cores),
        memory=nodes * 8 * GIB,
        node_cpu=float(cores),
        node_memory=8 * GIB,
        own=own,
        holds=not trouble,
        trouble=trouble,
    )
    return initial_resources.start(job, room, history=history, say=say)


def test_job_of_open_size_starts_small_and_plans():
    begun = start()
    assert (begun.workers, begun.servers, begun.worker_cpu, begun.threads) == (1, 1, 1.0, 1)
    assert begun.planning.on and begun.planning.stage is PlanningStage.SAMPLING
    assert begun.planning.config.total_cpu == 2.0 and begun.planning.identity.features["script"] == "train.py"
    assert begun.planning.overlap and not start(quota=Quota(cpu=1.5)).planning.overlap


def test_fixed_values_are_pinned_and_the_rest_planned():
    begun = start(workers=RoleWish(count=2))
    limits = begun.planning.bounds
    assert begun.workers == limits.least.workers == limits.most.workers == 2
    assert limits.most.servers > 1


@pytest.mark.parametrize(
    "spec", [{"workers": RoleWish(count=2), "servers": RoleWish(count=2)}, {"plan": False}, {"sync": "bsp"}]
)
def test_job_with_fixed_sizes_or_bsp_does_not_plan(spec):
    begun = start(**spec)
    assert not begun.planning.on and begun.worker_cpu is None


def test_planning_can_be_requested_when_only_cores_are_open():
    assert start(workers=RoleWish(count=2), servers=RoleWish(count=1), plan=True).planning.on
    assert start(sync="bsp", plan=True).planning.on


def test_without_core_limits_only_counts_are_planned_with_a_message():
    said = []
    begun = start(say=said.append, trouble="no permission")
    assert "no permission" in said[0] and begun.worker_cpu is begun.server_cpu is None
    assert begun.planning.on and not begun.planning.resize


def test_planning_settings_reach_their_rules():
    begun = start(
        planning={
            "policy": "static",
            "sample_s": "5",
            "between_changes": "7",
            "cpu_step": "0.25",
            "window": "2",
            "sample_steps": "9",
        }
    )
    rules = begun.planning
    assert (rules.config.policy, rules.config.sample_s, rules.config.between_changes_s) == ("static", 5.0, 7.0)
    assert (rules.bounds.cpu_step, rules.window_s, rules.config.sample_steps) == (0.25, 2.0, 9)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("sampel_s", "5", "Did you mean 'sample_s'"),
        ("sample_s", "often", "expected a number"),
        ("sample_s", "nan", "must be 0 or more"),
        ("window_s", "-1", "must be seconds, above 0"),
        ("rho", "inf", "must be a finite number"),
        ("policy", "sprintide", "Did you mean 'springtide'"),
        ("priority", "remainin", "Did you mean 'remaining'"),
        ("priority", "3", "no priority named '3'"),  # its own weight is a field of the spec
        ("data_workers", "maxpt", "Did you mean 'maxtp'"),
        ("key", "ab", "no planning setting named 'key'"),
        ("why", "so", "no planning setting named 'why'"),
    ],
)
@pytest.mark.parametrize("plan", [True, False])
def test_invalid_planning_settings_are_refused_even_without_planning(name, value, why, plan):
    with pytest.raises(errors.BadInput, match=why):
        start(planning={name: value}, plan=plan)


def test_planning_priority_rule_and_job_priority_are_set_separately():
    rules = start(planning={"priority": "given"}, priority=2.5).planning
    assert (rules.config.priority, rules.identity.priority) == ("given", 2.5)


def test_planning_settings_without_effect_are_reported():
    said = []
    assert not start(plan=False, planning={"rho": "1"}, say=said.append).planning.on
    assert said == ["the size of this job is fixed, so these planning settings have no effect: rho"]


def test_more_cores_than_available_are_refused():
    with pytest.raises(errors.BadInput, match="2 cores"):
        start(quota=Quota(cpu=3.0))


def test_job_starts_like_similar_jobs_ended(tmp_path):
    history = str(tmp_path / "history.db")
    begun = start(history=history)
    assert begun.planning.stage is PlanningStage.SAMPLING and not (tmp_path / "history.db").exists()
    final = Shape(workers=2, servers=1, worker_cpu=0.7, server_cpu=0.6)
    seen = {"tables": 2.0, "dim": 64.0, "dense_bytes": 1e5, "batch": 512.0, "samples": 1e6}  # once it ran
    past = PastJob(
        name="train",
        user=begun.planning.identity.user,
        features={**begun.planning.identity.features, "sync": "async", **seen},
        initial=final,
        shape=final,
        ended_at=1e9,
    )

    async def remember():
        brain = EmbeddedAdviser(history, begun.planning.config, UNBOUNDED)
        await brain.conclude(past)
        await brain.close()

    asyncio.run(remember())
    again = start(history=history)
    assert (again.workers, again.servers, again.worker_cpu, again.server_cpu) == (2, 1, 0.7, 0.6)
    assert again.planning.stage is PlanningStage.OPTIMIZING and "warm start" in again.planning.why


def test_hanging_policy_does_not_block_the_start(tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setitem(registry.POLICIES, "hangs", lambda view, config: gate.wait())
    monkeypatch.setattr(initial_resources, "ASK_S", 0.2)
    (tmp_path / "history.db").touch()
    begun = start(history=str(tmp_path / "history.db"), planning={"policy": "hangs"})
    gate.set()
    assert begun.workers == 1 and "no adviser answered (no answer)" in begun.planning.why


def test_missing_brain_secret_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.BadInput, match="the brain's secret"):
        start(brain="localhost:7999")


def test_job_starts_without_an_unreachable_brain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".springtide/brain").mkdir(parents=True)
    (tmp_path / ".springtide/brain/secret").write_text("ab" * 32)
    begun = start(brain="127.0.0.1:9")
    assert begun.workers == 1 and begun.planning.adviser.brain == "127.0.0.1:9"


def test_start_sizes_in_the_spec_are_used():
    begun = start(cores=8, workers=RoleWish(start=3, min=2, max=5), servers=RoleWish(max=2))
    assert begun.workers == 3 and begun.planning.bounds.least.workers == 2 and begun.planning.bounds.most.servers == 2


def test_cluster_planning_is_slower_and_stays_within_its_nodes():
    begun = start(own=False, nodes=4, cores=4, priority=2.5)
    assert not begun.planning.overlap and begun.planning.config.sample_s == 60.0
    assert begun.planning.bounds.quota.cpu == 16.0 and begun.planning.identity.priority == 2.5


def test_unplanned_job_stays_within_its_quota_and_bounds():
    begun = start(cores=8, sync="bsp", workers=RoleWish(min=3), quota=Quota(cpu=2.0))
    assert begun.workers == 3 and begun.workers * begun.worker_cpu + begun.servers * begun.server_cpu <= 2.0
    with pytest.raises(errors.BadInput, match="raise the quota"):
        start(workers=RoleWish(count=2, cpu=1.0), servers=RoleWish(count=1, cpu=1.0), quota=Quota(cpu=2.0))
