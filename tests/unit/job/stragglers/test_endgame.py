"""At the end work goes from those who would need too long to the others, and never more than that."""

import hypothesis.strategies as st
from hypothesis import given

from springtide.domain.data.leases import ShrinkRequest
from springtide.job.stragglers import endgame
from springtide.job.stragglers.endgame import LeaseLoad


def holding(rank, offset, end, shard=0, first=0, batch=10):
    return LeaseLoad(rank=rank, shard=shard, first=first, offset=offset, end=end, batch=batch)


def test_a_slow_holder_keeps_what_it_can_do_in_everyones_time():
    cuts = endgame.level([holding(0, 0, 1000)], {0: 10.0, 1: 90.0}, [0, 1])
    assert [(cut.rank, cut.wish) for cut in cuts] == [(0, ShrinkRequest(0, 0, 100))]
    assert cuts[0].why == "worker-0 would need 100.0 s for what it holds, all together 10.0 s: others take the rest"


def test_the_last_leases_are_given_up_first():
    held = [holding(0, 40, 100, shard=1), holding(0, 0, 100, shard=2), holding(0, 0, 100, shard=3)]
    cuts = endgame.level(held, {0: 10.0, 1: 16.0}, [0, 1])  # 260 samples at 26/s: ten seconds, a hundred samples
    assert [cut.wish for cut in cuts] == [ShrinkRequest(2, 0, 40), ShrinkRequest(3, 0, 0)]


def test_what_would_gain_less_than_an_answer_takes_is_left():
    assert endgame.level([holding(0, 0, 20)], {0: 10.0, 1: 10.0}, [0, 1]) == ()


def test_there_must_be_someone_to_give_it_to():
    assert endgame.level([holding(0, 0, 1000)], {0: 1.0}, [0]) == ()
    assert endgame.level([holding(0, 0, 1000)], {}, [0, 1]) == (), "nobody's pace is known"
    assert endgame.level([], {0: 1.0, 1: 1.0}, [0, 1]) == ()


def test_a_newcomer_counts_as_usual_and_one_without_progress_as_very_slow():
    assert [c.wish.end for c in endgame.level([holding(0, 0, 1000)], {0: 10.0}, [0, 1])] == [500]
    assert [c.wish.end for c in endgame.level([holding(0, 0, 1000)], {0: 0.0, 1: 100.0}, [0, 1])] == [10]


def test_leases_of_the_lost_are_not_asked_for():
    assert endgame.level([holding(7, 0, 1000)], {0: 10.0, 1: 10.0}, [0, 1]) == ()


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
def test_after_the_cuts_nobody_holds_more_than_its_part_and_nobody_was_robbed(job):
    held, paces = job
    cuts = endgame.level(held, paces, list(paces))
    ends = {cut.wish.shard: cut.wish.end for cut in cuts}
    known = [pace for pace in paces.values() if pace > 0]
    if not known or not held:
        assert not cuts
        return
    usual = endgame.median(known)
    rates = {rank: max(pace, usual * endgame.SLOWEST) for rank, pace in paces.items()}
    fair_s = sum(one.left for one in held) / sum(rates.values())
    for rank, rate in rates.items():
        mine = [one for one in held if one.rank == rank]
        before = sum(one.left for one in mine)
        after = sum(ends.get(one.shard, one.end) - one.offset for one in mine)
        assert all(one.offset <= ends.get(one.shard, one.end) <= one.end for one in mine)
        assert all((ends.get(one.shard, one.end) - one.offset) % one.batch == 0 for one in mine)
        assert after <= max(rate * fair_s + 11, rate * (fair_s + endgame.MARGIN_S) + 1e-6)
        assert after >= min(before, rate * fair_s - 1)
