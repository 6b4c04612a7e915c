"""Backtests of forecasters."""

import numpy as np
import pytest

from springtide import errors
from springtide.planning.online.forecasters import BUILT_IN, backtest
from springtide.planning.online.traffic import PastTraffic, RateForecast
from tests.unit.planning.online import generated_traffic
from tests.unit.planning.online.generated_traffic import DAY, STEP_S

PAST = generated_traffic.days(20)


def clairvoyant(history, steps):
    """It has seen the future."""
    at = next(
        start
        for start in range(len(history.values), len(PAST.values))
        if (PAST.values[start - len(history.values) : start] == history.values).all()
    )
    came = PAST.values[at : at + steps]
    return RateForecast(step_s=STEP_S, mean=came, low=came, high=came, member="knows", why="")


def test_backtest_shows_only_the_past_and_forecasts_every_day_once():
    seen = []

    def watches(history, steps):
        seen.append(len(history.values))
        return BUILT_IN["last-day"](history, steps)

    score = backtest(PAST, watches, known_days=5)
    assert seen == [5 * DAY] * 15 and score.tried == 15
    assert backtest(PAST, watches, known_days=5, every_s=12 * 3600, last=4).tried == 4


def test_backtest_of_a_perfect_forecast_has_no_error_and_of_a_high_one_a_bias():
    assert backtest(PAST, clairvoyant, known_days=7) == (0.0, 1.0, 1.0, 0.0, 13)
    flat = RateForecast(
        step_s=STEP_S, mean=np.full(DAY, 1e6), low=np.zeros(DAY), high=np.full(DAY, 2e6), member="much", why=""
    )
    score = backtest(PAST, lambda history, steps: flat, known_days=7)
    assert score.bias == pytest.approx(score.wape) and score.wape > 100 and score.covered == 1


def test_unknown_steps_are_not_scored():
    values = PAST.values.copy()
    values[-10:] = np.nan
    flat = RateForecast(step_s=STEP_S, mean=np.ones(DAY), low=np.ones(DAY), high=np.ones(DAY), member="", why="")
    score = backtest(PastTraffic(step_s=STEP_S, values=values), lambda history, steps: flat, known_days=19)
    assert score.wape == pytest.approx(1, rel=0.01) and np.isfinite(score.bias)


def test_too_short_a_history_is_refused():
    with pytest.raises(errors.BadInput, match="20 days of traffic: expected 28"):
        backtest(PAST, clairvoyant)
