"""Past traffic in equal steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.online.traffic import DAY_S, KEPT_S, TrafficBucket, TrafficHistory

HOUR_S = 3600.0


def test_traffic_steps_are_means_and_only_complete_ones_count():
    traffic = TrafficHistory(step_s=HOUR_S)
    assert traffic.history(at=100 * HOUR_S) is None
    closed = traffic.arrive(10 * HOUR_S, 10.5 * HOUR_S, 1800)
    closed += traffic.arrive(10.5 * HOUR_S, 12.5 * HOUR_S, 7200)
    assert [step.number for step in closed] == [10, 11]
    history = traffic.history(at=12.5 * HOUR_S)
    assert history.values.tolist() == pytest.approx([1.0, 1.0])


@given(st.lists(st.tuples(st.floats(0.1, 7200), st.integers(0, 10_000)), min_size=1, max_size=60))
def test_traffic_samples_are_conserved(pieces):
    traffic, at, total = TrafficHistory(step_s=600), 123_456.0, 0
    for seconds, samples in pieces:
        traffic.arrive(at, at + seconds, samples)
        at, total = at + seconds, total + samples
    assert sum(step.samples for step in traffic.steps.values()) == pytest.approx(total)
    assert sum(step.seconds for step in traffic.steps.values()) == pytest.approx(at - 123_456.0)


def test_unobserved_traffic_is_shaped_like_the_previous_day():
    traffic = TrafficHistory(step_s=HOUR_S)
    for hour in range(24):
        traffic.arrive(hour * HOUR_S, (hour + 1) * HOUR_S, 1000 if hour < 12 else 3000)
    traffic.arrive(24 * HOUR_S, 48 * HOUR_S, 96_000)
    values = traffic.history(at=48 * HOUR_S).values * HOUR_S
    assert values[24:36] == pytest.approx(np.full(12, 2000.0))
    assert values[36:48] == pytest.approx(np.full(12, 6000.0))


def test_barely_observed_step_is_unknown():
    traffic = TrafficHistory(step_s=HOUR_S)
    traffic.put(TrafficBucket(hour, 3600.0 * hour, HOUR_S) for hour in range(24) if hour != 5)
    traffic.put([TrafficBucket(30, 0.0, 10.0)])  # hardly looked at
    values = traffic.history(at=31 * HOUR_S).values
    assert len(values) == 31 and np.flatnonzero(np.isnan(values)).tolist() == [5, *range(24, 31)]
    assert traffic.history(at=31 * HOUR_S).filled().values[5] == pytest.approx(5.0)


def test_history_keeps_only_weeks_and_restarts_after_a_large_clock_jump():
    traffic = TrafficHistory(step_s=HOUR_S)
    for day in range(40):
        traffic.arrive(day * DAY_S, (day + 1) * DAY_S, DAY_S)
    assert len(traffic.steps) == pytest.approx(KEPT_S / HOUR_S, abs=2)
    traffic.arrive(40 * DAY_S, 4000 * DAY_S, 1e9)
    assert len(traffic.steps) <= 1 and traffic.arrive(5.0, 5.0, 3) == []


def test_step_that_does_not_divide_a_day_is_refused():
    with pytest.raises(errors.BadInput, match="a day is a multiple of"):
        TrafficHistory(step_s=7000.0)
