"""Choose a shape for each job."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Prices, ResourceBudget, Shape
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate import choose
from springtide.planning.allocate.choose import Bid
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.shape_columns import columns

FACTS = ModelFacts(dense_bytes=1e6, bandwidth=1e9, dim=416, batch=512)
JOB = equations.Coefficients(grad=2e-4, upd=5e-3, sync=2.0, emb=1e-8, beta=0.01)
AMPLE = ResourceBudget(cpu=1e6, memory=1e15)
CONFIG = PlanningConfig()
FAST_START = tuple(LaunchTime(kind=kind, cpu=4, memory=0, seconds=5) for kind in (RoleKind.WORKER, RoleKind.SERVER))


def shape(workers=2, servers=1, worker_cpu=4.0, server_cpu=4.0, gpu=0.0):
    return Shape(workers=workers, servers=servers, worker_cpu=worker_cpu, server_cpu=server_cpu, worker_gpu=gpu)


def bid(name="a", now=None, samples_left=1e8, job=JOB, workers=range(1, 17), servers=(1, 2, 4, 8), launches=FAST_START):
    now = now or shape()
    shapes = columns([shape(workers=w, servers=s, gpu=now.worker_gpu) for w in workers for s in servers])
    many = equations.Shapes(*shapes[:4])
    speed = equations.throughput(job, FACTS, now)
    return Bid(
        job=name,
        now=now,
        throughput_now=speed,
        shapes=shapes,
        throughput=equations.throughput(job, FACTS, many),
        samples_left=samples_left,
        launches=launches,
    )


def test_job_with_room_grows_while_it_pays_and_the_plan_has_a_reason():
    (plan,) = choose.choose([bid()], AMPLE, CONFIG).plans
    assert plan.shape.workers > 2
    assert plan.gain > 0.05 * bid().throughput_now
    assert plan.cost == pytest.approx(plan.shape.cpu)
    assert "log WG" not in plan.reason and "samples/s" in plan.reason and str(plan.shape) not in plan.reason


def test_gain_that_is_not_repaid_before_the_end_changes_nothing():
    slow = tuple(replace(launch, seconds=600) for launch in FAST_START)
    nearly_done = bid(samples_left=bid().throughput_now * 60, launches=slow)
    decision = choose.choose([nearly_done], AMPLE, CONFIG)
    assert decision.plans == ()
    assert "is worth its cost" in decision.why
    assert choose.choose([bid(launches=slow)], AMPLE, CONFIG).plans  # with a long way to go it is


def test_small_gain_is_not_worth_a_change():
    best = choose.choose([bid()], AMPLE, CONFIG).plans[0].shape
    assert choose.choose([bid(now=best)], AMPLE, CONFIG).plans == ()
    near = replace(best, workers=best.workers - 1)
    kept = choose.choose([bid(now=near)], AMPLE, CONFIG)
    assert all(plan.gain >= CONFIG.least_gain * plan.throughput * 0.5 for plan in kept.plans)


def test_resources_without_benefit_are_released():
    stuck = replace(JOB, beta=5.0, emb=0.0, sync=0.0, upd=1e-6)  # neither cores nor servers make it faster
    wasteful = shape(workers=2, servers=8)
    (plan,) = choose.choose([bid(now=wasteful, job=stuck, workers=(2,))], AMPLE, CONFIG).plans
    assert plan.shape.servers == 1
    assert plan.throughput == pytest.approx(bid(now=wasteful, job=stuck).throughput_now, rel=0.02)


def test_scarce_resources_go_first_to_the_job_that_ends_first():
    short, long = bid("short", samples_left=1e8), bid("long", samples_left=1e10)
    tight = ResourceBudget(cpu=60, memory=1e15)
    chosen = choose.choose([long, short], tight, CONFIG)
    assert chosen.plan_for("short").shape.cpu > 30
    last = choose.choose([long, short], tight, replace(CONFIG, rho=-2.5, priority="remaining_now"))
    assert last.plan_for("long").shape.cpu > 30


def test_cluster_smaller_than_its_jobs_gets_no_plan_and_a_reason():
    decision = choose.choose([bid(workers=(2, 3), servers=(1,))], ResourceBudget(cpu=2, memory=0), CONFIG)
    assert decision.plans == ()
    assert "there are 2 cores" in decision.why


@pytest.mark.parametrize("exact", [0.0, 10.0])
@pytest.mark.parametrize(("each", "gpus"), [(1.0, 7), (0.5, 4)])
def test_jobs_grow_up_to_the_available_gpus(exact, each, gpus):
    config = replace(CONFIG, exact_seconds=exact, prices=Prices(gpu=1.0))
    bids = [bid(name, now=shape(gpu=each)) for name in "ab"]
    plans = choose.choose(bids, replace(AMPLE, gpu=gpus), config).plans
    now = dict.fromkeys("ab", shape(gpu=each)) | {plan.job: plan.shape for plan in plans}
    assert plans and gpus - 1 <= sum(chosen.gpus for chosen in now.values()) <= gpus


def test_plan_cost_includes_gpus():
    (plan,) = choose.choose([bid(now=shape(gpu=0.5))], AMPLE, replace(CONFIG, prices=Prices(gpu=7.0))).plans
    assert plan.cost == pytest.approx(plan.shape.cpu + 7.0 * plan.shape.gpus) and plan.shape.worker_gpu == 0.5


def test_reason_is_given_when_no_job_is_ready():
    assert choose.choose([], AMPLE, CONFIG).why == "no job is ready for a change"


def test_plan_notes_name_the_allocation_algorithm():
    decision = choose.choose([bid("a"), bid("b"), bid("c")], ResourceBudget(cpu=70, memory=1e15), CONFIG)
    assert any(note.startswith("chosen by the ") for note in decision.notes)


def test_workers_are_added_before_slow_starting_servers():
    slow_servers = (
        LaunchTime(kind=RoleKind.WORKER, cpu=4, memory=0, seconds=5),
        LaunchTime(kind=RoleKind.SERVER, cpu=4, memory=0, seconds=900),
    )
    left = bid().throughput_now * 1500
    (plan,) = choose.choose([bid(samples_left=left, launches=slow_servers)], AMPLE, CONFIG).plans
    assert plan.shape.servers == 1 and plan.shape.workers > 2
    (plan,) = choose.choose([bid(samples_left=left)], AMPLE, CONFIG).plans
    assert plan.shape.servers > 1  # they pay once they come soon


@given(
    jobs=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4), st.floats(1e4, 1e9)), min_size=1, max_size=5),
    spare=st.floats(0, 200),
    rho=st.sampled_from([-2.5, 0.0, 2.5, 50.0]),
)
@settings(max_examples=30, deadline=None)
def test_allocation_never_exceeds_capacity(jobs, spare, rho):
    bids = [
        bid(f"job-{at}", now=shape(workers=w, servers=s), samples_left=left) for at, (w, s, left) in enumerate(jobs)
    ]
    capacity = ResourceBudget(cpu=sum(one.now.cpu for one in bids) + spare, memory=1e12)
    decision = choose.choose(bids, capacity, PlanningConfig(rho=rho, exact_seconds=0))
    shapes = {one.job: one.now for one in bids} | {plan.job: plan.shape for plan in decision.plans}
    assert sum(each.cpu for each in shapes.values()) <= capacity.cpu * (1 + 1e-6)


def test_zero_price_of_cores_causes_no_division_by_zero():
    decision = choose.choose([bid()], AMPLE, PlanningConfig(prices=Prices(cpu=0.0, memory=1.0)))
    assert decision.plans[0].shape.workers > 2
