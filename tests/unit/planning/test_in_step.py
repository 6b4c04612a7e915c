"""bsp jobs: the useful number of workers is found from measurements."""

from dataclasses import replace

import numpy
import pytest

from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.candidates import pareto
from springtide.planning.candidates.pareto import FrontQuery
from springtide.planning.perf_model import equations, fit
from springtide.planning.perf_model.equations import Coefficients
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide.planning.policy import registry
from tests.unit.planning import planted, views
from tests.unit.planning.candidates.test_pareto import brute_force

FACTS = replace(planted.FACTS, batch=256, group=1024)
TRUE = Coefficients(grad=2e-4, upd=0.02, sync=2.0, emb=1e-7, beta=0.005)
SHAPES = [Shape(workers=w, servers=2, worker_cpu=a, server_cpu=2.0) for w, a in ((1, 1.0), (2, 1.0), (4, 2.0))]
LEAST = Shape(workers=1, servers=2, worker_cpu=1.0, server_cpu=2.0)
MOST = Shape(workers=32, servers=2, worker_cpu=1.0, server_cpu=2.0)


def measured(shape, *, at, true=TRUE):
    """A window; each worker's step has its part of the batch."""
    facts = replace(FACTS, batch=FACTS.group // shape.workers)
    return replace(planted.profile(shape, true=true, facts=facts), at=at)


def job(*tried, **more):
    """A job in the last of these shapes, in which it is for a while."""
    profiles = tuple(measured(shape, at=100.0 * (place + 1)) for place, shape in enumerate(tried))
    given = dict(
        name="job",
        facts=FACTS,
        bounds=ShapeBounds(least=LEAST, most=MOST, quota=ResourceBudget(cpu=40, memory=1e12)),
        shape=tried[-1],
        started_at=0.0,
        last_change_at=100.0 * len(tried) - 70,
        stage=PlanningStage.SAMPLING,
        samples_total=1e9,
        profiles=profiles,
        uses=views.uses(tried[-1]),
    )
    return views.job_view(**(given | more))


def decided(one):
    now = one.profiles[-1].at + 200
    view = views.cluster(one, now=now)
    return registry.load("springtide")(view, PlanningConfig(exact_seconds=0.0)).plan_for("job")


def test_bsp_step_has_the_same_samples_for_any_number_of_workers():
    one, four = (Shape(workers=w, servers=2, worker_cpu=2.0, server_cpu=0.5) for w in (1, 4))
    alone, together = (equations.terms(TRUE, FACTS, shape) for shape in (one, four))
    assert alone.gradient == pytest.approx(4 * together.gradient) and alone.lookup == pytest.approx(4 * together.lookup)
    assert alone.update == together.update == pytest.approx(0.02)
    assert alone.synchronization == 0.0, "there is nobody to agree with"
    assert together.synchronization == pytest.approx(2.0 * (2 * 3 / 4 * 8e-3 + 2 * 3 * equations.HOP_S))
    seconds = equations.step_seconds(TRUE, FACTS, four)
    assert equations.throughput(TRUE, FACTS, four) == pytest.approx(1024 / seconds)


def test_vectorized_bsp_equations_match_single_shapes_beside_async_jobs():
    shapes = [*SHAPES, *planted.SHAPES]
    many = planted.arrays(shapes)
    for facts in (FACTS, planted.FACTS):
        alone = [equations.throughput(TRUE, facts, one) for one in shapes]
        numpy.testing.assert_allclose(equations.throughput(TRUE, facts, many), alone)
    kinds = [FACTS if place % 2 else planted.FACTS for place in range(len(shapes))]
    known = [(*TRUE.array, one.dense_bytes, one.bandwidth, one.dim, one.batch, one.group) for one in kinds]
    mixed = equations.throughputs(equations.Models(*numpy.array(known).T), many)
    numpy.testing.assert_allclose(
        mixed, [equations.throughput(TRUE, facts, one) for facts, one in zip(kinds, shapes, strict=True)]
    )


def test_batch_fit_recovers_a_bsp_job_beside_others():
    shapes = [
        Shape(workers=w, servers=p, worker_cpu=a, server_cpu=b)
        for w, p, a, b in (
            (1, 1, 1.0, 1.0),
            (2, 1, 1.0, 2.0),
            (4, 2, 2.0, 1.0),
            (8, 2, 1.0, 4.0),
            (16, 4, 2.0, 1.0),
            (2, 4, 4.0, 2.0),
        )
    ]
    together = [measured(shape, at=0.0) for shape in shapes]
    alone = fit.fit(planted.profiles(), planted.FACTS)
    group, other = fit.fit_many([(together, FACTS), (planted.profiles(), planted.FACTS)])
    numpy.testing.assert_allclose(group.coefficients.array, TRUE.array, rtol=1e-3)
    numpy.testing.assert_allclose(other.coefficients.array, alone.coefficients.array, rtol=1e-9)
    unseen = Shape(workers=12, servers=3, worker_cpu=1.0, server_cpu=3.0)
    assert group.predict(unseen) == pytest.approx(equations.throughput(TRUE, FACTS, unseen), rel=1e-3)


@pytest.mark.parametrize("sync", [0.0, 0.5, 8.0])
@pytest.mark.parametrize("pace", [CoreSpeed(), CoreSpeed(900.0)])
def test_bsp_front_matches_brute_force(sync, pace):
    most = Shape(workers=24, servers=4, worker_cpu=2.0, server_cpu=2.0)
    bounds = ShapeBounds(least=Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0), most=most)
    ask = FrontQuery(coefficients=replace(TRUE, sync=sync), facts=FACTS, bounds=bounds, pace=pace)
    found = pareto.front(ask)
    mine, wanted = list(zip(found.cost.tolist(), found.throughput.tolist(), strict=True)), brute_force(ask)
    for one, two in ((mine, wanted), (wanted, mine)):
        for price, gain in one:
            assert any(c <= price + 1e-4 and g >= gain - 1e-4 for c, g in two), (price, gain)


