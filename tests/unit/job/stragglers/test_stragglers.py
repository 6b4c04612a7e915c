"""Who is slow is told by its peers, robustly; every decision has its reason."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from springtide.domain.spec.job_spec import StragglerRules
from springtide.job.stragglers import stragglers
from springtide.job.stragglers.speed import WorkerPaces
from springtide.job.stragglers.stragglers import judge

RULES = StragglerRules()
paces = st.dictionaries(st.integers(0, 20), st.floats(1, 1e6), min_size=2, max_size=12)


def resized(paces, halvings=()):
    return [(one.rank, one.halvings) for one in judge(paces, dict(halvings), RULES).resizes]


@pytest.mark.parametrize("slow", [0.03, 0.25, 0.6])
def test_one_far_below_the_others_is_halved_until_it_has_a_quarter(slow):
    now = {0: 1000.0, 1: 1010.0, 2: slow * 1000, 3: 990.0}
    assert resized(now) == [(2, 1)]
    assert resized(now, {2: 1}.items()) == [(2, 2)]
    assert resized(now, {2: 2}.items()) == []


def test_a_crowd_is_measured_by_one_standard_that_few_cannot_move():
    now = {rank: 1000.0 + rank % 7 for rank in range(1000)} | {3: 300.0, 500: 10.0}
    assert resized(now) == [(3, 1), (500, 1)]


def test_the_reason_names_the_worker_its_pace_and_the_limit():
    judgement = judge({0: 1000.0, 1: 1000.0, 2: 30.0}, {}, RULES)
    assert "worker-2 trains 30 samples/s, 3% of its peers' median 1000 (slow below 700)" in judgement.why


def test_doing_nothing_has_a_reason_too():
    assert judge({0: 5.0}, {}, RULES).why == "1 workers were at work long enough: nobody to compare with"
    same = judge({0: 100.0, 1: 105.0}, {}, RULES)
    assert same.resizes == () and same.why == "2 workers at 100 to 105 samples/s: no lease needs another size"


def test_a_wide_spread_is_nobodys_fault():
    assert resized({0: 400.0, 1: 700.0, 2: 1000.0, 3: 1300.0, 4: 1600.0}) == []


def test_of_two_workers_the_slower_is_the_slow_one():
    assert resized({0: 1000.0, 1: 200.0}) == [(1, 1)]


def test_one_that_has_recovered_gets_its_leases_back_step_by_step():
    now = {0: 1000.0, 1: 1000.0, 2: 900.0}
    assert resized(now, {2: 2}.items()) == [(2, 1)]
    assert resized(now, {2: 1}.items()) == [(2, 0)]
    assert resized({**now, 2: 800.0}, {2: 1}.items()) == [], "between slow and recovered nothing changes"


@given(paces, st.floats(0.01, 100))
def test_only_ratios_matter(now, scale):
    close = [abs(pace - limit) < 1e-6 * pace for pace in now.values() for limit in limits(now)]
    if not any(close):
        assert resized(now) == resized({rank: pace * scale for rank, pace in now.items()})


@given(paces)
def test_never_is_the_fastest_halved_nor_most_of_the_workers(now):
    halved = resized(now)
    assert len(halved) <= len(now) // 2
    assert max(now, key=now.get) not in [rank for rank, _ in halved]


def limits(now):
    for rank in now:
        peers = sorted(pace for other, pace in now.items() if other != rank)
        middle = stragglers.median(peers)
        deviation = max(
            stragglers.NORMAL * stragglers.median(abs(peer - middle) for peer in peers), RULES.floor * middle
        )
        yield middle - RULES.deviations * deviation
        yield RULES.recovered * middle


def test_a_pace_is_that_of_the_window_and_time_without_leases_is_not_counted():
    looking = WorkerPaces(window_s=10)
    for second in range(31):
        looking.look({0: 100 * second, 1: 100 * second if second < 20 else 2000 + 10 * (second - 20)}, [0, 1], second)
    assert looking.judged() == {0: pytest.approx(100), 1: pytest.approx(10)}
    for second in range(31, 60):
        looking.look({0: 3000, 1: 2100}, [1], second)
    assert looking.known()[0] == pytest.approx(100), "it had nothing to do"
    assert looking.judged() == {1: 0.0}
    looking.forget(1)
    assert looking.known() == {0: pytest.approx(100)}


def test_a_worker_that_has_just_come_is_not_judged():
    looking = WorkerPaces(window_s=20)
    for second in range(8):
        looking.look({0: 100 * second}, [0, 1], second)
    assert looking.judged() == {}
    assert looking.known() == {0: 100.0, 1: 0.0}
