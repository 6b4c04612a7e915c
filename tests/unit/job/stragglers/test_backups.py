"""Slow workers of a stream get others beside them."""

from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.spec.job_spec import StragglerRules
from springtide.job.stragglers.backups import FAST_AFTER, SILENT_AFTER, SLOW_AFTER, SlowMark, marked, wanted

RULES = StragglerRules()
NOBODY = (0, "", ())


def after(*windows, sure=None, alive=None):
    """Marks after these windows of paces."""
    marks = {}
    for paces in windows:
        marks = marked(marks, paces, alive or paces.keys(), RULES, sure)
    return marks


def slow(marks):
    return {rank for rank, mark in marks.items() if mark.slow}


HALF = {0: 100.0, 1: 102.0, 2: 45.0, 3: 98.0}
EQUAL = {**HALF, 2: 100.0}


def test_one_that_trains_half_of_what_its_peers_do_gets_a_backup_and_the_reason_names_it():
    backups = wanted(after(*[HALF] * SLOW_AFTER))
    assert backups.workers == 1 and backups.slow == (2,)
    assert "worker-2 trains 45 samples/s, 45% of its peers' median" in backups.why


def test_equals_with_some_spread_get_none():
    assert wanted(after(*[{0: 100.0, 1: 90.0, 2: 110.0}] * 9)) == NOBODY
    assert wanted(after(*[{0: 100.0}] * 9)) == NOBODY


def test_two_that_lack_a_worker_and_a_half_together_get_two():
    marks = after(*[{0: 25.0, 1: 25.0, 2: 100.0, 3: 100.0, 4: 100.0, 5: 100.0}] * SLOW_AFTER)
    assert wanted(marks).workers == 2
    assert wanted(marks, before=1).workers == 1  # it is as near to one: none comes and goes for a hair


def test_a_backup_stays_until_the_slow_one_is_near_its_peers_again_for_a_while():
    nearly = {0: 100.0, 1: 100.0, 2: 80.0}
    assert wanted(after(*[nearly] * 9)) == NOBODY
    marks = after(*[{**nearly, 2: 40.0}] * SLOW_AFTER, *[nearly] * 9)
    assert slow(marks) == {2}
    for _ in range(FAST_AFTER - 1):
        marks = marked(marks, {**nearly, 2: 90.0}, range(3), RULES)
        assert slow(marks) == {2}
    assert not slow(marked(marks, {**nearly, 2: 90.0}, range(3), RULES))


def test_one_window_alone_says_nothing_in_either_direction():
    assert not slow(after(*[HALF, EQUAL] * 20))
    assert slow(after(*[HALF] * SLOW_AFTER, *[EQUAL, EQUAL, HALF] * 20)) == {2}


def test_one_whose_batches_were_cut_short_or_that_had_nothing_to_do_stays_as_it_is_until_it_is_known():
    assert not slow(after(*[HALF] * 9, sure={0, 1}))
    assert slow(after(*[HALF] * SLOW_AFTER, sure={2})) == {2}
    marks = after(*[HALF] * SLOW_AFTER)
    idle = {rank: pace for rank, pace in EQUAL.items() if rank != 2}
    for paces, sure in [(EQUAL, {0, 1, 3}), (idle, None), ({}, None), ({2: 100.0}, None)] * 5:
        marks = marked(marks, paces, range(4), RULES, sure)
        assert wanted(marks, before=1)[::2] == (1, (2,))


def test_one_that_nothing_is_heard_of_for_long_or_that_left_is_marked_no_longer():
    marks = after(*[HALF] * SLOW_AFTER)
    assert slow(marked(marks, {}, [0, 1, 3], RULES)) == set()
    for _ in range(SILENT_AFTER):
        assert slow(marks) == {2}
        marks = marked(marks, {}, range(4), RULES)
    assert slow(marks) == set()


def test_where_most_are_slow_it_is_not_them():
    assert wanted({0: SlowMark(slow=True, lacks=0.9), 1: SlowMark(slow=True, lacks=0.9), 2: SlowMark()}) == NOBODY


WINDOWS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 4), st.floats(1.0, 200.0)),
        st.none() | st.sets(st.integers(0, 4)),
    ),
    max_size=60,
)


@given(WINDOWS)
def test_no_mark_changes_more_often_than_its_windows_in_a_row_allow_or_in_a_window_that_says_nothing(windows):
    marks, since = {}, dict.fromkeys(range(5), 0)
    for paces, sure in windows:
        known, before = set(paces) & (set(paces) if sure is None else sure), slow(marks)
        marks = marked(marks, paces, range(5), RULES, sure)
        for rank in range(5):
            since[rank] += rank in known and len(paces) > 1
            if (rank in before) != (rank in slow(marks)):
                said = rank in known and len(paces) > 1
                assert said or marks[rank] == SlowMark()  # or nothing was heard of it for long
                assert not said or since[rank] >= (FAST_AFTER if rank in before else SLOW_AFTER)
                since[rank] = 0
        assert set(wanted(marks).slow) in (set(), slow(marks))
