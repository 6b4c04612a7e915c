from springtide_lab.bench.store import store


def test_every_insert_is_a_new_row_and_every_batch_is_timed():
    grown = store.grow(rows=4096, batch=256)
    assert grown.rows == 4096
    assert len(grown.seconds) == 16 and (grown.seconds > 0).all()
    assert grown.arenas > 0
