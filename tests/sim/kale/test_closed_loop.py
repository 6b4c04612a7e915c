"""A job in virtual time that learns its workers' capacity."""

import numpy as np
import pytest

from springtide.domain.spec.online_job import OnlineRules
from springtide_lab.bench.stream import online_day
from tests.sim.kale.virtual_day import Truth, play

SPEEDUP = 288.0


def play_day(truth, *, seed=9, rules=None):
    share, peak = online_day.day_shares(seed), 3.2 * truth.most(1)
    before = np.asarray([peak * share((0.5 - back) / 144) for back in range(7 * 144, 0, -1)])
    return play(
        lambda now: peak * share(now * SPEEDUP / 86_400),
        before,
        truth,
        rules or OnlineRules(most=4),
        speedup=SPEEDUP,
        seed=seed,
    )


@pytest.mark.parametrize(
    "truth",
    [
        Truth(pace=775.0),  # a step costs the same whatever is in it, and rested workers look seven times as quick
        pytest.param(Truth(pace=775.0, at_all=0.3, gets_in_the_way=0.03), marks=pytest.mark.soak),
        pytest.param(Truth(pace=775.0, at_all=0.6, quota=1.0), marks=pytest.mark.soak),
    ],
)
def test_closed_loop_learns_worker_capacity_and_keeps_the_slo(truth):
    found = play_day(truth)
    assert found.kept.violation <= 0.026
    assert found.kept.worker_hours <= 1.1 * found.needed_hours
    assert found.scalings <= 12, "it goes up and down with the day, not to and fro"
    assert found.capacity == pytest.approx([truth.most(workers) if workers else 0 for workers in range(5)], rel=0.15)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_planner_keeps_the_slo_on_other_days(seed):
    assert play_day(Truth(pace=775.0), seed=seed).kept.violation <= 0.026
