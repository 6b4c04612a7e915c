import numpy as np

from springtide_lab.bench.core import growth


def test_ids_lie_in_range_and_the_same_seed_gives_the_same():
    first = growth.batches(3, batches=4, tables=2, rows=100, batch=8)
    assert first.shape == (4, 2, 8) and first.dtype == np.int64
    assert first.min() >= 0 and first.max() < 100
    assert (first == growth.batches(3, batches=4, tables=2, rows=100, batch=8)).all()
    assert (first != growth.batches(4, batches=4, tables=2, rows=100, batch=8)).any()


def test_few_ids_take_most_of_the_traffic(rng):
    drawn = growth.zipf(rng, rows=10_000, count=50_000)
    counts = np.sort(np.bincount(drawn, minlength=10_000))[::-1]
    assert counts[:100].sum() > 0.4 * counts.sum()


def test_a_worker_reads_what_was_written(tmp_path):
    drawn = growth.batches(0, batches=2, tables=2, rows=10, batch=3)
    growth.write(drawn, tmp_path / "ids")
    assert (np.fromfile(tmp_path / "ids", dtype=np.int64).reshape(drawn.shape) == drawn).all()
