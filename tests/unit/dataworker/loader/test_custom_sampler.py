"""Samplers of a user's own: taken as they are, repeated to go on, refused where they do not repeat themselves."""

import itertools
import json

import pytest
import torch
from torch.utils import data

from springtide import errors
from springtide.dataworker.loader.custom_sampler import UserSampler
from springtide.dataworker.loader.sampler import LoaderPosition

HERE = LoaderPosition(0, 0)


def had(order, place=HERE):
    return [drawn.indices.tolist() for drawn in order.batches(place)]


def test_a_sampler_is_cut_into_batches_and_a_batch_sampler_is_taken_as_it_is():
    assert had(UserSampler(range(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert had(UserSampler(range(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    assert had(UserSampler([[3, 1], [2]], batch_size=None)) == [[3, 1], [2]]
    assert [len(UserSampler(range(5), batch_size=2, drop_last=drop)) for drop in (True, False)] == [2, 3]
    assert len(UserSampler([[3, 1], [2]], batch_size=None)) == 2


def test_a_sampler_without_an_end_is_drawn_as_it_comes():
    order = UserSampler(itertools.count(), batch_size=3)
    assert [drawn.indices.tolist() for drawn in itertools.islice(order.batches(HERE), 2)] == [[0, 1, 2], [3, 4, 5]]


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
def test_it_goes_on_in_another_process_with_the_batches_that_would_have_come(make):
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


def test_drawing_leaves_the_processs_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(2).tolist()
    torch.manual_seed(1)
    had(UserSampler(random_sampler(), batch_size=4))
    assert torch.rand(2).tolist() == expected


def test_a_sampler_that_does_not_repeat_itself_cannot_go_on_and_says_so():
    counter = itertools.count()
    order = UserSampler(counter, batch_size=3)
    (first,) = itertools.islice(order.batches(HERE), 1)
    with pytest.raises(errors.BadInput, match="count did not repeat itself: its first 1 batches"):
        next(order.batches(first.after))


@pytest.mark.parametrize(("given", "said"), [(["a", "b"], "wanted integers"), ([0.5], "wanted integers")])
def test_keys_that_are_no_integers_are_refused(given, said):
    with pytest.raises(errors.BadInput, match=said):
        had(UserSampler(given, batch_size=2))


def test_an_empty_batch_is_refused():
    with pytest.raises(errors.BadInput, match="empty batch"):
        had(UserSampler([[1], []], batch_size=None))


def test_a_sampler_without_a_length_says_so():
    with pytest.raises(TypeError, match="count\\) has no len"):
        len(UserSampler(itertools.count(), batch_size=2))
