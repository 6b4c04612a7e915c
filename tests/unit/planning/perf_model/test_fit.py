"""Planted coefficients are recovered despite noise; undetermined ones are named; invalid input is refused."""

import math
from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.domain.plan.profile import TimingSum
from springtide.planning.perf_model import equations, fit
from springtide.planning.perf_model.equations import TERMS, Coefficients
from springtide.planning.perf_model.fit import FittedModel
from tests.unit.planning.planted import FACTS, SHAPES, TRUE, arrays, profile, profiles

ELSEWHERE = arrays(replace(shape, workers=2 * shape.workers, worker_cpu=0.5 * shape.worker_cpu) for shape in SHAPES)


@pytest.mark.parametrize("timed", [True, False])
def test_planted_coefficients_are_recovered_without_noise(timed):
    found = fit.fit(profiles(timed=timed), FACTS)
    assert isinstance(found, FittedModel)
    numpy.testing.assert_allclose(found.coefficients.array, TRUE.array, rtol=1e-6)
    assert found.rmsle < 1e-8 and found.mape < 1e-8 and found.unclear == ()
    assert found.why == "fitted to 10 configurations, off by 0.0% on average"


@settings(max_examples=40, deadline=None)
@given(
    shares=st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5).filter(lambda shares: sum(shares) > 0.3),
    deviation=st.floats(0.0, 0.05),
    seed=st.integers(0, 1000),
    timed=st.booleans(),
)
def test_noisy_fit_predicts_closely_and_stays_nonnegative(shares, deviation, seed, timed):
    usual = numpy.stack(equations.step_columns(FACTS, arrays(SHAPES)), axis=-1).mean(axis=0)
    true = Coefficients(**dict(zip(TERMS, (0.1 * numpy.array(shares) / usual).tolist(), strict=True)))
    found = fit.fit(profiles(true=true, deviation=deviation, windows=3, seed=seed, timed=timed), FACTS)
    assert isinstance(found, FittedModel)
    assert min(found.coefficients.array) >= 0
    predicted = found.predict(ELSEWHERE)
    assert numpy.isfinite(predicted).all() and (predicted > 0).all()
    near = equations.throughput(true, FACTS, ELSEWHERE)
    assert numpy.abs(predicted / near - 1).max() < 0.02 + 8 * deviation


def test_one_outlier_configuration_in_ten_is_outvoted():
    spoiled = [*profiles(SHAPES[:9]), profile(SHAPES[9], noise=10.0)]
    found = fit.fit(spoiled, FACTS)
    numpy.testing.assert_allclose(found.predict(ELSEWHERE), equations.throughput(TRUE, FACTS, ELSEWHERE), rtol=0.1)


def test_one_outlier_window_of_a_configuration_changes_nothing():
    odd = [profile(shape, noise=50.0) for shape in SHAPES]
    found = fit.fit([*profiles(windows=2), *odd], FACTS)
    numpy.testing.assert_allclose(found.coefficients.array, TRUE.array, rtol=1e-6)


def test_coefficients_without_variation_are_reported_as_unclear():
    same_servers = [replace(shape, servers=2, server_cpu=2.0, workers=4) for shape in SHAPES]
    found = fit.fit(profiles(same_servers, timed=False), FACTS)
    assert found.unclear == ("upd", "sync", "emb", "beta")
    assert "cannot tell yet: upd, sync, emb, beta" in found.why


def test_profiles_timed_by_term_determine_more_coefficients():
    one_server = [replace(shape, servers=1, server_cpu=1.0) for shape in SHAPES]
    totals, apart = (fit.fit(profiles(one_server, timed=timed), FACTS) for timed in (False, True))
    assert set(totals.unclear) >= {"upd", "sync"}
    more_servers = replace(SHAPES[0], workers=16, servers=8, server_cpu=8.0)
    true = equations.throughput(TRUE, FACTS, more_servers)
    assert abs(apart.predict(more_servers) / true - 1) < 0.02 < abs(totals.predict(more_servers) / true - 1)


def test_single_configuration_timed_by_term_gives_a_first_estimate():
    found = fit.fit([profile(SHAPES[3])], FACTS)
    assert found.predict(SHAPES[3]) == pytest.approx(equations.throughput(TRUE, FACTS, SHAPES[3]), rel=1e-3)
    assert found.unclear == TERMS


def test_job_without_dense_parameters_has_no_synchronization_term():
    facts = replace(FACTS, dense_bytes=0.0)
    found = fit.fit(profiles(facts=facts), facts)
    assert found.coefficients.sync == 0.0 and found.uncertainty["sync"] == 0.0
    assert found.coefficients.grad == pytest.approx(TRUE.grad, rel=1e-6)


def test_batch_fit_equals_single_fits():
    jobs = [(profiles(SHAPES[: 3 + at], deviation=0.03, seed=at), FACTS) for at in range(7)]
    jobs.insert(3, ([], FACTS))
    together = fit.fit_many(jobs)
    for (some, facts), found in zip(jobs, together, strict=True):
        alone = fit.fit(some, facts)
        if isinstance(alone, str):
            assert found == alone == "no usable profile yet"
        else:
            numpy.testing.assert_allclose(found.predict(ELSEWHERE), alone.predict(ELSEWHERE), rtol=1e-3)


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        (TimingSum(), "1 with no steps"),
        (TimingSum(steps=10), "1 with no time at all"),
        (TimingSum(steps=10, total_s=math.nan), "1 with times that are not numbers"),
        (TimingSum(steps=10, total_s=1.0, update_s=math.inf), "1 with times that are not numbers"),
        (TimingSum(steps=10, total_s=-1.0), "1 with no time at all"),
        (TimingSum(steps=10, total_s=1.0, lookup_s=-0.5), "1 with times below 0"),
    ],
)
def test_unusable_profiles_are_refused_with_a_reason(timing, why):
    refused = fit.fit([replace(profile(SHAPES[0]), timing=timing)], FACTS)
    assert refused == f"no usable profile: {why}"


def test_unusable_profiles_among_good_ones_are_skipped():
    bad = replace(profile(SHAPES[0]), timing=TimingSum(steps=10, total_s=math.nan))
    found = fit.fit([bad, *profiles(), bad], FACTS)
    numpy.testing.assert_allclose(found.coefficients.array, TRUE.array, rtol=1e-6)


def test_totals_of_too_few_configurations_are_refused():
    refused = fit.fit(profiles(SHAPES[:2], timed=False, windows=9), FACTS)
    assert refused.startswith("2 configurations measured, at least 3 needed")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True, width=32)] * 5), max_size=6))
def test_fit_returns_a_model_or_a_reason_for_any_input(rows):
    given_profiles = [
        replace(
            profile(SHAPES[at]),
            timing=TimingSum(
                steps=3, total_s=row[0], gradient_s=row[1], update_s=row[2], synchronization_s=row[3], lookup_s=row[4]
            ),
        )
        for at, row in enumerate(rows)
    ]
    found = fit.fit(given_profiles, FACTS)
    if isinstance(found, FittedModel):
        assert min(found.coefficients.array) >= 0
        assert numpy.isfinite(found.predict(ELSEWHERE)).all()
        assert found.why
    else:
        assert found


def test_infinite_information_gives_infinite_deviation():
    information = numpy.stack([numpy.eye(5), numpy.full((5, 5), numpy.inf)])
    told = fit._deviations(information, numpy.full((2, 5), 0.2), numpy.ones(2))
    assert numpy.isfinite(told[0]).all() and numpy.isinf(told[1]).all()
