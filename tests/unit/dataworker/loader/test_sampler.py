"""Batch order: each sample once per epoch for any ranks and resume position."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import data

from springtide import errors
from springtide.dataworker.loader.sampler import LoaderPosition, SampleOrder, UserSampler

BEGIN = LoaderPosition(0, 0)


def had(order, place=BEGIN):
    return [drawn.indices.tolist() for drawn in order.batches(place)]


def flat(batches):
    return [index for batch in batches for index in batch]


def test_without_shuffle_batches_keep_dataset_order():
    order = SampleOrder(samples=10, batch_size=4)
    assert had(order) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert order.steps() == 3


def test_shuffled_epoch_has_its_own_repeatable_order():
    order = SampleOrder(samples=1000, batch_size=32, shuffle=True, seed=7)
    first, second = had(order), had(order, LoaderPosition(1, 0))
    assert first == had(order) and first != second
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(1000))
    assert had(SampleOrder(samples=1000, batch_size=32, shuffle=True, seed=8)) != first


sizes = st.integers(min_value=0, max_value=90)


@given(
    samples=sizes,
    batch=st.integers(1, 6),
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    stops=st.integers(0, 20),
    shuffle=st.booleans(),
    seed=st.integers(-(2**40), 2**40),
)
def test_ranks_share_every_sample_once_when_their_number_changes_midway(samples, batch, worlds, stops, shuffle, seed):
    seen, place = [], LoaderPosition(2, 0)
    before, after = worlds
    orders = [
        SampleOrder(samples=samples, batch_size=batch, shuffle=shuffle, seed=seed, rank=rank, world=before)
        for rank in range(before)
    ]
    rounds = [list(order.batches(place)) for order in orders]
    reached = place
    for drawn in rounds:
        for one in drawn[:stops]:
            seen += one.indices.tolist()
            reached = max(reached, one.after)
    for rank in range(after):
        order = SampleOrder(samples=samples, batch_size=batch, shuffle=shuffle, seed=seed, rank=rank, world=after)
        seen += flat(had(order, reached))
    assert sorted(seen) == list(range(samples))


@given(samples=sizes, batch=st.integers(2, 6), world=st.integers(1, 5))
def test_all_ranks_make_equally_many_steps_when_batches_have_room(samples, batch, world):
    orders = [SampleOrder(samples=samples, batch_size=batch, rank=rank, world=world) for rank in range(world)]
    batches = [had(order) for order in orders]
    assert [len(one) for one in batches] == [order.steps() for order in orders]
    assert all(0 < len(one) <= batch for rank in batches for one in rank)
    if samples >= world:
        assert len({len(one) for one in batches}) == 1


@given(samples=sizes, batch=st.integers(1, 6), world=st.integers(1, 5), shuffle=st.booleans())
def test_resuming_from_any_position_gives_the_remaining_batches(samples, batch, world, shuffle):
    for rank in range(world):
        order = SampleOrder(samples=samples, batch_size=batch, shuffle=shuffle, rank=rank, world=world)
        drawn = list(order.batches(LoaderPosition(1, 0)))
        for at, one in enumerate(drawn):
            assert had(order, one.after) == [later.indices.tolist() for later in drawn[at + 1 :]]
            assert [later.name for later in order.batches(one.after)] == [later.name for later in drawn[at + 1 :]]


@given(samples=sizes, batch=st.integers(1, 6), world=st.integers(1, 5))
def test_drop_last_drops_batches_that_not_every_rank_can_fill(samples, batch, world):
    orders = [
        SampleOrder(samples=samples, batch_size=batch, drop_last=True, rank=rank, world=world) for rank in range(world)
    ]
    batches = [had(order) for order in orders]
    assert {len(one) for one in batches} == {samples // (batch * world)}
    assert all(len(one) == batch for rank in batches for one in rank)


def test_order_of_a_huge_dataset_costs_only_the_requested_batch():
    order = SampleOrder(samples=10**12, batch_size=512, shuffle=True, seed=1)
    drawn = next(order.batches(LoaderPosition(3, 512 * 10**9)))
    assert len(np.unique(drawn.indices)) == 512 and drawn.after == LoaderPosition(3, (10**9 + 1) * 512)


@pytest.mark.parametrize("wrong", [dict(batch_size=0), dict(rank=2, world=2), dict(rank=-1)])
def test_invalid_order_sizes_are_refused(wrong):
    with pytest.raises(errors.BadInput, match="expected"):
        SampleOrder(**{"samples": 10, "batch_size": 2, **wrong})


def test_sampler_is_batched_and_a_batch_sampler_used_unchanged():
    assert had(UserSampler(range(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert had(UserSampler(range(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    assert had(UserSampler([[3, 1], [2]], batch_size=None)) == [[3, 1], [2]]
    assert [len(UserSampler(range(5), batch_size=2, drop_last=drop)) for drop in (True, False)] == [2, 3]
    assert len(UserSampler([[3, 1], [2]], batch_size=None)) == 2


def test_endless_sampler_is_drawn_lazily():
    order = UserSampler(itertools.count(), batch_size=3)
    assert [drawn.indices.tolist() for drawn in itertools.islice(order.batches(BEGIN), 2)] == [[0, 1, 2], [3, 4, 5]]


def random_sampler(**given):
    return data.RandomSampler(range(50), **given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: random_sampler(),
        lambda: random_sampler(generator=torch.Generator().manual_seed(3)),
        lambda: random_sampler(replacement=True, num_samples=40),
        lambda: data.WeightedRandomSampler([1.0] * 50, 40),
        lambda: data.DistributedSampler(range(50), num_replicas=2, rank=1, seed=4),
    ],
)
def test_sampler_continues_in_another_process_with_the_same_batches(make):
    order = UserSampler(make(), batch_size=4, seed=9)
    order.set_epoch(1)
    had(order)
    order.ended()
    order.set_epoch(2)
    drawn = list(itertools.islice(order.batches(LoaderPosition(2, 0)), 5))
    state = json.loads(json.dumps(order.state()))
    rest = had(order, drawn[-1].after) if make().__class__ is data.DistributedSampler else None

    torch.manual_seed(999)
    other = UserSampler(make(), batch_size=4, seed=9)
    other.load(state)
    went_on = had(other, drawn[-1].after)
    other.load(state)
    whole = had(other, LoaderPosition(2, 0))
    assert [one.indices.tolist() for one in drawn] + went_on == whole
    assert rest is None or rest == went_on


def test_drawing_samples_leaves_the_process_random_numbers_unchanged():
    torch.manual_seed(1)
    expected = torch.rand(2).tolist()
    torch.manual_seed(1)
    had(UserSampler(random_sampler(), batch_size=4))
    assert torch.rand(2).tolist() == expected


def test_non_repeatable_sampler_cannot_resume():
    counter = itertools.count()
    order = UserSampler(counter, batch_size=3)
    (first,) = itertools.islice(order.batches(BEGIN), 1)
    with pytest.raises(errors.BadInput, match="count did not repeat itself: its first 1 batches"):
        next(order.batches(first.after))


@pytest.mark.parametrize(("given", "said"), [(["a", "b"], "expected integers"), ([0.5], "expected integers")])
def test_non_integer_sampler_keys_are_refused(given, said):
    with pytest.raises(errors.BadInput, match=said):
        had(UserSampler(given, batch_size=2))


def test_empty_sampler_batch_is_refused():
    with pytest.raises(errors.BadInput, match="empty batch"):
        had(UserSampler([[1], []], batch_size=None))


def test_len_of_a_sampler_without_length_raises_type_error():
    with pytest.raises(TypeError, match="count\\) has no len"):
        len(UserSampler(itertools.count(), batch_size=2))
