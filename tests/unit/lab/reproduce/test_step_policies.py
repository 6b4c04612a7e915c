"""How ES and Optimus size a job from its measurements."""

from dataclasses import replace

import pytest

from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.perf_model.measurements import ShapeSpeed
from springtide_lab.reproduce.dlrover_rm import step_policies
from tests.unit.planning import views


def next_shape(policy, job, *, model="widedeep", now=1e6):
    """The shape that a policy gives the job next; None: it stays."""
    plan = step_policies.system(policy, model).policy(views.cluster(job, now=now), PlanningConfig()).plan_for(job.name)
    return plan.shape if plan else None


def test_es_policy_only_adds_workers_in_steps():
    begun = next_shape("es", views.waiting(requested=views.shape(workers=9, servers=3)))
    assert begun == views.shape(workers=1, servers=3)
    assert next_shape("es", views.running(begun)) == replace(begun, workers=5)
    assert next_shape("es", views.running(begun), model="xdeepfm") == replace(begun, workers=2)


def test_es_policy_reverts_workers_with_too_little_gain_and_stops():
    few, many = views.shape(workers=40, servers=1), views.shape(workers=44, servers=1)
    assert next_shape("es", views.running(many, tried=[few])) == few
    assert next_shape("es", views.running(few, tried=[many])) is None


@pytest.mark.parametrize("name", ["es", "optimus"])
def test_pod_start_time_counts_towards_the_three_minutes_between_steps(name):
    recent = views.running(last_change_at=950.0, profiles=(views.profile(views.shape(), at=990.0),))
    assert next_shape(name, recent, now=1000.0) is None
    started = (LaunchTime(kind=RoleKind.WORKER, cpu=3.0, memory=0, seconds=120.0),)
    for changed_at, looks in ((940.0, True), (950.0, False)):
        job = views.running(
            last_change_at=changed_at, launches=started, profiles=(views.profile(views.shape(), at=990.0),)
        )
        assert (next_shape(name, job, now=1000.0) is not None) is looks


def test_optimus_policy_adds_workers_and_servers_then_follows_its_model():
    first = next_shape("optimus", views.waiting(requested=views.shape()))
    assert (first.workers, first.servers) == (1, 1)
    second = next_shape("optimus", views.running(first))
    third = next_shape("optimus", views.running(second, tried=[first]))
    assert [(one.workers, one.servers) for one in (second, third)] == [(5, 3), (9, 3)]
    fourth = next_shape("optimus", views.running(third, tried=[first, second]))
    assert (fourth.workers, fourth.servers) == (13, 5)


def test_optimus_policy_stays_within_the_quota():
    tried = [views.shape(workers=1, servers=1), views.shape(workers=5, servers=3)]
    large = views.shape(workers=40, servers=4)  # 192 of 200 cores
    assert next_shape("optimus", views.running(large, tried=tried)) is None


def test_optimus_speed_model_recovers_its_own_coefficients():
    truth = (0.3, 0.05, 0.002, 0.01)
    seen = [
        ShapeSpeed(shape=of, throughput=step_policies.speed(truth, of), steps=100)
        for of in (views.shape(workers=w, servers=p) for w in (1, 4, 9) for p in (1, 2, 5))
    ]
    assert step_policies.fit(seen) == pytest.approx(truth, rel=1e-6)
