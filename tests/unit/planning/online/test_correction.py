"""A forecast, corrected by the traffic since it was made."""

import numpy as np
import pytest

from springtide import errors
from springtide.planning.online.seasonal import outlook
from springtide.planning.online.traffic import RateForecast


def flat_forecast(steps=100):
    mean = np.full(steps, 100.0)
    return RateForecast(step_s=600.0, mean=mean, low=0.8 * mean, high=1.5 * mean, member="flat", why="as ever")


def test_accurate_forecast_continues_and_near_steps_have_narrower_intervals():
    seen = outlook(flat_forecast(), np.full(4, 100.0))
    assert len(seen.mean) == 96 and seen.mean == pytest.approx([100.0] * 96)
    assert 115 < seen.high[0] < 120 and seen.high[-1] == pytest.approx(150.0)
    assert seen.why == "as ever; 100% of it arrived recently"


def test_higher_day_keeps_its_correction_for_some_hours():
    seen = outlook(flat_forecast(), np.full(4, 140.0))
    assert 138 < seen.mean[0] < 140 and seen.mean[24] == pytest.approx(100 + 40 * np.exp(-24.5 / 24))
    assert 100 < seen.mean[-1] < 101 and all(np.diff(seen.mean) < 0)
    assert all(high > mean for mean, high in zip(seen.mean, seen.high, strict=True))


def test_recent_steps_weigh_most_and_the_correction_is_bounded():
    assert outlook(flat_forecast(), np.array([100.0, 100.0, 100.0, 160.0])).mean[0] > 120
    assert outlook(flat_forecast(), np.array([160.0, 100.0, 100.0, 100.0])).mean[0] < 110
    assert outlook(flat_forecast(), np.full(4, 1e6)).mean[0] < 500


def test_unstarted_forecast_is_used_unchanged_and_an_expired_one_refused():
    assert outlook(flat_forecast(), np.zeros(0)).mean == pytest.approx([100.0] * 100)
    with pytest.raises(errors.BadInput, match="are over"):
        outlook(flat_forecast(4), np.zeros(4))
