from springtide.domain.data.samples import Batch, DatasetCard


def test_dataset_card_counts_shards_and_batches():
    card = DatasetCard(samples=1000, batch_size=30, shard_batches=4, epochs=2)
    assert (card.shard_size, card.shards, card.batches) == (120, 9, 68)


def test_drop_last_leaves_only_full_batches():
    card = DatasetCard(samples=1000, batch_size=30, shard_batches=4, drop_last=True)
    assert (card.samples_used, card.batches) == (990, 33)


def test_batch_unpacks_as_a_pair():
    x, y = Batch(1, 2)
    assert (x, y) == (1, 2)