def test_at_most_double_the_workers_are_planned_before_two_counts_are_measured():
    first = decided(job(LEAST))
    assert first is not None and first.shape.workers == 2
    second = decided(job(LEAST, first.shape))
    assert second is not None and second.shape.workers > 4
    few = replace(job(LEAST).bounds, most=replace(MOST, workers=3))
    assert decided(job(LEAST, bounds=few)).shape.workers == 2, "not the most of them either"


def test_bsp_plan_stops_where_more_workers_do_not_help():
    two, four = (replace(LEAST, workers=w) for w in (2, 4))
    plan = decided(job(LEAST, two, four))
    speeds = {w: equations.throughput(TRUE, FACTS, replace(LEAST, workers=w)) for w in range(1, 33)}
    best = max(speeds, key=speeds.get)
    assert best < 32, "in step, more workers are not always faster"
    assert 4 < plan.shape.workers <= best and speeds[plan.shape.workers] > 0.9 * speeds[best]


def test_bsp_job_with_too_many_workers_releases_some():
    dear = replace(TRUE, sync=12.0)
    tried = [replace(LEAST, workers=w) for w in (4, 8, 16)]
    profiles = tuple(measured(shape, at=100.0 * (place + 1), true=dear) for place, shape in enumerate(tried))
    plan = decided(job(*tried, profiles=profiles, stage=PlanningStage.ADJUSTING))
    assert plan is not None and plan.shape.workers < 16
    assert equations.throughput(dear, FACTS, plan.shape) >= equations.throughput(dear, FACTS, tried[-1])


def test_bsp_job_does_not_use_the_sampling_sizes_of_dlrover():
    untimed = tuple(
        replace(one, timing=replace(one.timing, gradient_s=0, update_s=0, synchronization_s=0, lookup_s=0))
        for one in job(LEAST).profiles
    )
    assert decided(job(LEAST, profiles=untimed)) is None, "one number of workers, not timed: nothing is known of others"
