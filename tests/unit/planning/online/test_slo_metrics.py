"""The four metrics of online jobs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.online.slo_metrics import SLO_S, SloSums
from springtide_lab.reproduce.kale.world import measure

STEPS = st.lists(
    st.tuples(st.floats(0, 5000), st.integers(0, 50), st.booleans()), min_size=1, max_size=40
)  # lag, workers, down


def test_slo_sums_of_a_day_with_one_late_hour_match_the_paper():
    day = SloSums().then(23 * 3600, lag_s=60, workers=10).then(3600, lag_s=1800, workers=20, down=True)
    assert day.violation == pytest.approx(1 / 24)
    assert day.lag_min == pytest.approx(23 * 60 * 1 + 60 * 30)
    assert day.down_min == 60
    assert day.worker_hours == 23 * 10 + 20


def test_lag_equal_to_the_slo_is_no_violation():
    assert SloSums().then(60, lag_s=1200, workers=1).violation == 0
    assert SloSums().then(60, lag_s=1201, workers=1).violation == 1
    assert SloSums().then(60, lag_s=31, workers=1, slo_s=30).violation == 1


def test_no_measurement_is_no_violation():
    assert SloSums().violation == SloSums().lag_min == SloSums().worker_hours == 0


@given(STEPS, st.floats(0.1, 600), st.floats(0, 3000))
def test_run_given_by_steps_is_the_sum_of_its_steps(steps, step_s, slo_s):
    lags, workers, down = (np.array(column) for column in zip(*steps, strict=True))
    at_once = measure(lags.astype(float), workers.astype(float), down, step_s=step_s, slo_s=slo_s)
    by_and_by = SloSums()
    for lag, number, paused in steps:
        by_and_by = by_and_by.then(step_s, lag_s=lag, workers=number, down=paused, slo_s=slo_s)
    for field in SloSums.__slots__:
        assert getattr(at_once, field) == pytest.approx(getattr(by_and_by, field), rel=1e-9, abs=1e-6), field


@given(STEPS, st.integers(0, 40))
def test_two_periods_add_up_to_the_whole(steps, where):
    def run(some):
        lags, workers, down = (np.array([step[column] for step in some]) for column in range(3))
        return measure(lags.astype(float), workers.astype(float), down.astype(bool), step_s=60, slo_s=SLO_S)

    both = run(steps[:where]) + run(steps[where:])
    assert both.violated_s == run(steps).violated_s
    assert both.lag_s2 == pytest.approx(run(steps).lag_s2)


def test_inconsistent_steps_are_refused():
    with pytest.raises(errors.BadInput, match="nothing below 0"):
        SloSums().then(-1, lag_s=0, workers=1)
    with pytest.raises(errors.BadInput, match="nothing below 0"):
        SloSums().then(1, lag_s=float("nan"), workers=1)
