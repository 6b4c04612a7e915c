"""Seasonal traffic forecasts from past days and weeks."""

import numpy as np
import pytest

from springtide.planning.online.forecasters import BUILT_IN, backtest
from springtide.planning.online.seasonal import MEMBERS, calibrated, forecast, interval, last_day, weigh
from springtide.planning.online.traffic import PastTraffic
from tests.unit.planning.online import generated_traffic
from tests.unit.planning.online.generated_traffic import DAY, STEP_S


def test_repeating_week_is_forecast_exactly():
    past = generated_traffic.days(15, levels=0, noise=0)
    tomorrow = generated_traffic.days(16, levels=0, noise=0).values[-DAY:]
    said = forecast(past, DAY)
    assert said.mean == pytest.approx(tomorrow, rel=0.01)
    assert "like the last weeks" in said.member and said.tried == 6


@pytest.mark.parametrize("seed", [1, 2])
def test_forecast_beats_last_day_and_week_and_its_interval_covers_80_percent(seed):
    past = generated_traffic.days(56, seed=seed)
    ours, day, week = (backtest(past, BUILT_IN[name]) for name in ("default", "last-day", "last-week"))
    assert ours.wape < week.wape < day.wape
    assert 0.72 <= ours.covered <= 0.92 and 0.84 <= ours.below <= 0.97
    assert abs(ours.bias) < 0.02


def test_forecast_starts_at_the_level_of_the_last_hours():
    past = generated_traffic.days(21, levels=0, noise=0.01)
    values = past.values.copy()
    values[-4:] *= 1.5  # two hours that are half again as high
    said = forecast(PastTraffic(step_s=STEP_S, values=values), DAY).mean
    usual = forecast(past, DAY).mean
    assert said[0] / usual[0] > 1.15
    assert said[-1] / usual[-1] < said[0] / usual[0]


def test_ensemble_weights_sum_to_one_over_every_member_with_enough_data():
    for days in (3, 7, 8, 9, 20):
        weights = weigh(generated_traffic.days(days))
        assert sum(share for _, share in weights.members) == pytest.approx(1)
        assert {name for name, _ in weights.members} == {name for name, (_, needs) in MEMBERS.items() if needs <= days}
        assert 1 <= weights.tried <= 7 and len(weights.ratios) == weights.tried * DAY


def test_given_ensemble_weights_are_used():
    past = generated_traffic.days(14)
    weights = weigh(past)
    assert list(forecast(past, 5, weights=weights).mean) == list(forecast(past, 5).mean)


def test_gaps_change_the_forecast_little_and_are_not_scored():
    past = generated_traffic.days(21)
    values = past.values.copy()
    values[-3 * DAY : -3 * DAY + 20] = np.nan
    values[-30:-28] = np.nan
    holes = PastTraffic(step_s=STEP_S, values=values)
    assert forecast(holes, DAY).mean == pytest.approx(forecast(past, DAY).mean, rel=0.15)
    assert len(weigh(holes).ratios) == 7 * DAY - 22


def test_forecast_without_history_is_zero_and_says_so():
    said = forecast(PastTraffic(step_s=STEP_S, values=np.zeros(0)), 3)
    assert list(said.mean) == [0, 0, 0] and said.why == "no traffic was seen yet" and said.tried == 0
    assert said.member == "nothing"


def test_forecast_from_hours_repeats_the_last_value_with_the_full_range():
    said = forecast(PastTraffic(step_s=STEP_S, values=np.asarray([10.0, 400.0, 100.0, 100.0])), 3)
    assert list(said.mean) == [100] * 3 and list(said.low) == [10] * 3 and list(said.high) == [400] * 3
    assert "2.0 hours are known" in said.why and said.tried == 0


def test_forecast_from_one_day_repeats_it_with_a_wide_interval():
    past = generated_traffic.days(1)
    said = forecast(past, 10)
    assert list(said.mean) == list(past.values[:10])
    assert said.tried == 0 and "only one day is known" in said.why
    assert said.high == pytest.approx(1.5 * said.mean)


def test_silent_stream_is_forecast_to_stay_silent():
    said = forecast(PastTraffic(step_s=STEP_S, values=np.zeros(10 * DAY)), DAY)
    assert not said.mean.any() and np.isfinite(said.high).all()


def test_fewer_days_make_a_wider_interval():
    ratios = np.asarray([0.8, 0.9, 1.0, 1.1, 1.2])
    widths = [high - low for low, high in (interval(ratios, days) for days in range(1, 9))]
    assert widths == sorted(widths, reverse=True) and widths[6] == widths[7]
    assert interval(np.zeros(0), 0) == (0.5, 1.5)


def test_interval_includes_the_forecast_even_if_all_past_days_were_higher():
    low, high = interval(np.asarray([1.2, 1.3, 1.4]), 3)
    assert low == 1 and high > 1.3


def test_single_member_uses_its_own_error_interval_and_reports_short_history():
    past = generated_traffic.days(10)
    said = calibrated("last-day", last_day, 1, past, DAY)
    assert list(said.mean) == list(past.values[-DAY:]) and said.tried == 7 and said.member == "last-day"
    short = calibrated("last-day", last_day, 1, generated_traffic.days(1), 4)
    assert short.why.startswith("last-day needs 2 days, 1 are known; only one day is known")
