"""What a worker has leased, has given to its loop, has trained; and what it tells its master of it."""

import hypothesis.strategies as st
from hypothesis import given

from springtide.domain.data.leases import Grant, LeaseKey, Progress, ShrinkRequest
from springtide.domain.data.samples import DatasetCard
from springtide.worker.link.lease_tracker import Hands, Words

CARD = DatasetCard(samples=1000, batch_size=10, shard_batches=4)
FIRST, SECOND = Grant(0, 0, 0, 0, 40), Grant(1, 0, 1, 0, 40)


def holding(*grants):
    hands = Hands()
    hands.open(CARD)
    hands.take(CARD, grants)
    return hands


def claims(hands, count):
    return [hands.claim(10)[1] for _ in range(count)]


def test_progress_is_what_is_acknowledged_without_a_gap():
    hands = holding(FIRST)
    a, b, c = claims(hands, 3)
    hands.acknowledge([c])
    hands.acknowledge([a])
    assert hands.words().progress == (Progress(0, 0, 10, 40),)
    hands.acknowledge([b])
    assert hands.words().progress == (Progress(0, 0, 30, 40),)
    assert hands.busy


@given(st.permutations(range(4)))
def test_in_whatever_order_acknowledgements_come_the_lease_ends(order):
    hands = holding(FIRST)
    given_out = claims(hands, 4)
    for turn in order:
        assert hands.busy
        hands.acknowledge([given_out[turn]])
    assert not hands.busy and hands.words().progress == (Progress(0, 0, 40, 40),)


def test_a_lease_is_named_until_the_master_has_heard_that_it_is_through():
    hands = holding(FIRST)
    before = hands.words()
    hands.acknowledge(claims(hands, 4))
    hands.told(before)
    assert hands.words().progress == (Progress(0, 0, 40, 40),)
    hands.told(hands.words())
    assert hands.words().progress == ()


def test_a_wish_is_granted_as_far_as_the_loop_has_not_been_given_more():
    hands = holding(FIRST, SECOND)
    claims(hands, 2)
    assert hands.heed((), [ShrinkRequest(0, 0, 10), ShrinkRequest(1, 0, 0)]), "the master should hear of it at once"
    assert hands.words().progress == (Progress(0, 0, 0, 20), Progress(1, 0, 0, 0))
    assert hands.claim(10) is None
    assert not hands.heed((), [ShrinkRequest(0, 0, 30)])
    assert hands.words().progress[0].end == 20, "what was agreed stays"


def test_what_is_revoked_is_not_trained_and_not_named():
    hands = holding(FIRST, SECOND)
    (claim,) = claims(hands, 1)
    hands.heed([LeaseKey(0, 0)], ())
    assert not hands.wanted(claim)
    hands.acknowledge([claim])
    assert hands.words().progress == (Progress(1, 0, 0, 40),)
    assert hands.claim(10)[0] == SECOND


def test_what_cannot_be_read_ends_the_lease_before_it():
    hands = holding(FIRST)
    a, b, c = claims(hands, 3)
    hands.fail(b, "OSError: bad disk")
    assert hands.wanted(a) and not hands.wanted(b) and not hands.wanted(c)
    assert hands.claim(10) is None
    words = hands.words()
    assert words.progress == (Progress(0, 0, 0, 10),)
    assert [failure.offset for failure in words.failures] == [10]
    hands.acknowledge([a])
    assert not hands.busy
    hands.told(words)
    hands.told(words)
    assert hands.words().failures == ()


def test_a_loop_that_is_left_gives_back_what_it_has_not_trained():
    hands = holding(FIRST, SECOND)
    a, _ = claims(hands, 2)
    hands.acknowledge([a])
    hands.give_back()
    assert hands.words().progress == (Progress(0, 0, 10, 10), Progress(1, 0, 0, 0))
    hands.take(CARD, [Grant(2, 0, 2, 0, 40)])
    assert hands.words().progress[-1] == Progress(2, 0, 0, 0), "an answer that comes too late goes straight back"
    assert hands.claim(10) is None


def test_what_another_has_left_goes_first_however_it_was_asked_for_and_in_the_order_in_which_it_came():
    hands = holding(FIRST, SECOND)
    claims(hands, 1)
    hands.take(CARD, [Grant(3, 0, 3, 10, 40, returned=True), Grant(4, 0, 4, 0, 40)])
    hands.take(CARD, [Grant(5, 0, 5, 20, 40, returned=True)])
    assert [hands.claim(40)[1].shard for _ in range(5)] == [3, 5, 0, 1, 4]


def test_a_grant_that_is_repeated_is_held_once():
    hands = holding(FIRST, FIRST)
    assert len(hands) == 1 and hands.unclaimed == 40


def test_a_rest_too_small_for_the_group_joins_the_batch_before():
    hands = holding(Grant(0, 0, 0, 0, 32))
    sizes = []
    while claimed := hands.claim(10, group=4):
        sizes.append(claimed[1].end - claimed[1].begin)
    assert sizes == [10, 10, 12]


def test_with_a_new_era_everything_is_dropped_and_old_acknowledgements_do_not_count():
    hands = holding(Grant(3, 0, 3, 0, 40))
    _, old = hands.claim(10)
    assert not hands.heed((), (), era=1)
    assert len(hands) == 0 and not hands.wanted(old)
    hands.take(CARD, [Grant(3, 0, 3, 0, 40)], era=1)  # the same lease again
    hands.acknowledge([old])
    assert hands.words() == Words((Progress(3, 0, 0, 40),), (), 1)
    _, new = hands.claim(10)
    assert new.begin == 0
    hands.acknowledge([new])
    assert hands.words().progress == (Progress(3, 0, 10, 40),)


def test_a_new_era_may_come_with_leases_and_what_comes_late_of_the_old_one_changes_nothing():
    hands = holding(Grant(3, 0, 3, 0, 40))
    told = hands.words()
    hands.take(CARD, [Grant(3, 0, 3, 0, 20)], era=2)
    hands.take(CARD, [Grant(4, 0, 4, 0, 40)], era=1)
    hands.heed([LeaseKey(3, 0)], [], era=1)
    hands.told(told)
    assert hands.words().progress == (Progress(3, 0, 0, 20),)
    assert hands.unclaimed == 20
