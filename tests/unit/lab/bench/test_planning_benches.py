"""Results of the planning benchmarks for jobs with known coefficients."""

import cProfile
from dataclasses import replace

from springtide.domain.plan.profile import Profile, TimingSum
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.perf_model import equations, fit, measurements
from springtide.planning.perf_model.equations import Coefficients
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide.planning.policy import registry
from springtide_lab.bench.control import fit as fit_bench
from springtide_lab.bench.control import plan
from springtide_lab.bench.core import quota_job
from springtide_lab.bench.core.quota_job import QuotaProfile

TRUE = Coefficients(grad=2e-5, upd=2e-3, sync=1.0, emb=5e-9, beta=1e-3)


FREE = CoreSpeed(worker=1e9, server=1e9)
"""Cores that are worth so much bind nobody."""


def planted(tried, *, twice_as_slow=(), pace=FREE):
    facts = quota_job.facts()
    found = []
    for one in tried:
        shape = one.shape
        terms = [float(term) for term in equations.terms(TRUE, facts, shape)]
        step_s = max(sum(terms), facts.batch * shape.workers / measurements.ceiling_of(pace, shape))
        step_s *= 2.0 if shape in twice_as_slow else 1.0
        timing = TimingSum(
            steps=1,
            samples=facts.batch,
            total_s=step_s,
            gradient_s=terms[0],
            update_s=terms[1],
            synchronization_s=terms[2],
            lookup_s=terms[3],
        )
        profile = Profile(shape=shape, batch=facts.batch, timing=timing, at=0.0)
        speed = facts.batch * shape.workers / step_s
        found.append(
            QuotaProfile(
                shape=shape, profiles=(profile,), worker_used=speed / pace.worker, server_used=speed / pace.server
            )
        )
    return found


def configurations():
    return [one for some in fit_bench.tried(quick=False) for one in some]


def test_job_that_follows_the_equations_is_predicted_exactly():
    tried = configurations()
    told = fit_bench.judge(tried, planted(tried))
    (goal,) = told.goals
    assert goal.id == "mape" and goal.value < 1e-4 and goal.met
    assert sum("*" in row[0] for row in told.rows) == sum(one.held_out for one in tried) == 7


def test_cpu_bound_shapes_are_predicted_from_core_speed():
    tried = configurations()
    taken = planted(tried, pace=CoreSpeed(worker=20_000.0, server=90_000.0))
    (goal,) = fit_bench.judge(tried, taken).goals
    assert goal.value < 0.05 and goal.met


def test_roles_measured_above_their_quota_are_predicted_equally_well():
    tried = configurations()
    taken = [
        replace(one, worker_used=1.1 * one.worker_used, server_used=1.1 * one.server_used)
        for one in planted(tried, pace=CoreSpeed(worker=20_000.0, server=90_000.0))
    ]
    (goal,) = fit_bench.judge(tried, taken).goals
    assert goal.value < 0.06, "0.1, if a core counted by what was used"


def test_held_out_configuration_twice_as_slow_shows_in_the_error():
    tried = configurations()
    slow = next(one.shape for one in tried if one.held_out)
    (goal,) = fit_bench.judge(tried, planted(tried, twice_as_slow={slow})).goals
    assert abs(goal.value - 1 / 7) < 0.01 and not goal.met


def test_unmeasured_configuration_misses_the_goal():
    tried = configurations()
    unseen = [one for one in planted(tried) if one.shape != next(t.shape for t in tried if t.held_out)]
    (goal,) = fit_bench.judge(tried, unseen).goals
    assert goal.value is None and not goal.met and goal.why == "a configuration was not measured"
    (goal,) = fit_bench.judge(tried, []).goals
    assert not goal.met and goal.why == "no usable profile yet"


def test_configurations_leave_some_of_two_cores_free():
    assert max(one.shape.cpu for one in configurations()) <= 1.6


def test_bench_plan_cluster_is_measured_well_enough_to_plan():
    view = plan.cluster(12, seed=3)
    models = fit.fit_many([(job.profiles, job.facts) for job in view.jobs])
    assert all(isinstance(model, fit.FittedModel) for model in models)
    assert plan.decision_seconds(view) > 0


def test_jobs_of_the_other_cluster_have_nothing_in_common():
    jobs = plan.cluster(12, seed=3, unlike=True).jobs
    assert len({job.bounds for job in jobs}) == len({job.need for job in jobs}) == 12
    assert len({len(job.profiles) for job in jobs}) > 6
    view = plan.cluster(6, seed=3, unlike=True)
    assert registry.load("springtide")(view, PlanningConfig()).plans


def calls(jobs):
    """Count the Python and NumPy calls of a decision for this many jobs: a measure independent of other load."""
    view, policy = plan.cluster(jobs, seed=1, unlike=True), registry.load("springtide")
    policy(view, PlanningConfig(exact_seconds=0.0))
    counted = cProfile.Profile()
    counted.runcall(policy, view, PlanningConfig(exact_seconds=0.0))
    return sum(entry.callcount for entry in counted.getstats())


def test_decision_for_twice_the_jobs_takes_about_twice_the_calls():
    small, large = calls(40), calls(80)
    assert large < 2.3 * small and large / 80 < 1500
