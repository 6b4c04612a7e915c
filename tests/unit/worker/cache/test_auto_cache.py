"""The lowest rank decides whether a cache pays: watch, paper schedule, start, check again."""

import dataclasses
from collections import deque

import pytest

from springtide.domain.plan.profile import StepTiming
from springtide.planning.guards.cache_benefit import CrashRisk
from springtide.worker.cache import auto_cache
from springtide.worker.cache.auto_cache import CacheDecision, CacheTraffic, DecisionProbes

RISK = CrashRisk(workers=4, deaths=0, watched_s=100.0, checkpoint_s=30.0, saved_once=True, return_s=5.0)
FIRST = auto_cache.COLD + auto_cache.WATCHED  # steps of the first look


def step(total_s=0.1, waited_s=0.06):
    times = dict.fromkeys(("data_s", "forward_s", "backward_s", "gradient_s", "update_s", "synchronization_s"), 0.0)
    return StepTiming(
        samples=1, total_s=total_s, pull_wait_s=waited_s / 2, push_wait_s=waited_s / 2, lookup_s=0.0, **times
    )


class Paper:
    """A paper schedule that saves half of the traffic once it is warm."""

    def __init__(self, with_caches=100):
        self.with_caches, self.seen = with_caches, 0

    def __call__(self, features, samples):
        self.seen += 1
        return CacheTraffic(200 if self.seen <= auto_cache.TRIED // 2 else self.with_caches, 200)


def watch(one, times, count, *, on=False):
    """Observe this many steps; return the resulting cache requests."""
    wishes = []
    for _ in range(count):
        times.append(times[-1])
        if one.trying:
            one.observe([], 10)
        one.stepped(on=on)
        wishes.append(one.wish)
    return [wish for wish in wishes if wish is not None]


def make_decision(times, paper=None, trip_s=0.0):
    one = CacheDecision(times, DecisionProbes(lambda: RISK, lambda: 0, lambda: paper or Paper(), lambda: trip_s))
    one.note_read(0.001)
    return one


def decision_to_cache(times, **how):
    """One that has just wished for a cache."""
    one = make_decision(times, **how)
    assert watch(one, times, FIRST + auto_cache.TRIED + 1) == [True]
    return one


def probe(one, **probes):
    one._probes = one._probes._replace(**probes)


def test_auto_cache_starts_after_a_paper_schedule_and_stays_when_it_helps():
    times = deque([step()], maxlen=4096)
    one = make_decision(times)
    assert watch(one, times, FIRST) == [] and one.trying
    assert watch(one, times, auto_cache.TRIED + 1) == [True]
    assert "spares 50% of the bytes" in one.why
    times.append(step(total_s=0.07))
    assert watch(one, times, auto_cache.WARM + auto_cache.WATCHED + 1, on=True) == []
    assert "a step took 100.0 ms without a cache and 70.0 ms with it" in one.why


def test_auto_cache_stops_when_steps_get_longer_and_remembers_the_cost():
    times = deque([step()], maxlen=4096)
    one = decision_to_cache(times)
    times.append(step(total_s=0.13))
    assert watch(one, times, auto_cache.WARM + auto_cache.WATCHED + 1, on=True) == [False]
    assert "130.0 ms with it" in one.why
    times.append(step())
    assert watch(one, times, 2 * auto_cache.AGAIN + auto_cache.WATCHED + auto_cache.TRIED + 2) == []
    assert "costs 30%: 0% of a step gained" in one.why, "half of the 60 ms that it was dearer than reckoned"


def test_auto_cache_that_does_not_pay_is_retried_less_and_less_often():
    times = deque([step()], maxlen=4096)
    one, waits = decision_to_cache(times), []
    for _ in range(7):
        times.append(step(total_s=0.1001))
        assert watch(one, times, auto_cache.WARM + auto_cache.WATCHED + 1, on=True) == [False]
        one._unseen_s, rested = 0.0, 0
        times.append(step())
        while watch(one, times, 1) != [True]:
            rested += 1
        waits.append(rested - auto_cache.WATCHED - auto_cache.TRIED)
    assert waits == [pytest.approx(auto_cache.AGAIN * times, abs=4) for times in (2, 4, 8, 16, 16, 16, 16)]


def test_auto_cache_stops_when_it_no_longer_pays():
    times = deque([step()], maxlen=4096)
    one = decision_to_cache(times)
    times.append(step(total_s=0.07))
    assert watch(one, times, auto_cache.WARM + 2 * auto_cache.AGAIN, on=True) == [] and one.pays
    assert one.why.count("a step took") == 1 and "spares 50%" in one.why
    times.append(step(total_s=0.12))
    assert watch(one, times, auto_cache.AGAIN, on=True) == [False]
    assert "120.0 ms with it" in one.why


def test_auto_cache_counts_longer_steps_during_paper_scheduling_as_cost():
    times = deque([step()], maxlen=4096)
    one = make_decision(times)
    watch(one, times, FIRST)
    times.append(step(total_s=0.128))
    assert watch(one, times, auto_cache.TRIED + 1) == []
    assert "spares 50% of the bytes and costs 28%: 2% of a step gained" in one.why


def test_auto_cache_counts_remaining_round_trips_and_uncached_bytes_as_not_saved():
    times = deque([step()], maxlen=4096)
    one = decision_to_cache(times, trip_s=0.004)
    assert "12% of the step for round trips that remain" in one.why and "24% of a step gained" in one.why
    times = deque([step()])
    one = make_decision(times)
    probe(one, moved=lambda: 500 * len(times))
    assert watch(one, times, FIRST + auto_cache.TRIED + 1) == [True]
    assert "spares 20% of the bytes" in one.why, "100 of the 500 that this rank moved a step"


def test_auto_cache_ignores_rare_outlier_steps():
    times = deque([step()], maxlen=4096)
    one = decision_to_cache(times)
    times.append(step(total_s=0.07))
    watch(one, times, auto_cache.WARM + auto_cache.WATCHED - 3, on=True)
    times.extend(step(total_s=9.0) for _ in range(3))
    watch(one, times, 1, on=True)
    times.append(step(total_s=0.07))
    assert watch(one, times, 5, on=True) == [] and one.pays


@pytest.mark.parametrize(
    ("timing", "paper", "why"),
    [
        (step(waited_s=0.002), None, "a cache could not spare more"),
        (step(), Paper(with_caches=195), "must gain 5% net"),
        (step(), Paper(with_caches=260), "spares -30% of the bytes"),
    ],
)
def test_auto_cache_that_would_not_pay_stays_off_and_is_checked_again(timing, paper, why):
    times = deque([timing], maxlen=4096)
    one = make_decision(times, paper=paper)
    assert watch(one, times, FIRST + auto_cache.TRIED + 1) == []
    assert why in one.why and not one.trying
    times.append(step())
    assert any(one.trying or watch(one, times, 1) for _ in range(auto_cache.AGAIN + auto_cache.WATCHED + 1))


def test_regrouped_auto_cache_keeps_its_decision_unless_the_group_size_changes():
    times = deque([step()], maxlen=4096)
    one = make_decision(times)
    one.regrouped()
    assert one.wish is None
    watch(one, times, FIRST + auto_cache.TRIED + 2)
    one.regrouped()
    assert one.wish is True
    probe(one, risk=lambda: dataclasses.replace(RISK, workers=5))
    one.regrouped()
    assert one.wish is None and not one.pays
