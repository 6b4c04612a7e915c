"""Past traffic with gaps, and forecasts with reasons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.online.traffic import PastTraffic, RateForecast
from tests.unit.planning.online import generated_traffic


def forecast_of(values, step_s=600.0):
    values = np.asarray(values, dtype=float)
    return RateForecast(step_s=step_s, mean=values, low=values / 2, high=values * 2, member="it", why="so")


def test_invalid_traffic_is_refused():
    for step_s in (0, 7, 2 * 86_400):
        with pytest.raises(errors.BadInput, match="a step that a day is a multiple of"):
            PastTraffic(step_s=step_s, values=np.ones(3))
    for values in ([-1.0], [np.inf], [[1.0]]):
        with pytest.raises(errors.BadInput, match="one number of samples a second"):
            PastTraffic(step_s=60, values=np.asarray(values))


def test_irregular_times_become_equal_steps_with_gaps():
    at = np.asarray([5.0, 65.0, 66.0, 300.0])
    seen = PastTraffic.of(at, np.asarray([1.0, 2.0, 4.0, 9.0]), 60)
    assert seen.values == pytest.approx([1.0, 3.0, np.nan, np.nan, 9.0], nan_ok=True)


def test_short_gaps_are_interpolated_and_long_ones_copied_from_other_days():
    whole = generated_traffic.days(6, levels=0, noise=0, weekly=1)
    holes = whole.values.copy()
    holes[100] = np.nan  # half an hour
    holes[150:170] = np.nan  # ten hours
    filled = PastTraffic(step_s=whole.step_s, values=holes).filled().values
    assert filled[100] == pytest.approx((whole.values[99] + whole.values[101]) / 2)
    assert filled[150:170] == pytest.approx(whole.values[150:170])
    assert np.isfinite(filled).all()


def test_unknown_values_before_the_first_known_one_are_cut_off():
    values = np.asarray([np.nan, np.nan, 4.0, 5.0, np.nan])
    assert list(PastTraffic(step_s=3600, values=values).filled().values) == [4.0, 5.0, 5.0]
    assert len(PastTraffic(step_s=3600, values=np.full(3, np.nan)).filled().values) == 0


@given(st.lists(st.one_of(st.just(float("nan")), st.floats(0, 1e6)), max_size=120))
def test_filling_gaps_keeps_known_values(values):
    seen = PastTraffic(step_s=3600, values=np.asarray(values, dtype=float))
    filled = seen.filled().values
    kept = seen.values[len(values) - len(filled) :]
    assert np.isfinite(filled).all()
    assert (filled[~np.isnan(kept)] == kept[~np.isnan(kept)]).all()


def test_forecast_reason_is_prepended():
    assert forecast_of([1]).because("it rains").why == "it rains; so"
