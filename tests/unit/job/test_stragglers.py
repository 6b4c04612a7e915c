"""Robust straggler detection among peers; every decision has a reason."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from springtide.domain.data.leases import ShrinkRequest
from springtide.domain.spec.job_spec import StragglerRules
from springtide.job import stragglers
from springtide.job.stragglers import (
    FAST_AFTER,
    SILENT_AFTER,
    SLOW_AFTER,
    LeaseLoad,
    PaceStandard,
    SlowMark,
    WorkerPaces,
    compare,
    judge,
    slow_workers,
    update_marks,
)

RULES = StragglerRules()
paces = st.dictionaries(st.integers(0, 20), st.floats(1, 1e6), min_size=2, max_size=12)


def resizes_for(paces, halvings=()):
    return [(one.rank, one.halvings) for one in judge(paces, dict(halvings), RULES).resizes]


@pytest.mark.parametrize("slow", [0.03, 0.25, 0.6])
def test_far_slower_workers_leases_are_halved_down_to_a_quarter(slow):
    now = {0: 1000.0, 1: 1010.0, 2: slow * 1000, 3: 990.0}
    assert resizes_for(now) == [(2, 1)]
    assert resizes_for(now, {2: 1}.items()) == [(2, 2)]
    assert resizes_for(now, {2: 2}.items()) == []


def test_many_workers_are_compared_with_a_robust_standard():
    now = {rank: 1000.0 + rank % 7 for rank in range(1000)} | {3: 300.0, 500: 10.0}
    assert resizes_for(now) == [(3, 1), (500, 1)]


def test_reason_names_the_worker_its_pace_and_the_limit():
    judgement = judge({0: 1000.0, 1: 1000.0, 2: 30.0}, {}, RULES)
    assert "worker-2 trains 30 samples/s, 3% of its peers' median 1000 (slow below 700)" in judgement.why


def test_unchanged_lease_sizes_have_a_reason():
    assert judge({0: 5.0}, {}, RULES).why == "1 workers have trained long enough, and a comparison needs 2"
    same = judge({0: 100.0, 1: 105.0}, {}, RULES)
    assert same.resizes == () and same.why == "2 workers at 100 to 105 samples/s: no lease needs another size"


def test_wide_spread_marks_no_worker_slow():
    assert resizes_for({0: 400.0, 1: 700.0, 2: 1000.0, 3: 1300.0, 4: 1600.0}) == []


def test_slower_of_two_workers_can_be_the_straggler():
    assert resizes_for({0: 1000.0, 1: 200.0}) == [(1, 1)]


def test_recovered_worker_regains_its_lease_size_stepwise():
    now = {0: 1000.0, 1: 1000.0, 2: 900.0}
    assert resizes_for(now, {2: 2}.items()) == [(2, 1)]
    assert resizes_for(now, {2: 1}.items()) == [(2, 0)]
    assert resizes_for({**now, 2: 800.0}, {2: 1}.items()) == [], "between slow and recovered nothing changes"


@given(paces, st.floats(0.01, 100))
def test_straggler_detection_depends_only_on_ratios(now, scale):
    close = [abs(pace - limit) < 1e-6 * pace for pace in now.values() for limit in limits(now)]
    if not any(close):
        assert resizes_for(now) == resizes_for({rank: pace * scale for rank, pace in now.items()})


@given(paces)
def test_fastest_worker_and_most_workers_are_never_halved(now):
    halved = resizes_for(now)
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


def test_pace_covers_the_window_without_time_lacking_leases():
    looking = WorkerPaces(window_s=10)
    for second in range(31):
        looking.observe(
            {0: 100 * second, 1: 100 * second if second < 20 else 2000 + 10 * (second - 20)}, [0, 1], second
        )
    assert looking.comparable() == {0: pytest.approx(100), 1: pytest.approx(10)}
    for second in range(31, 60):
        looking.observe({0: 3000, 1: 2100}, [1], second)
    assert looking.known()[0] == pytest.approx(100), "it had nothing to do"
    assert looking.comparable() == {1: 0.0}
    looking.forget(1)
    assert looking.known() == {0: pytest.approx(100)}


def test_new_worker_is_not_judged():
    looking = WorkerPaces(window_s=20)
    for second in range(8):
        looking.observe({0: 100 * second}, [0, 1], second)
    assert looking.comparable() == {}
    assert looking.known() == {0: 100.0, 1: 0.0}


def holding(rank, offset, end, shard=0, first=0, batch=10):
    return LeaseLoad(rank=rank, shard=shard, first=first, offset=offset, end=end, batch=batch)


def test_slow_holder_keeps_a_lease_it_finishes_with_the_others():
    cuts = stragglers.level_leases([holding(0, 0, 1000)], {0: 10.0, 1: 90.0}, [0, 1])
    assert [(cut.rank, cut.wish) for cut in cuts] == [(0, ShrinkRequest(0, 0, 100))]
    assert (
        cuts[0].why == "worker-0 needs 100.0 s for its leases; all workers together need 10.0 s for all leases, "
        "so other workers take the rest"
    )


def test_last_leases_are_shortened_first():
    held = [holding(0, 40, 100, shard=1), holding(0, 0, 100, shard=2), holding(0, 0, 100, shard=3)]
    cuts = stragglers.level_leases(
        held, {0: 10.0, 1: 16.0}, [0, 1]
    )  # 260 samples at 26/s: ten seconds, a hundred samples
    assert [cut.wish for cut in cuts] == [ShrinkRequest(2, 0, 40), ShrinkRequest(3, 0, 0)]


def test_lease_is_not_shortened_for_less_gain_than_a_reply_costs():
    assert stragglers.level_leases([holding(0, 0, 20)], {0: 10.0, 1: 10.0}, [0, 1]) == ()


def test_lease_is_shortened_only_if_another_worker_can_take_the_rest():
    assert stragglers.level_leases([holding(0, 0, 1000)], {0: 1.0}, [0]) == ()
    assert stragglers.level_leases([holding(0, 0, 1000)], {}, [0, 1]) == (), "nobody's pace is known"
    assert stragglers.level_leases([], {0: 1.0, 1: 1.0}, [0, 1]) == ()


def test_newcomer_counts_as_average_and_a_stalled_worker_as_very_slow():
    assert [c.wish.end for c in stragglers.level_leases([holding(0, 0, 1000)], {0: 10.0}, [0, 1])] == [500]
    assert [c.wish.end for c in stragglers.level_leases([holding(0, 0, 1000)], {0: 0.0, 1: 100.0}, [0, 1])] == [10]


def test_leases_of_lost_workers_are_not_shortened():
    assert stragglers.level_leases([holding(7, 0, 1000)], {0: 10.0, 1: 10.0}, [0, 1]) == ()


@st.composite
def ends_of_jobs(draw):
    ranks = draw(st.integers(2, 6))
    paces = {rank: draw(st.floats(0, 1000)) for rank in range(ranks)}
    held, shard = [], 0
    for rank in range(ranks):
        for _ in range(draw(st.integers(0, 4))):
            first = 10 * draw(st.integers(0, 50))
            offset = first + 10 * draw(st.integers(0, 20))
            held.append(holding(rank, offset, offset + 10 * draw(st.integers(1, 60)), shard=shard, first=first))
            shard += 1
    return held, paces


@given(ends_of_jobs())
def test_levelled_leases_leave_no_worker_more_than_its_share(job):
    held, paces = job
    cuts = stragglers.level_leases(held, paces, list(paces))
    ends = {cut.wish.shard: cut.wish.end for cut in cuts}
    known = [pace for pace in paces.values() if pace > 0]
    if not known or not held:
        assert not cuts
        return
    usual = stragglers.median(known)
    rates = {rank: max(pace, usual * stragglers.SLOWEST) for rank, pace in paces.items()}
    fair_s = sum(one.left for one in held) / sum(rates.values())
    for rank, rate in rates.items():
        mine = [one for one in held if one.rank == rank]
        before = sum(one.left for one in mine)
        after = sum(ends.get(one.shard, one.end) - one.offset for one in mine)
        assert all(one.offset <= ends.get(one.shard, one.end) <= one.end for one in mine)
        assert all((ends.get(one.shard, one.end) - one.offset) % one.batch == 0 for one in mine)
        assert after <= max(rate * fair_s + 11, rate * (fair_s + stragglers.MARGIN_S) + 1e-6)
        assert after >= min(before, rate * fair_s - 1)


def marks_after(*windows, sure=None, alive=None):
    """Marks after these windows of paces."""
    marks = {}
    for paces in windows:
        marks = update_marks(marks, paces, alive or paces.keys(), RULES, sure)
    return marks


def slow_ranks(marks):
    return {rank for rank, mark in marks.items() if mark.slow}


HALF = {0: 100.0, 1: 102.0, 2: 45.0, 3: 98.0}
EQUAL = {**HALF, 2: 100.0}


def test_equal_workers_with_some_spread_are_not_slow():
    assert slow_workers(marks_after(*[{0: 100.0, 1: 90.0, 2: 110.0}] * 9)) == ()
    assert slow_workers(marks_after(*[{0: 100.0}] * 9)) == ()


def test_slow_mark_stays_until_the_worker_keeps_up_for_a_while():
    nearly = {0: 100.0, 1: 100.0, 2: 80.0}
    assert slow_workers(marks_after(*[nearly] * 9)) == ()
    marks = marks_after(*[{**nearly, 2: 40.0}] * SLOW_AFTER, *[nearly] * 9)
    assert slow_ranks(marks) == {2}
    for _ in range(FAST_AFTER - 1):
        marks = update_marks(marks, {**nearly, 2: 90.0}, range(3), RULES)
        assert slow_ranks(marks) == {2}
    assert not slow_ranks(update_marks(marks, {**nearly, 2: 90.0}, range(3), RULES))


def test_single_window_neither_sets_nor_clears_a_mark():
    assert not slow_ranks(marks_after(*[HALF, EQUAL] * 20))
    assert slow_ranks(marks_after(*[HALF] * SLOW_AFTER, *[EQUAL, EQUAL, HALF] * 20)) == {2}


def test_mark_is_unchanged_by_partial_batches_or_idle_windows():
    assert not slow_ranks(marks_after(*[HALF] * 9, sure={0, 1}))
    assert slow_ranks(marks_after(*[HALF] * SLOW_AFTER, sure={2})) == {2}
    marks = marks_after(*[HALF] * SLOW_AFTER)
    idle = {rank: pace for rank, pace in EQUAL.items() if rank != 2}
    for paces, sure in [(EQUAL, {0, 1, 3}), (idle, None), ({}, None), ({2: 100.0}, None)] * 5:
        marks = update_marks(marks, paces, range(4), RULES, sure)
        assert slow_workers(marks) == (2,)


def test_mark_of_a_silent_or_departed_worker_is_dropped():
    marks = marks_after(*[HALF] * SLOW_AFTER)
    assert slow_ranks(update_marks(marks, {}, [0, 1, 3], RULES)) == set()
    for _ in range(SILENT_AFTER):
        assert slow_ranks(marks) == {2}
        marks = update_marks(marks, {}, range(4), RULES)
    assert slow_ranks(marks) == set()


def test_majority_of_slow_workers_is_not_marked():
    assert slow_workers({0: SlowMark(slow=True), 1: SlowMark(slow=True), 2: SlowMark()}) == ()


WINDOWS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 4), st.floats(1.0, 200.0)),
        st.none() | st.sets(st.integers(0, 4)),
    ),
    max_size=60,
)


@given(WINDOWS)
def test_mark_changes_only_after_enough_conclusive_windows(windows):
    marks, since = {}, dict.fromkeys(range(5), 0)
    for paces, sure in windows:
        known, before = set(paces) & (set(paces) if sure is None else sure), slow_ranks(marks)
        marks = update_marks(marks, paces, range(5), RULES, sure)
        for rank in range(5):
            since[rank] += rank in known and len(paces) > 1
            if (rank in before) != (rank in slow_ranks(marks)):
                said = rank in known and len(paces) > 1
                assert said or marks[rank] == SlowMark()  # or nothing was heard of it for long
                assert not said or since[rank] >= (FAST_AFTER if rank in before else SLOW_AFTER)
                since[rank] = 0
        assert set(slow_workers(marks)) in (set(), slow_ranks(marks))


def test_worker_is_slow_below_the_limit_and_recovered_at_the_share():
    rules, standard = StragglerRules(), PaceStandard(100.0, 60.0)
    assert compare(59.9, standard, rules).slow and not compare(60.0, standard, rules).slow
    share = rules.recovered * 100.0
    assert compare(share, standard, rules).recovered and not compare(share - 0.1, standard, rules).recovered
    assert compare(60.0, standard, rules).why == "60 samples/s, 60% of its peers' median 100 (slow below 60)"


def test_no_worker_is_slow_among_peers_that_stand_still():
    verdict = compare(0.0, PaceStandard(0.0, 1.0), StragglerRules())
    assert not verdict.slow and "100% of its peers' median 0" in verdict.why
    assert compare(0.1, PaceStandard(0.5, 0.2), StragglerRules()).slow, "a slow median is a median"


def test_pace_of_a_worker_counts_from_its_first_sample():
    paces = WorkerPaces(window_s=10.0)
    for at, trained in ((0.0, {}), (4.0, {0: 40}), (12.0, {0: 200})):
        paces.observe(trained, [0], at)
    assert paces.known() == {0: pytest.approx(200 / 12)}, "the window needs two looks"


def test_forgotten_rank_gets_a_new_pace():
    paces = WorkerPaces(window_s=10.0)
    for at in (100.0, 104.0):
        paces.observe({0: 10 * int(at)}, [0], at)
    assert paces.known() == {0: 10.0} and paces.comparable() == {}
    paces.observe({0: 1050}, [0], 105.0)
    assert paces.comparable() == {0: 10.0}, "half a window is enough"
    paces.forget(0)
    paces.observe({0: 0}, [0], 106.0)
    assert paces.known() == {}


def test_lease_is_cut_to_whole_batches_and_no_further():
    held = [holding(0, 0, 100, shard=1, batch=10), holding(0, 3, 100, shard=2, batch=1)]
    assert stragglers.keep_first(held, 5) == [ShrinkRequest(1, 0, 10), ShrinkRequest(2, 0, 3)]


def test_windows_of_equal_pace_are_no_evidence():
    equal, uneven = dict.fromkeys(range(4), 100.0), {0: 10.0, 1: 100.0, 2: 100.0, 3: 100.0}
    marks = update_marks({}, equal, equal, RULES)
    assert marks[0].against == 0
    assert not update_marks(marks, uneven, equal, RULES)[0].slow


def test_half_of_the_workers_can_be_slow_and_more_cannot():
    slow, fast = SlowMark(slow=True), SlowMark()
    assert slow_workers({0: slow, 1: fast, 2: slow, 3: fast}) == (0, 2)
    assert slow_workers({0: slow, 1: fast, 2: slow}) == ()


def test_new_mark_has_no_evidence_against_it():
    uneven = {0: 10.0, 1: 100.0, 2: 100.0, 3: 100.0}
    marks = {}
    for _ in range(SLOW_AFTER):
        marks = update_marks(marks, uneven, uneven, RULES)
    assert (marks[0].slow, marks[0].against) == (True, 0)
