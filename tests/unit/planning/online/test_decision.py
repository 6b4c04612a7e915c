"""The number of workers an online job should have now, and why."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.spec.online_job import OnlineRules, OnlineView, TrafficOutlook
from springtide.planning.online.decision import WORTH, decide, due, lag_worth

RULES = OnlineRules(most=8, pause_s=600.0, lag_price=6.0)
CAPACITY = tuple(100.0 * workers for workers in range(9))


def outlook(*traffic, spread=1.1):
    mean = tuple(map(float, traffic))
    return TrafficOutlook(
        step_s=600.0, mean=mean, high=tuple(spread * one for one in mean), why="as on the days before"
    )


def view(**changes):
    usual = OnlineView(
        at=0.0,
        workers=4,
        backlog=0.0,
        lag_s=0.0,
        arrivals=250.0,
        utilization=0.6,
        outlook=outlook(*[250.0] * 48),
        capacity=CAPACITY,
    )
    return replace(usual, **changes)


def test_decision_to_stay_has_a_reason():
    said = decide(view(arrivals=330.0, outlook=outlook(*[330.0] * 48)), RULES)
    assert said.workers == 4 and said.why.startswith("4 workers stay") and "as on the days before" in said.why
    assert said.plan[0] == 4 and not said.alert


def test_expected_rise_is_met_before_it_arrives():
    rising = outlook(420.0, *[500.0] * 4, *[700.0] * 43)
    said = decide(view(arrivals=380.0, outlook=rising), RULES)
    assert said.workers > 4 and said.why.startswith(f"from 4 to {said.workers} workers")
    assert "700 at most are expected" in said.why


def test_change_planned_for_later_is_reported():
    said = decide(view(workers=3, arrivals=200.0, outlook=outlook(*[200.0] * 12, *[650.0] * 36)), RULES)
    assert said.workers == 3 and "planned in" in said.why and max(said.plan) >= 7


def test_no_change_starts_while_one_is_in_progress():
    said = decide(view(pausing=True, workers=7), RULES)
    assert said.workers == 7 and "under way" in said.why
    assert not due(view(pausing=True), RULES, planned_at=-1e9)


def test_workers_are_kept_within_bounds():
    assert decide(view(workers=12), RULES).workers == 8
    assert decide(view(workers=1), replace(RULES, fewest=2)).workers == 2
    with pytest.raises(errors.BadInput, match="expected values up to 9 workers"):
        decide(view(), replace(RULES, most=9))


def test_traffic_beyond_any_worker_count_raises_an_alert():
    said = decide(view(workers=8, arrivals=900.0, outlook=outlook(*[900.0] * 48)), RULES)
    assert said.workers == 8 and said.alert.startswith("cannot keep up: 900 samples/s come, 8 workers train 800")
    ahead = decide(view(workers=8, arrivals=700.0, outlook=outlook(*[900.0] * 48)), RULES)
    assert ahead.alert.startswith("cannot keep up: 900 samples/s are expected")


def test_worker_count_stays_at_the_peak_of_a_falling_capacity_curve():
    falls = (0.0, 100.0, 180.0, 240.0, 280.0, 300.0, 290.0, 280.0, 270.0)
    said = decide(view(workers=4, arrivals=350.0, capacity=falls, outlook=outlook(*[350.0] * 48)), RULES)
    assert said.workers == 5 and "5 workers train 300 at most" in said.alert


def test_unforeseen_traffic_with_a_backlog_overrides_the_forecast():
    surprised = view(
        workers=2, arrivals=600.0, backlog=360_000.0, lag_s=700.0, utilization=1.0, outlook=outlook(*[150.0] * 48)
    )
    said = decide(surprised, RULES)
    assert said.workers > 6 and "the forecast was wrong" in said.why
    calm = replace(surprised, utilization=0.5)
    assert due(surprised, RULES, planned_at=-60.0) and not due(calm, RULES, planned_at=-60.0)
    assert due(calm, RULES, planned_at=-600.0) and not due(surprised, RULES, planned_at=-59.0)


def test_lag_costs_more_where_scaling_can_save_less():
    """Arguments are mean and peak need; a mean of half the peak is the reference."""
    assert lag_worth(10, 20, 0.1) == pytest.approx(1)
    broad, usual, steep = lag_worth(18, 30, 0.1), lag_worth(14, 28, 0.1), lag_worth(13, 28, 0.1)
    assert broad == pytest.approx(1.5**1.5) and broad > usual > steep
    assert lag_worth(10, 10, 0.0) == WORTH[1] and lag_worth(1, 28, 0.1) == WORTH[0], "within bounds"


def test_unpredictable_peak_does_not_set_the_price_of_lag():
    assert lag_worth(18, 28, 0.4) == lag_worth(18, 28, 0.05) > lag_worth(18, 28, 0.5) > lag_worth(18, 28, 0.6)


def test_unlikely_high_forecast_keeps_no_extra_workers():
    """For highs of two to four times the mean, workers are added only when the traffic comes."""
    near, *far = (
        sum(decide(view(workers=3, arrivals=120.0, outlook=outlook(*[120.0] * 48, spread=spread)), cheap).plan)
        for cheap in [replace(RULES, lag_price=1.5)]
        for spread in (1.2, 2.0, 2.5, 3.0, 4.0)
    )
    assert far == [near] * 4


def test_catch_up_workers_are_added_on_a_flat_day_but_not_before_a_peak():
    """The same in the next hours and the same need on average; one has its peak tonight, the other has none."""
    waits = {"workers": 3, "backlog": 90_000.0, "lag_s": 360.0, "arrivals": 250.0}
    planned = [
        sum(
            decide(
                view(**waits, outlook=outlook(*[250.0] * 96, *later)), replace(RULES, lag_price=price, pause_s=0.0)
            ).plan
        )
        for later in ([250.0] * 48, [50.0] * 30 + [750.0] * 18)
        for price in (0.5, 1.0, 2.0, 4.0)
    ]
    broad, steep = planned[:4], planned[4:]
    assert all(one >= other for one, other in zip(broad, steep, strict=True)) and sum(broad) > sum(steep)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 8),
    st.floats(0, 1e6),
    st.lists(st.floats(0, 2000), min_size=1, max_size=60),
    st.floats(0, 2000),
    st.sampled_from([0.0, 30.0, 600.0]),
)
def test_decision_is_within_bounds_and_has_a_reason_for_any_input(workers, backlog, traffic, arrivals, pause_s):
    said = decide(
        view(workers=workers, backlog=backlog, arrivals=arrivals, outlook=outlook(*traffic)),
        replace(RULES, pause_s=pause_s),
    )
    assert 1 <= said.workers <= 8 and said.why and said.plan[0] == said.workers
