"""How others size jobs: what each does next, by what it has seen."""

from dataclasses import replace

import pytest

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import GIB
from springtide.domain.plan.view import FindingKind, GuardFinding, LaunchTime, PastJob
from springtide.domain.spec.planning_config import PlanningConfig, StepPolicyConfig
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.measurements import ShapeSpeed
from springtide.planning.policy import baselines, registry
from tests.unit.planning import views

CONFIG = PlanningConfig()


def next_shape(policy, job, config=CONFIG, **more):
    """The shape that a policy gives the job next; None: it stays, for the reason in the notes."""
    decision = registry.load(policy)(views.cluster(job, **more), config)
    plan = decision.plan_for(job.name)
    return plan.shape if plan else None


def test_static_starts_as_the_user_asked_for_and_never_changes():
    asked = views.shape(workers=7)
    assert next_shape("static", views.waiting(requested=asked)) == asked
    assert next_shape("static", views.running(asked)) is None
    assert next_shape("static", views.waiting()).workers == 1


def test_es_adds_workers_by_steps_and_nothing_else():
    begun = next_shape("es", views.waiting(requested=views.shape(workers=9, servers=3)))
    assert begun == views.shape(workers=1, servers=3)
    assert next_shape("es", views.running(begun)) == replace(begun, workers=5)
    assert next_shape("es", views.running(begun), PlanningConfig(steps=StepPolicyConfig(workers=1))) == replace(
        begun, workers=2
    )


def test_es_goes_back_when_new_workers_bring_too_little_and_stays_there():
    few, many = views.shape(workers=40, servers=1), views.shape(workers=44, servers=1)
    assert next_shape("es", views.running(many, tried=[few])) == few
    assert next_shape("es", views.running(few, tried=[many])) is None


def test_es_and_optimus_wait_three_minutes_between_steps():
    recent = views.running(last_change_at=950.0, profiles=(views.profile(views.shape(), at=990.0),))
    for name in ("es", "optimus", "optimus_one"):
        decision = registry.load(name)(views.cluster(recent, now=1000.0), CONFIG)
        assert decision.plans == () and "every 180 s" in decision.notes[0]


@pytest.mark.parametrize("name", ["es", "optimus", "optimus_one"])
def test_what_pods_take_to_start_is_part_of_the_three_minutes(name):
    started = (LaunchTime(kind=RoleKind.WORKER, cpu=3.0, memory=0, seconds=120.0),)
    for changed_at, looks in ((940.0, True), (950.0, False)):
        job = views.running(
            last_change_at=changed_at, launches=started, profiles=(views.profile(views.shape(), at=990.0),)
        )
        assert bool(registry.load(name)(views.cluster(job, now=1000.0), CONFIG).plans) is looks


def test_optimus_adds_workers_and_servers_at_once_probes_and_then_follows_its_model():
    first = next_shape("optimus", views.waiting(requested=views.shape()))
    assert (first.workers, first.servers) == (1, 1)
    second = next_shape("optimus", views.running(first))
    third = next_shape("optimus", views.running(second, tried=[first]))
    assert [(one.workers, one.servers) for one in (second, third)] == [(5, 3), (9, 3)]
    fourth = next_shape("optimus", views.running(third, tried=[first, second]))
    assert (fourth.workers, fourth.servers) == (13, 5)


def test_optimus_takes_no_step_that_the_quota_does_not_hold():
    tried = [views.shape(workers=1, servers=1), views.shape(workers=5, servers=3)]
    large = views.shape(workers=40, servers=4)  # 192 of 200 cores
    config = PlanningConfig(steps=StepPolicyConfig(workers=2))
    assert next_shape("optimus", views.running(large, tried=tried), config) in (None, replace(large, workers=42))
    assert next_shape("optimus", views.running(large, tried=tried)) is None


def test_the_original_optimus_takes_one_node_at_a_time():
    one = views.shape(workers=1, servers=1)
    assert next_shape("optimus_one", views.running(one)) == replace(one, workers=2)


def test_the_speed_model_of_optimus_finds_its_own_coefficients():
    truth = (0.3, 0.05, 0.002, 0.01)
    seen = [
        ShapeSpeed(shape=of, throughput=baselines.speed(truth, of), steps=100)
        for of in (views.shape(workers=w, servers=p) for w in (1, 4, 9) for p in (1, 2, 5))
    ]
    assert baselines.fit(seen) == pytest.approx(truth, rel=1e-6)


def test_dlrover_starts_from_its_default_or_from_the_same_scenario():
    cold = next_shape("dlrover", views.waiting())
    assert (cold.servers, cold.server_cpu, cold.server_memory) == (4, 12, 16 * GIB)
    past = [
        PastJob(name=str(w), features={"scenario": "s"}, shape=views.shape(workers=w), ended_at=10.0) for w in (4, 8)
    ]
    job = views.waiting(features={"scenario": "s"})
    assert next_shape("dlrover", job, history=tuple(past)).workers == 6


def test_dlrover_gives_all_servers_more_cpu_when_one_is_hot_up_to_a_node():
    hot = views.running(uses=views.uses(views.shape(), hot=0.95))
    assert next_shape("dlrover", hot).server_cpu > 8
    largest = views.shape(server_cpu=32.0)
    still = views.running(largest, uses=views.uses(largest, hot=0.995))
    assert next_shape("dlrover", still) == replace(largest, workers=3)  # a worker less


def test_dlrover_adds_at_most_eight_workers_while_servers_idle_and_stops_when_they_bring_nothing():
    idle = views.running(uses=views.uses(views.shape(), server=0.1))
    assert next_shape("dlrover", idle) == views.shape(workers=12)
    many = views.shape(workers=44, servers=1)
    stuck = views.running(many, tried=[replace(many, workers=40)], uses=views.uses(many, server=0.3))
    speeds = [equations.throughput(views.TRUE, views.FACTS, of) for of in (replace(many, workers=40), many)]
    assert speeds[1] / speeds[0] - 1 < 0.2 * 4 / 40
    assert next_shape("dlrover", stuck) is None


def test_dlrover_doubles_after_memory_ran_out():
    of = views.shape(server_memory=4 * GIB)
    finding = GuardFinding(trouble=FindingKind.OOM, role=Role(RoleKind.SERVER, 0), why="killed")
    even = tuple(replace(use, memory_used=4 * GIB) for use in views.uses(of))
    balanced = views.running(of, findings=(finding,), uses=even)
    assert next_shape("dlrover", balanced).servers == 4
    uneven = (*even[:-1], replace(even[-1], memory_used=0))
    assert next_shape("dlrover", replace(balanced, uses=uneven)).server_memory == 8 * GIB
