"""Advice is accepted only as far as the job can follow it in its current state."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan.plan import Advice, ShapePlan
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import JobView, RoleUse, TrainingProgress
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.policy.acceptance import refused
from tests.unit.planning import views

NOW = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
MOST = Shape(workers=8, servers=4, worker_cpu=4.0, server_cpu=4.0, worker_memory=1 << 34, server_memory=1 << 34)
CONFIG = PlanningConfig(between_changes_s=60.0)
USES = (
    RoleUse(role=Role(RoleKind.WORKER, 0), cpu_used=0.5, cpu=1.0, memory_used=1 << 30),
    RoleUse(role=Role(RoleKind.SERVER, 0), cpu_used=0.5, cpu=1.0, memory_used=1 << 30),
)
JOB = JobView(
    name="job",
    facts=ModelFacts(dense_bytes=1, bandwidth=1, dim=1, batch=1),
    shape=NOW,
    progress=TrainingProgress(last_change_at=0.0),
    uses=USES,
    bounds=ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=0.1, server_cpu=0.1),
        most=MOST,
        quota=ResourceBudget(cpu=8.0, memory=1 << 36),
    ),
)
BETTER = Shape(workers=3, servers=1, worker_cpu=1.0, server_cpu=1.0)


def refusal_of(plan, *, epoch=3, now=100.0, job=JOB):
    return refused(Advice(epoch=3, why="because", plan=plan), job, CONFIG, epoch=epoch, now=now)


def plan(shape=BETTER, job="job", **more):
    return ShapePlan(job=job, shape=shape, reason="faster", **more)


def test_valid_plan_is_accepted_and_so_is_no_plan():
    assert refusal_of(plan()) == ""
    assert refusal_of(None) == ""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (plan(job="other"), "job other"),
        (plan(NOW), "changes nothing"),
        (plan(Shape(workers=9, servers=1, worker_cpu=0.1, server_cpu=0.1)), "bounds"),
        (plan(Shape(workers=8, servers=1, worker_cpu=1.0, server_cpu=1.0)), "bounds or quota"),
        (plan(Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0, server_memory=1 << 20)), "uses"),
    ],
)
def test_harmful_plan_is_refused_with_a_reason(bad, why):
    assert why in refusal_of(bad)


def test_advice_for_an_earlier_state_is_refused():
    assert "an earlier state" in refusal_of(plan(), epoch=4)
    assert "an earlier state" in refusal_of(None, epoch=4)


def test_changes_keep_their_interval_except_for_memory():
    assert "30 s ago" in refusal_of(plan(), now=30.0)
    more = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0, server_memory=1 << 33)
    assert refusal_of(plan(more), now=30.0) == ""


def unchecked(kind, **values):
    """Create an object of this class without its checks."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


NUMBERS = st.builds(
    lambda *v: unchecked(Shape, **dict(zip(Shape.__slots__, v, strict=True))),
    st.integers(-2, 20),
    st.integers(-2, 20),
    st.floats(-1, 50) | st.just(math.nan),
    st.floats(-1, 50),
    st.integers(-5, 1 << 35),
    st.integers(-5, 1 << 35),
    st.just(0.0) | st.floats(-1, 2) | st.just(math.nan),
)


@given(NUMBERS)
def test_accepted_plan_is_within_bounds_and_quota(shape):
    made = unchecked(
        ShapePlan,
        job="job",
        shape=shape,
        reason="x",
        gain=0.0,
        cost=0.0,
        throughput=None,
        stage=None,
    )
    if refusal_of(made) == "":
        assert JOB.bounds.holds(shape) and shape.cpu <= 8.0 + 1e-6


def test_gpus_are_held_to_bounds_and_quota():
    four = Shape(workers=4, servers=1, worker_cpu=1.0, server_cpu=1.0, worker_gpu=0.5)
    least, most = (replace(end, worker_gpu=0.5) for end in (JOB.bounds.least, JOB.bounds.most))
    job = replace(JOB, bounds=ShapeBounds(least=least, most=most, quota=replace(JOB.bounds.quota, gpu=2.0)))
    assert refusal_of(plan(four), job=job) == ""
    assert "not within the job's bounds or quota" in refusal_of(plan(replace(four, workers=5)), job=job)
    assert "not within the job's bounds" in refusal_of(plan(replace(four, worker_gpu=0.0)), job=job), (
        "whoever forgot them"
    )


@pytest.mark.parametrize("cores", [math.nan, math.inf, -1.0])
def test_non_numeric_data_worker_cores_are_refused(cores):
    told = Advice(epoch=3, why="because", data_cores=cores)
    assert "data workers" in refused(told, JOB, CONFIG, epoch=3, now=100.0)
    assert refused(replace(told, data_cores=1.5), JOB, CONFIG, epoch=3, now=100.0) == ""


def test_first_change_of_a_sample_is_immediate_and_the_next_waits_a_minute():
    started = views.at_times(JOB, last_change_at=None, started_at=99.0)
    sample = replace(started, stage=PlanningStage.SAMPLING)
    more = plan(replace(NOW, workers=NOW.workers + 1))
    assert refusal_of(more, job=sample) == ""
    assert "between changes" in refusal_of(more, job=views.at_times(sample, last_change_at=99.0))
    assert "between changes" in refusal_of(more, job=replace(sample, stage=PlanningStage.OPTIMIZING)), (
        "a warm start is its size"
    )
