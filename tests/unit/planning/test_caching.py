import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.planning import caching
from springtide.planning.caching import Measured

BUSY = Measured(
    step_s=0.1, waited_s=0.06, saved=0.5, schedule_s=0.003, read_s=0.002, workers=4, deaths=0, watched_s=600.0,
    checkpoint_s=30.0, saved_once=True, return_s=10.0,
)  # fmt: skip


def but(**changed):
    return dataclasses.replace(BUSY, **changed)


def test_a_group_that_waits_for_its_servers_gets_a_cache_with_the_figures():
    verdict = caching.decide(BUSY)
    assert verdict.on
    assert "pulls and pushes take 60% of a step" in verdict.why
    assert "spares 50% of what is sent: 30% of a step gained" in verdict.why
    assert "each 25 s" in verdict.why


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (dict(waited_s=0.004), "take 4% of a step: a cache could not spare more"),
        (dict(saved=0.05), "wanted 5% net"),
        (dict(checkpoint_s=None), "there are no checkpoints"),
        (dict(saved_once=False), "the first checkpoint is not complete yet"),
        (dict(deaths=120), "lost to deaths"),
        (dict(read_s=0.03), "wanted 5% net"),
        (dict(schedule_s=0.12), "wanted 5% net"),
    ],
)
def test_it_gets_none_where_that_would_not_pay_and_the_reason_is_said(changed, why):
    verdict = caching.decide(but(**changed))
    assert not verdict.on and why in verdict.why


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50), st.floats(1, 600))
def test_more_saved_never_turns_it_off_and_more_deaths_or_older_checkpoints_never_on(saved, more, deaths, every):
    less, best = sorted((saved, more))
    if caching.decide(but(saved=less, deaths=deaths, checkpoint_s=every)).on:
        assert caching.decide(but(saved=best, deaths=deaths, checkpoint_s=every)).on
    if not caching.decide(but(saved=best, deaths=deaths, checkpoint_s=every)).on:
        assert not caching.decide(but(saved=best, deaths=deaths + 10, checkpoint_s=every)).on
        assert not caching.decide(but(saved=best, deaths=deaths, checkpoint_s=2 * every)).on


def test_a_worker_is_thought_to_die_once_a_month_until_something_is_seen():
    quiet = caching.death_rate(but(deaths=0, watched_s=0.0))
    assert quiet == pytest.approx(4 / (30 * 86400))
    assert caching.death_rate(but(deaths=3, watched_s=3600.0)) > 100 * quiet


def test_steps_that_became_longer_give_it_up():
    assert caching.keep(0.1, 0.08, "sums") == caching.Verdict(
        True, "a step took 100.0 ms without a cache and 80.0 ms with it; sums"
    )
    assert not caching.keep(0.1, 0.11, "").on
