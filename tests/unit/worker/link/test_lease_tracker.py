"""What a worker has leased, has given to its loop, has trained; and what it tells its master of it."""

import hypothesis.strategies as st
from hypothesis import given

from springtide.domain.data.leases import Grant, LeaseKey, Progress, ShrinkRequest
from springtide.domain.data.samples import DatasetCard
from springtide.worker.link.lease_tracker import LeaseReport, LeaseTracker

CARD = DatasetCard(samples=1000, batch_size=10, shard_batches=4)
FIRST, SECOND = Grant(0, 0, 0, 0, 40), Grant(1, 0, 1, 0, 40)


def holding(*grants):
    tracker = LeaseTracker()
    tracker.begin_pass(CARD)
    tracker.add_grants(CARD, grants)
    return tracker


def claims(tracker, count):
    return [tracker.claim(10)[1] for _ in range(count)]


def test_progress_is_what_is_acknowledged_without_a_gap():
    tracker = holding(FIRST)
    a, b, c = claims(tracker, 3)
    tracker.acknowledge([c])
    tracker.acknowledge([a])
    assert tracker.report().progress == (Progress(0, 0, 10, 40),)
    tracker.acknowledge([b])
    assert tracker.report().progress == (Progress(0, 0, 30, 40),)
    assert tracker.is_busy


@given(st.permutations(range(4)))
def test_in_whatever_order_acknowledgements_come_the_lease_ends(order):
    tracker = holding(FIRST)
    given_out = claims(tracker, 4)
    for turn in order:
        assert tracker.is_busy
        tracker.acknowledge([given_out[turn]])
    assert not tracker.is_busy and tracker.report().progress == (Progress(0, 0, 40, 40),)


def test_a_lease_is_named_until_the_master_has_heard_that_it_is_through():
    tracker = holding(FIRST)
    before = tracker.report()
    tracker.acknowledge(claims(tracker, 4))
    tracker.on_reported(before)
    assert tracker.report().progress == (Progress(0, 0, 40, 40),)
    tracker.on_reported(tracker.report())
    assert tracker.report().progress == ()


def test_a_wish_is_granted_as_far_as_the_loop_has_not_been_given_more():
    tracker = holding(FIRST, SECOND)
    claims(tracker, 2)
    assert tracker.apply_changes((), [ShrinkRequest(0, 0, 10), ShrinkRequest(1, 0, 0)]), (
        "the master should hear of it at once"
    )
    assert tracker.report().progress == (Progress(0, 0, 0, 20), Progress(1, 0, 0, 0))
    assert tracker.claim(10) is None
    assert not tracker.apply_changes((), [ShrinkRequest(0, 0, 30)])
    assert tracker.report().progress[0].end == 20, "what was agreed stays"


def test_what_is_revoked_is_not_trained_and_not_named():
    tracker = holding(FIRST, SECOND)
    (claim,) = claims(tracker, 1)
    tracker.apply_changes([LeaseKey(0, 0)], ())
    assert not tracker.holds(claim)
    tracker.acknowledge([claim])
    assert tracker.report().progress == (Progress(1, 0, 0, 40),)
    assert tracker.claim(10)[0] == SECOND


def test_what_cannot_be_read_ends_the_lease_before_it():
    tracker = holding(FIRST)
    a, b, c = claims(tracker, 3)
    tracker.fail(b, "OSError: bad disk")
    assert tracker.holds(a) and not tracker.holds(b) and not tracker.holds(c)
    assert tracker.claim(10) is None
    words = tracker.report()
    assert words.progress == (Progress(0, 0, 0, 10),)
    assert [failure.offset for failure in words.failures] == [10]
    tracker.acknowledge([a])
    assert not tracker.is_busy
    tracker.on_reported(words)
    tracker.on_reported(words)
    assert tracker.report().failures == ()


def test_a_loop_that_is_left_gives_back_what_it_has_not_trained():
    tracker = holding(FIRST, SECOND)
    a, _ = claims(tracker, 2)
    tracker.acknowledge([a])
    tracker.release_all()
    assert tracker.report().progress == (Progress(0, 0, 10, 10), Progress(1, 0, 0, 0))
    tracker.add_grants(CARD, [Grant(2, 0, 2, 0, 40)])
    assert tracker.report().progress[-1] == Progress(2, 0, 0, 0), "an answer that comes too late goes straight back"
    assert tracker.claim(10) is None


def test_what_another_has_left_goes_first_however_it_was_asked_for_and_in_the_order_in_which_it_came():
    tracker = holding(FIRST, SECOND)
    claims(tracker, 1)
    tracker.add_grants(CARD, [Grant(3, 0, 3, 10, 40, returned=True), Grant(4, 0, 4, 0, 40)])
    tracker.add_grants(CARD, [Grant(5, 0, 5, 20, 40, returned=True)])
    assert [tracker.claim(40)[1].shard for _ in range(5)] == [3, 5, 0, 1, 4]


def test_a_grant_that_is_repeated_is_held_once():
    tracker = holding(FIRST, FIRST)
    assert len(tracker) == 1 and tracker.unclaimed == 40


def test_a_rest_too_small_for_the_group_joins_the_batch_before():
    tracker = holding(Grant(0, 0, 0, 0, 32))
    sizes = []
    while claimed := tracker.claim(10, group=4):
        sizes.append(claimed[1].end - claimed[1].begin)
    assert sizes == [10, 10, 12]


def test_with_a_new_era_everything_is_dropped_and_old_acknowledgements_do_not_count():
    tracker = holding(Grant(3, 0, 3, 0, 40))
    _, old = tracker.claim(10)
    assert not tracker.apply_changes((), (), era=1)
    assert len(tracker) == 0 and not tracker.holds(old)
    tracker.add_grants(CARD, [Grant(3, 0, 3, 0, 40)], era=1)  # the same lease again
    tracker.acknowledge([old])
    assert tracker.report() == LeaseReport((Progress(3, 0, 0, 40),), (), 1)
    _, new = tracker.claim(10)
    assert new.begin == 0
    tracker.acknowledge([new])
    assert tracker.report().progress == (Progress(3, 0, 10, 40),)


def test_a_new_era_may_come_with_leases_and_what_comes_late_of_the_old_one_changes_nothing():
    tracker = holding(Grant(3, 0, 3, 0, 40))
    told = tracker.report()
    tracker.add_grants(CARD, [Grant(3, 0, 3, 0, 20)], era=2)
    tracker.add_grants(CARD, [Grant(4, 0, 4, 0, 40)], era=1)
    tracker.apply_changes([LeaseKey(3, 0)], [], era=1)
    tracker.on_reported(told)
    assert tracker.report().progress == (Progress(3, 0, 0, 20),)
    assert tracker.unclaimed == 20
