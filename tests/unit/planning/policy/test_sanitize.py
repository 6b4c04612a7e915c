"""No policy harms a job, for any view and any answer."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from springtide.domain.core.shape import ResourceBudget
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import acceptance, registry
from tests.unit.planning import views

CONFIG = PlanningConfig(exact_seconds=0)
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # views are large: making them small takes minutes


def checked(decision, view):
    assert decision.why
    by_name = {job.name: job for job in view.jobs}
    had, takes = 0.0, 0.0
    for job in view.jobs:
        plan = decision.plan_for(job.name)
        now = job.shape.cpu if job.shape else 0.0
        had += now
        takes += plan.shape.cpu if plan else now
    for plan in decision.plans:
        assert by_name[plan.job].bounds.holds(plan.shape)
    assert takes <= max(view.capacity.cpu, had) * (1 + 1e-6)


@given(view=views.clusters())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=UNSHRUNK)
def test_every_policy_gives_feasible_plans_for_any_view(view):
    for name in registry.POLICIES:
        decision = registry.load(name)(view, CONFIG)
        checked(decision, view)
        assert "failed" not in decision.why, f"{name}: {decision.why}"  # built-in ones understand garbage by themselves


@given(view=views.clusters(), wild=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), phases=UNSHRUNK)
def test_random_policy_output_is_made_safe(view, wild):
    plans = tuple(
        ShapePlan(job=name, shape=wild.draw(views.shapes()), reason="because")
        for name in {job.name for job in view.jobs} | {"nobody"}
    )
    checked(registry.safe(lambda *_: Decision(plans=plans, why="wild"))(view, CONFIG), view)


def test_raising_policy_decides_nothing_and_its_error_is_quoted():
    def broken(view, config):
        raise ZeroDivisionError("by nothing")

    decision = registry.safe(broken)(views.cluster(views.running()), CONFIG)
    assert decision == nothing("policy broken failed: ZeroDivisionError: by nothing")


def test_policy_answering_with_a_wrong_type_decides_nothing():
    decision = registry.safe(lambda view, config: {"workers": 4})(views.cluster(views.running()), CONFIG)
    assert decision.plans == () and "failed: it answered with dict; expected a Decision" in decision.why
    listed = registry.safe(lambda *_: Decision(plans=("grow",), why="so"))
    assert "'grow' among its plans; expected a ShapePlan" in listed(views.cluster(), CONFIG).why


def test_policy_that_exits_decides_nothing():
    def leaving(view, config):
        raise SystemExit(3)

    assert registry.safe(leaving)(views.cluster(views.running()), CONFIG) == nothing(
        "policy leaving failed: SystemExit: 3"
    )


JOB = views.running()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: Decision(plans=iter(()), why="so"), "plans are a tuple_iterator; expected a tuple"),
        (lambda: Decision(why=7), "its reason is 7"),
        (lambda: Decision(why="so", notes=None), "its notes are None"),
        (lambda: Decision(why="so", notes=("fine", 3)), "expected a tuple of sentences"),
    ],
)
def test_decision_with_invalid_fields_does_nothing(answer, said):
    decision = registry.safe(lambda *_: answer())(views.cluster(JOB), CONFIG)
    assert decision.plans == () and said in decision.why


def test_fractional_worker_count_is_refused():
    plan = ShapePlan(job=JOB.name, shape=replace(JOB.shape, workers=JOB.shape.workers + 0.5), reason="r")
    decision = registry.safe(lambda *_: Decision(plans=(plan,), why="so"))(views.cluster(JOB), CONFIG)
    assert decision.plans == () and "expected whole numbers" in decision.notes[0]


def test_shrinking_jobs_make_room_and_plans_beyond_capacity_are_noted():
    large, small, late = (views.running(name=name) for name in ("large", "small", "late"))
    view = views.cluster(large, small, late, capacity=ResourceBudget(cpu=3 * large.shape.cpu, memory=0))
    plans = (
        ShapePlan(job="small", shape=replace(small.shape, workers=7), reason="up"),
        ShapePlan(job="late", shape=replace(small.shape, workers=5), reason="up"),
        ShapePlan(job="large", shape=replace(large.shape, workers=1), reason="down"),
    )
    decision = acceptance.without_impossible(Decision(plans=plans, why="all at once"), view, CONFIG)
    assert [plan.job for plan in decision.plans] == ["large", "small"]
    assert "plan for late refused: all jobs would take 100 cores" in decision.notes[0]


def test_plan_out_of_bounds_or_for_an_unknown_job_is_refused_by_name():
    plans = (
        ShapePlan(job="job", shape=replace(views.shape(), workers=49), reason="more"),
        ShapePlan(job="nobody", shape=views.shape(), reason="who?"),
    )
    decision = acceptance.without_impossible(Decision(plans=plans, why="x"), views.cluster(views.running()), CONFIG)
    assert decision.plans == ()
    assert "not within the job's bounds" in decision.notes[0] and "an unknown job" in decision.notes[1]
