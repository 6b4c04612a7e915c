"""A worker's leases: granted, claimed and trained ranges, and the reports to its master."""

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


def test_lease_progress_is_the_contiguous_acknowledged_prefix():
    tracker = holding(FIRST)
    a, b, c = claims(tracker, 3)
    tracker.acknowledge([c])
    tracker.acknowledge([a])
    assert tracker.report().progress == (Progress(0, 0, 10, 40),)
    tracker.acknowledge([b])
    assert tracker.report().progress == (Progress(0, 0, 30, 40),)
    assert tracker.is_busy


@given(st.permutations(range(4)))
def test_lease_ends_for_any_order_of_acknowledgements(order):
    tracker = holding(FIRST)
    given_out = claims(tracker, 4)
    for turn in order:
        assert tracker.is_busy
        tracker.acknowledge([given_out[turn]])
    assert not tracker.is_busy and tracker.report().progress == (Progress(0, 0, 40, 40),)


def test_finished_lease_is_reported_until_the_master_confirms():
    tracker = holding(FIRST)
    before = tracker.report()
    tracker.acknowledge(claims(tracker, 4))
    tracker.on_reported(before)
    assert tracker.report().progress == (Progress(0, 0, 40, 40),)
    tracker.on_reported(tracker.report())
    assert tracker.report().progress == ()


def test_shrink_request_is_granted_down_to_the_claimed_offset():
    tracker = holding(FIRST, SECOND)
    claims(tracker, 2)
    assert tracker.apply_changes((), [ShrinkRequest(0, 0, 10), ShrinkRequest(1, 0, 0)]), (
        "the master should hear of it at once"
    )
    assert tracker.report().progress == (Progress(0, 0, 0, 20), Progress(1, 0, 0, 0))
    assert tracker.claim(10) is None
    assert not tracker.apply_changes((), [ShrinkRequest(0, 0, 30)])
    assert tracker.report().progress[0].end == 20, "what was agreed stays"


def test_revoked_lease_is_neither_trained_nor_reported():
    tracker = holding(FIRST, SECOND)
    (claim,) = claims(tracker, 1)
    tracker.apply_changes([LeaseKey(0, 0)], ())
    assert not tracker.holds(claim)
    tracker.acknowledge([claim])
    assert tracker.report().progress == (Progress(1, 0, 0, 40),)
    assert tracker.claim(10)[0] == SECOND


def test_unreadable_batch_ends_its_lease_just_before_it():
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


def test_loop_break_returns_untrained_leases():
    tracker = holding(FIRST, SECOND)
    a, _ = claims(tracker, 2)
    tracker.acknowledge([a])
    tracker.release_all()
    assert tracker.report().progress == (Progress(0, 0, 10, 10), Progress(1, 0, 0, 0))
    tracker.add_grants(CARD, [Grant(2, 0, 2, 0, 40)])
    assert tracker.report().progress[-1] == Progress(2, 0, 0, 0), "an answer that comes too late goes straight back"
    assert tracker.claim(10) is None


def test_returned_leases_go_first_in_order_of_arrival():
    tracker = holding(FIRST, SECOND)
    claims(tracker, 1)
    tracker.add_grants(CARD, [Grant(3, 0, 3, 10, 40, returned=True), Grant(4, 0, 4, 0, 40)])
    tracker.add_grants(CARD, [Grant(5, 0, 5, 20, 40, returned=True)])
    assert [tracker.claim(40)[1].shard for _ in range(5)] == [3, 5, 0, 1, 4]


def test_repeated_grant_is_held_once():
    tracker = holding(FIRST, FIRST)
    assert len(tracker) == 1 and tracker.unclaimed == 40


def test_remainder_too_small_for_the_group_joins_the_previous_batch():
    tracker = holding(Grant(0, 0, 0, 0, 32))
    sizes = []
    while claimed := tracker.claim(10, group=4):
        sizes.append(claimed[1].end - claimed[1].begin)
    assert sizes == [10, 10, 12]


def test_new_era_drops_all_leases_and_ignores_old_acknowledgements():
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


def test_new_era_may_bring_leases_and_late_messages_of_the_old_are_ignored():
    tracker = holding(Grant(3, 0, 3, 0, 40))
    told = tracker.report()
    tracker.add_grants(CARD, [Grant(3, 0, 3, 0, 20)], era=2)
    tracker.add_grants(CARD, [Grant(4, 0, 4, 0, 40)], era=1)
    tracker.apply_changes([LeaseKey(3, 0)], [], era=1)
    tracker.on_reported(told)
    assert tracker.report().progress == (Progress(3, 0, 0, 20),)
    assert tracker.unclaimed == 20
