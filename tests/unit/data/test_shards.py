"""Shards cover each epoch once, look shuffled, and are the same for every process."""

import numpy as np
import pytest

from springtide import errors
from springtide.data import shards
from springtide.domain.data.samples import DatasetCard


def epoch_of(card, epoch):
    parts = [shards.indices(card, epoch=epoch, index=index) for index in range(card.shards)]
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 15, 16, 17, 1000, 4097])
@pytest.mark.parametrize("shuffle", [True, False])
def test_epoch_has_every_sample_once(samples, shuffle):
    card = DatasetCard(samples=samples, batch_size=7, shard_batches=3, shuffle=shuffle, seed=5)
    assert sorted(epoch_of(card, 2)) == list(range(samples))


def test_without_shuffle_samples_keep_dataset_order():
    card = DatasetCard(samples=100, batch_size=8, shuffle=False)
    assert list(epoch_of(card, 1)) == list(range(100))


def test_epochs_and_seeds_have_different_orders():
    card = DatasetCard(samples=500, batch_size=8, seed=1)
    other_seed = DatasetCard(samples=500, batch_size=8, seed=2)
    orders = [epoch_of(card, 0), epoch_of(card, 1), epoch_of(other_seed, 0)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (orders[one] != orders[other]).mean() > 0.9
    assert list(epoch_of(card, 0)) == list(orders[0])


def test_last_short_batch_can_be_dropped():
    card = DatasetCard(samples=103, batch_size=10, shard_batches=4, drop_last=True)
    trained = epoch_of(card, 0)
    assert len(trained) == 100 and len(set(trained)) == 100


def test_shard_can_be_resumed_in_the_middle():
    card = DatasetCard(samples=1000, batch_size=10, shard_batches=4)
    whole = shards.indices(card, epoch=0, index=3)
    assert list(shards.indices(card, epoch=0, index=3, first=30)) == list(whole[30:])


def test_shuffled_order_shows_no_trend():
    card = DatasetCard(samples=200_000, batch_size=500, shard_batches=400)
    order = epoch_of(card, 0).astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(len(order)), order)[0, 1]) < 0.02


def test_shard_of_a_huge_dataset_costs_only_itself():
    card = DatasetCard(samples=10**12, batch_size=512, shard_batches=64)
    far = shards.indices(card, epoch=9, index=card.shards // 2)
    assert len(set(far)) == 512 * 64 and far.min() >= 0 and far.max() < 10**12


def test_missing_shard_number_is_refused():
    card = DatasetCard(samples=100, batch_size=10, shard_batches=4)
    with pytest.raises(errors.BadInput, match="shard 3: an epoch of 100 samples has 3 shards"):
        shards.indices(card, epoch=0, index=3)


@pytest.mark.parametrize(("count", "workers"), [(512, 2), (10, 3), (2, 4), (0, 2)])
def test_rank_parts_cover_a_batch_evenly(count, workers):
    parts = [shards.rank_part(count, rank=rank, workers=workers) for rank in range(workers)]
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_shards_have_256_batches_or_enough_to_leave_64_shards():
    assert [shards.batches_a_shard(count) for count in (0, 1, 64, 127, 128, 1000, 16_383, 16_384, 10**9)] == [
        1,
        1,
        1,
        1,
        2,
        8,
        128,
        256,
        256,
    ]


@pytest.mark.parametrize("together", [1, 3, 4, 20])
def test_row_groups_are_shuffled_whole_and_each_sample_comes_once(together):
    sizes = [5, 100, 1, 64, 64, 30, 64, 8]
    groups = shards.RowGroups(np.cumsum(sizes), together)
    card = DatasetCard(samples=sum(sizes), batch_size=7, shard_batches=3)

    def epoch(number):
        parts = [shards.indices(card, epoch=number, index=index, groups=groups) for index in range(card.shards)]
        return np.concatenate(parts)

    order = epoch(0)
    assert sorted(order) == list(range(sum(sizes)))
    assert (order != epoch(1)).mean() > 0.9
    of_group = np.searchsorted(groups.ends, order, side="right")
    open_at_once = [
        len(set(of_group[: at + 1]) & set(of_group[at:])) for at in range(len(order))
    ]  # groups that have begun and not ended
    assert max(open_at_once) <= min(together, len(sizes))
    assert (np.diff(order) == 1).mean() < 0.1


def test_data_sets_with_other_row_groups_have_another_checksum():
    groups = [shards.RowGroups(np.array(ends), together) for ends, together in (([3, 9], 1), ([3, 9], 2), ([4, 9], 1))]
    assert len({one.checksum for one in groups}) == 3
