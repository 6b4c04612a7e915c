"""Plans and decisions carry reasons; invalid views and settings are refused."""

import math

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan import plan, view
from springtide.domain.plan.plan import Decision, ShapePlan
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.domain.spec.planning_config import PlanningConfig, PlanningIdentity

SMALL = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
FACTS = ModelFacts(dense_bytes=1e6, bandwidth=1e9, dim=416, batch=512)


def job(name="a", **given):
    return view.JobView(name=name, facts=FACTS, bounds=ShapeBounds(least=SMALL, most=SMALL), **given)


def test_decision_to_do_nothing_has_a_reason():
    decision = plan.nothing("all is well", "job a: no profiles")
    assert decision.plans == () and decision.notes == ("job a: no profiles",)
    with pytest.raises(errors.BadInput, match="needs a reason"):
        plan.nothing("")


def test_decision_has_one_plan_per_job():
    first = ShapePlan(job="a", shape=SMALL, reason="it is new")
    assert Decision(plans=(first,), why="one is new").plan_for("a") is first
    assert Decision(plans=(first,), why="one is new").plan_for("b") is None
    with pytest.raises(errors.BadInput, match="two plans for a"):
        Decision(plans=(first, first), why="twice")


@pytest.mark.parametrize("wrong", [{"reason": ""}, {"gain": math.nan}, {"cost": -1.0}, {"cost": math.inf}])
def test_invalid_plan_is_refused(wrong):
    with pytest.raises(errors.BadInput, match="plan for a"):
        ShapePlan(**{"job": "a", "shape": SMALL, "reason": "it is new", **wrong})


def test_remaining_samples_are_computed():
    assert view.TrainingProgress(samples_done=30.0, samples_total=100.0).remaining == 70.0
    assert view.TrainingProgress(samples_done=130.0, samples_total=100.0).remaining == 0.0
    assert job().progress.remaining == math.inf


def test_resource_use_is_selected_by_role():
    worker = view.RoleUse(role=Role(RoleKind.WORKER, 0), cpu_used=1.0, cpu=2.0)
    server = view.RoleUse(role=Role(RoleKind.SERVER, 0), cpu_used=0.5, cpu=1.0)
    assert job(uses=(worker, server)).used_by(RoleKind.SERVER) == (server,)


def test_invalid_views_are_refused():
    with pytest.raises(errors.BadInput, match="without a name"):
        job("")
    with pytest.raises(errors.BadInput, match="priority 0"):
        PlanningIdentity(priority=0.0)
    with pytest.raises(errors.BadInput, match="-1 samples done"):
        view.TrainingProgress(samples_done=-1.0)
    with pytest.raises(errors.BadInput, match="two jobs have the same name"):
        view.ClusterView(now=0.0, capacity=ResourceBudget(cpu=1.0, memory=1.0), jobs=(job(), job()))


def test_profile_accepts_any_timing_but_facts_do_not():
    assert Profile(shape=SMALL, batch=512, timing=TimingSum(steps=4, total_s=2.0), at=0.0).step_s == 0.5
    assert math.isnan(Profile(shape=SMALL, batch=512, timing=TimingSum(), at=0.0).step_s)
    with pytest.raises(errors.BadInput, match=r"bandwidth 0\.0"):
        ModelFacts(dense_bytes=0.0, bandwidth=0.0, dim=1.0, batch=1)
    with pytest.raises(errors.BadInput, match="dim nan"):
        ModelFacts(dense_bytes=0.0, bandwidth=1.0, dim=math.nan, batch=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rho": math.inf},
        {"epsilon": 0.0},
        {"total_cpu": -1.0},
        {"least_gain": math.nan},
        {"busy_server": 1.5},
        {"similar": 0},
        {"smoothing": 1.0},
        {"exact_seconds": -1.0},
    ],
)
def test_invalid_planning_settings_are_refused(wrong):
    with pytest.raises(errors.BadInput, match=f"planning: {next(iter(wrong))}"):
        PlanningConfig(**wrong)


def test_planning_defaults_are_the_papers_numbers():
    usual = PlanningConfig()
    assert (usual.total_cpu, usual.node_cpu, usual.server_cpu, usual.busy_server) == (200, 32, 16, 0.9)
    assert (usual.sample_steps, usual.sample_s, usual.between_changes_s, usual.rho) == (100, 60, 60, 2.5)
