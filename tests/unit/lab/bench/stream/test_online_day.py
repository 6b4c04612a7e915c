"""Daily traffic for the closed-loop benchmark, and its figures."""

import pytest

from springtide.domain.data.streams import StreamCounts
from springtide.domain.spec.online_job import OnlinePoint, OnlineState, OnlineTotals
from springtide_lab.bench.stream import online_day


def test_day_has_its_trough_at_night_and_its_peak_in_the_evening():
    share = online_day.day_shares(seed=1)
    day = [share(hour / 24) for hour in range(24)]
    assert 0.9 < max(day) <= 1.0 and 19 <= day.index(max(day)) <= 22 and day.index(min(day)) < 7
    assert 5 < max(day) / min(day) < 10
    before = [share(hour / 24 - 1) for hour in range(24)]
    assert before != day and abs(before.index(max(before)) - day.index(max(day))) <= 1


def test_previous_days_end_where_the_day_begins():
    share = online_day.day_shares(seed=2)
    steps = online_day.past(share, peak=100.0, midnight=1000.0, lasts_s=288.0)
    assert len(steps) == online_day.BEFORE * 144
    assert steps[-1].at + steps[-1].seconds == pytest.approx(1000.0)
    assert steps[-1].samples / steps[-1].seconds == pytest.approx(100 * share(-0.5 / 144))


def test_online_day_figures_compare_with_constant_workers():
    state = OnlineState(
        lag_s=1.0,
        slo_lag_s=1200.0,
        backlog=0,
        arriving=1.0,
        trained=1.0,
        utilization=0.5,
        totals=OnlineTotals(hours=24.0, violation=0.01, worker_hours=48.0, down_min=0.0),
        stream=StreamCounts(records=10),
    )
    point = OnlinePoint(
        at=0.0, arriving=100.0, trained=90.0, lag_s=0.0, backlog=0.0, workers=1, wanted=1, forecast=110.0, high=120.0
    )
    result = online_day.told(state, [point], 0, 500.0, 300.0)
    goals = {goal.id: goal for goal in result.goals}
    assert goals["online_violation"].met and goals["online_lost_or_repeated"].met
    assert goals["online_worker_hours_vs_adequate"].value == pytest.approx(48 / (4 * 24))
    assert any("10.0% off" in note for note in result.notes)
