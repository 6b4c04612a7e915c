"""Plan the workers of each coming step when changes pause or slow the job."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.planning.online.decision import (
    DRAINS,
    NEARLY,
    ChangeEffect,
    Horizon,
    HorizonPrices,
    WorkerPlan,
    plan,
)

STEP_S = 600.0
CAPACITY = np.arange(9) * 100.0
SLO_S, LAG, LATE, CHANGE = 1200.0, 8.0, 24.0, 1.0
PAUSING, LIVE = ChangeEffect(600.0, 60.0), ChangeEffect(0.0, 60.0)


def prices(lag=8.0, change=1.0, again=np.inf, known=0):
    return HorizonPrices(slo_s=1200.0, lag=lag, late=24.0, change=change, again=again, known=known)


def plan_horizon(traffic, *, workers, backlog=0.0, doing=PAUSING, at=None) -> WorkerPlan:
    versions = np.atleast_2d(np.asarray(traffic, dtype=float))
    shares = np.full(len(versions), 1 / len(versions))
    ahead = Horizon(step_s=STEP_S, traffic=versions, shares=shares, workers=workers, backlog=backlog, capacity=CAPACITY)
    return plan(ahead, fewest=1, prices=at or prices(), doing=doing)


def cost_of(chosen, traffic, *, workers, backlog, doing):
    """The same by hand, a version at a time."""
    whole = 0.0
    for version in np.atleast_2d(traffic):
        cost, waits, now, left = 0.0, backlog, workers, 0.0
        for want, arrive in zip(chosen, version, strict=True):
            slower = CAPACITY[want]
            if want != now:
                cost += CHANGE
                left = doing.pause_s or min(doing.start_s, STEP_S)
                slower = 0.0 if doing.pause_s else min(CAPACITY[now], CAPACITY[want])
            elif doing.pause_s:
                slower = 0.0
            lost = min(left, STEP_S)
            lag_before, now, left = waits / max(arrive, 1e-9), want, left - lost
            waits = max(0.0, waits + arrive * STEP_S - CAPACITY[want] * (STEP_S - lost) - slower * lost)
            lag = waits / max(arrive, 1e-9)
            cost += want + LAG * (lag_before + lag) / 2 / SLO_S
            cost += LATE * (lag > NEARLY * SLO_S)
        whole += cost + lag**2 * LAG / (2 * DRAINS * SLO_S * STEP_S)
    return whole / len(np.atleast_2d(traffic))


TRAFFICS = st.lists(st.floats(10, 790), min_size=6, max_size=24)


@settings(deadline=None, max_examples=40)
@given(TRAFFICS, st.integers(1, 8), st.floats(0, 3e5), st.sampled_from([PAUSING, LIVE, ChangeEffect(900.0, 60.0)]))
def test_plan_cost_matches_the_manual_cost_and_never_exceeds_no_change(traffic, workers, backlog, doing):
    versions = np.asarray([traffic, [1.2 * one for one in traffic]])
    found = plan_horizon(versions, workers=workers, backlog=backlog, doing=doing)
    by_hand = cost_of(found.workers.tolist(), versions, workers=workers, backlog=backlog, doing=doing)
    assert found.cost == pytest.approx(by_hand)
    stay = cost_of([workers] * len(traffic), versions, workers=workers, backlog=backlog, doing=doing)
    assert found.cost <= stay + 1e-6


def test_workers_are_added_early_when_scaling_pauses_the_job():
    traffic = [200.0] * 6 + [220.0, 280.0, 360.0, 460.0, 560.0, 650.0] + [700.0] * 12
    found = plan_horizon(traffic, workers=3, at=prices(lag=40.0))
    short = next(step for step, one in enumerate(traffic) if one > CAPACITY[3])
    assert next(step for step, one in enumerate(found.workers) if one > 3) < short
    assert len(set(found.workers.tolist())) <= 4, "few changes, not one a worker"


def test_workers_follow_traffic_when_changes_are_cheap():
    traffic = 400 + 300 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    found = plan_horizon(traffic, workers=5, doing=LIVE, at=prices(change=0.01))
    fewest = np.searchsorted(CAPACITY, traffic, side="right")
    assert np.abs(found.workers - fewest).max() <= 2 and found.workers.sum() <= fewest.sum() * 1.15


def test_short_peak_is_queued_and_a_backlog_is_worked_off():
    assert set(plan_horizon([250.0] * 6 + [330.0] + [250.0] * 17, workers=3).workers.tolist()) == {3}
    assert plan_horizon([290.0] * 24, workers=3, backlog=400_000.0).workers[0] > 3


def test_high_scenario_detected_in_time_needs_no_permanent_workers():
    versions = [[150.0] * 24, [700.0] * 24]
    bound = plan_horizon(versions, workers=2).workers
    free = plan_horizon(versions, workers=2, at=prices(again=10.0, known=3)).workers
    assert bound.max() == 8 and set(free.tolist()) == {2}
    soon = plan_horizon([[150.0] * 24, [190.0] * 24], workers=2, at=prices(again=10.0, known=3))
    assert soon.workers.tolist() == [2] * 24


@settings(deadline=None, max_examples=30)
@given(TRAFFICS, st.integers(1, 8), st.floats(0, 50), st.integers(0, 6))
def test_option_to_replan_is_worthless_when_traffic_is_certain_or_changes_dear(traffic, workers, again, known):
    sure = plan_horizon(traffic, workers=workers)
    free = plan_horizon(traffic, workers=workers, at=prices(again=again, known=known))
    assert free.workers.tolist() == sure.workers.tolist() and free.cost == sure.cost
    versions = np.asarray([traffic, [1.5 * one for one in traffic]])
    bound = plan_horizon(versions, workers=workers)
    dear = plan_horizon(versions, workers=workers, at=prices(again=1e9, known=known))
    assert dear.workers.tolist() == bound.workers.tolist() and dear.cost == bound.cost
