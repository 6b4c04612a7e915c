"""Advice is believed only as far as the job, as it is by now, can follow it."""

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
CONFIG = PlanningConfig(between_changes_s=60.0, extra_workers=2)
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


def said(plan, *, epoch=3, now=100.0, job=JOB):
    return refused(Advice(epoch=3, why="because", plan=plan), job, CONFIG, epoch=epoch, now=now)


def plan(shape=BETTER, job="job", **more):
    return ShapePlan(job=job, shape=shape, reason="faster", **more)


def test_a_sound_plan_is_taken_and_no_plan_is_an_answer_too():
    assert said(plan()) == ""
    assert said(None) == ""
    assert said(plan(server_cpus=((0, 2.0),))) == ""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (plan(job="other"), "job other"),
        (plan(NOW), "changes nothing"),
        (plan(Shape(workers=9, servers=1, worker_cpu=0.1, server_cpu=0.1)), "bounds"),
        (plan(Shape(workers=8, servers=1, worker_cpu=1.0, server_cpu=1.0)), "bounds or quota"),
        (plan(Shape(workers=4, servers=4, worker_cpu=1.0, server_cpu=1.0), server_cpus=((0, 4.0),)), "quota"),
        (plan(extra_workers=7), "extra workers"),
        (plan(server_cpus=((7, 1.0),)), "server-7"),
        (plan(Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0, server_memory=1 << 20)), "uses"),
    ],
)
def test_a_plan_that_would_harm_the_job_is_refused_with_a_reason(bad, why):
    assert why in said(bad)


def test_advice_for_the_job_as_it_was_does_not_count():
    assert "an earlier state" in said(plan(), epoch=4)
    assert "an earlier state" in said(None, epoch=4)


def test_changes_come_no_closer_than_they_may_but_memory_does_not_wait():
    assert "30 s ago" in said(plan(), now=30.0)
    more = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0, server_memory=1 << 33)
    assert said(plan(more), now=30.0) == ""


def forged(kind, **values):
    """An object of that class that nobody has checked."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


NUMBERS = st.builds(
    lambda *v: forged(Shape, **dict(zip(Shape.__slots__, v, strict=True))),
    st.integers(-2, 20),
    st.integers(-2, 20),
    st.floats(-1, 50) | st.just(math.nan),
    st.floats(-1, 50),
    st.integers(-5, 1 << 35),
    st.integers(-5, 1 << 35),
)


@given(NUMBERS, st.integers(0, 3), st.lists(st.tuples(st.integers(-1, 5), st.floats(-1, 50)), max_size=2))
def test_what_is_taken_is_within_bounds_and_quota(shape, extra, cpus):
    made = forged(
        ShapePlan,
        job="job",
        shape=shape,
        reason="x",
        gain=0.0,
        cost=0.0,
        throughput=None,
        stage=None,
        extra_workers=extra,
        server_cpus=tuple(cpus),
    )
    if said(made) == "":
        assert JOB.bounds.holds(shape) and extra == 0
        assert shape.cpu + sum(cpu - shape.server_cpu for _, cpu in cpus) <= 8.0 + 1e-6


def test_workers_of_low_priority_may_be_beyond_the_quota_in_cores_and_not_in_memory():
    full = plan(Shape(workers=7, servers=1, worker_cpu=1.0, server_cpu=1.0))
    assert said(full) == "" and said(replace(full, extra_workers=2)) == ""
    held = Shape(workers=7, servers=1, worker_cpu=1.0, server_cpu=1.0, worker_memory=2 << 30, server_memory=2 << 30)
    tight = replace(JOB, bounds=replace(JOB.bounds, quota=replace(JOB.bounds.quota, memory=float(16 << 30))))
    assert said(plan(held), job=tight) == ""
    assert "quota" in said(replace(plan(held), extra_workers=1), job=tight)


def test_workers_of_low_priority_are_given_up_at_once():
    lent = replace(views.at_times(JOB, last_change_at=99.0), extra_workers=1)
    assert said(plan(NOW), job=lent) == ""
    assert "changes nothing" in said(plan(NOW, extra_workers=1), job=lent)
    assert "between changes" in said(plan(NOW, extra_workers=2), job=lent)


@pytest.mark.parametrize("cores", [math.nan, math.inf, -1.0])
def test_cores_for_data_workers_that_are_no_number_are_refused(cores):
    told = Advice(epoch=3, why="because", data_cores=cores)
    assert "data workers" in refused(told, JOB, CONFIG, epoch=3, now=100.0)
    assert refused(replace(told, data_cores=1.5), JOB, CONFIG, epoch=3, now=100.0) == ""


def test_the_first_change_of_a_sample_waits_for_nothing_and_the_next_for_a_minute():
    started = views.at_times(JOB, last_change_at=None, started_at=99.0)
    sample = replace(started, stage=PlanningStage.SAMPLING)
    more = plan(replace(NOW, workers=NOW.workers + 1))
    assert said(more, job=sample) == ""
    assert "between changes" in said(more, job=views.at_times(sample, last_change_at=99.0))
    assert "between changes" in said(more, job=replace(sample, stage=PlanningStage.OPTIMIZING)), (
        "a warm start is its size"
    )
