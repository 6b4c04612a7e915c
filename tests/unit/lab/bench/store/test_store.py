from springtide import _native
from springtide_lab.bench.store import store


def test_every_insert_is_a_new_row_and_every_batch_is_timed():
    grown = _native.Store(slots=64, seed=0, threads=1)
    seconds = store.grow(grown, rows=2 * store.GROWN_BATCH)
    assert grown.rows() == 2 * store.GROWN_BATCH
    assert len(seconds) == 2 and (seconds > 0).all()
