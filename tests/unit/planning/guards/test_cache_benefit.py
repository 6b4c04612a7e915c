import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.planning.guards import cache_benefit
from springtide.planning.guards.cache_benefit import CacheMeasurement, CrashRisk

RISK = CrashRisk(workers=4, deaths=0, watched_s=600.0, checkpoint_s=30.0, saved_once=True, return_s=10.0)
BUSY = CacheMeasurement(
    step_s=0.1,
    waited_s=0.06,
    trips_s=0.002,
    saved=0.5,
    slower_s=0.001,
    unseen_s=0.0,
    beside_s=0.011,
    risk=RISK,
)


def busy_with(**changed):
    """The busy case with changed figures or risks."""
    risky = {name: changed.pop(name) for name in list(changed) if hasattr(RISK, name)}
    return dataclasses.replace(BUSY, risk=dataclasses.replace(RISK, **risky), **changed)


def test_group_waiting_for_its_servers_gets_a_cache_with_the_figures():
    verdict = cache_benefit.decide(BUSY)
    assert verdict.on
    assert "pulls and pushes take 60% of a step, 2% of the step for round trips that remain" in verdict.why
    assert "spares 50% of the bytes and costs 1%: 28% of a step gained" in verdict.why
    assert "each costs 25 s, of which 10 s for the return" in verdict.why


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (dict(waited_s=0.004), "take 4% of a step: a cache could not spare more"),
        (
            dict(trips_s=0.056),
            "take 60% of a step, 56% of the step for round trips that remain: a cache could not spare more",
        ),
        (dict(saved=0.05), "must gain 5% net"),
        (dict(saved=-0.4), "spares -40% of the bytes and costs 1%: -24% of a step gained"),
        (dict(slower_s=0.025), "costs 25%: 4% of a step gained"),
        (dict(unseen_s=0.025), "costs 26%: 3% of a step gained"),
        (dict(checkpoint_s=None), "there are no checkpoints"),
        (dict(saved_once=False), "the first checkpoint is not complete yet"),
        (dict(deaths=120), "lost to deaths"),
        (dict(beside_s=0.12), "must gain 5% net"),
    ],
)
def test_unprofitable_cache_is_refused_with_a_reason(changed, why):
    verdict = cache_benefit.decide(busy_with(**changed))
    assert not verdict.on and why in verdict.why


def test_cache_is_refused_when_waits_are_for_the_local_cpu():
    """Steps of 40 ms wait 13%, a third of it round trips; every rank's schedule takes the same cores for 4 ms."""
    verdict = cache_benefit.decide(busy_with(step_s=0.04, waited_s=0.0052, trips_s=0.0018, saved=0.64, slower_s=0.004))
    assert not verdict.on
    assert (
        "take 13% of a step, 4% of the step for round trips" in verdict.why
        and "costs 10%: -5% of a step gained" in verdict.why
    )


@given(st.floats(0, 0.1), st.floats(0, 0.1), st.floats(0, 0.1))
def test_higher_cache_cost_never_turns_the_cache_on(trips, slower, unseen):
    if not cache_benefit.decide(busy_with(trips_s=trips)).on:
        more = {"slower_s": BUSY.slower_s + slower, "unseen_s": BUSY.unseen_s + unseen}
        assert not cache_benefit.decide(busy_with(trips_s=trips, **more)).on
    if not cache_benefit.decide(busy_with(slower_s=slower)).on:
        assert not cache_benefit.decide(busy_with(trips_s=trips + BUSY.trips_s, slower_s=slower)).on


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50), st.floats(1, 600))
def test_cache_decision_is_monotonic_in_savings_deaths_and_checkpoint_age(saved, more, deaths, every):
    less, best = sorted((saved, more))
    if cache_benefit.decide(busy_with(saved=less, deaths=deaths, checkpoint_s=every)).on:
        assert cache_benefit.decide(busy_with(saved=best, deaths=deaths, checkpoint_s=every)).on
    if not cache_benefit.decide(busy_with(saved=best, deaths=deaths, checkpoint_s=every)).on:
        assert not cache_benefit.decide(busy_with(saved=best, deaths=deaths + 10, checkpoint_s=every)).on
        assert not cache_benefit.decide(busy_with(saved=best, deaths=deaths, checkpoint_s=2 * every)).on


def test_worker_death_rate_defaults_to_one_a_month():
    quiet = cache_benefit.death_rate(dataclasses.replace(RISK, watched_s=0.0))
    assert quiet == pytest.approx(4 / (30 * 86400))
    assert cache_benefit.death_rate(dataclasses.replace(RISK, deaths=3, watched_s=3600.0)) > 100 * quiet


def test_cache_is_kept_where_steps_gain_more_than_deaths_cost():
    assert cache_benefit.keep(0.1, 0.08, RISK, "sums") == cache_benefit.CacheVerdict(
        True, "a step took 100.0 ms without a cache and 80.0 ms with it; sums"
    )
    assert not cache_benefit.keep(0.1, 0.101, RISK, "").on
    assert not cache_benefit.keep(0.1, 0.1, RISK, "").on
    deadly = dataclasses.replace(RISK, deaths=120)
    assert not cache_benefit.keep(0.1, 0.08, deadly, "").on
    assert "of the time is lost to deaths" in cache_benefit.keep(0.1, 0.08, deadly, "").why
