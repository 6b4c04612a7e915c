"""The fixed string hash."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from springtide.zoo.readers.cells import PADDING, fold, hash_cells
from tests.unit.zoo.readers.hashed_text import hash_text


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.binary(min_size=PADDING, max_size=PADDING))
def test_buffer_cells_hash_like_single_texts(texts, after):
    buffer = np.frombuffer(b"".join(texts) + after, dtype=np.uint8)
    stops = np.cumsum([len(text) for text in texts])
    starts = stops - [len(text) for text in texts]
    assert hash_cells(buffer, starts, stops).tolist() == [hash_text(text) for text in texts]


def test_hash_values_are_stable():
    assert hash_text("") == hash_text(b"")
    known = {"": -2152535657050944081, "68fd1e64": -5777297591053182441, "a longer text": -689134016994548337}
    assert {text: hash_text(text) for text in known} == known


def test_hashes_are_spread_evenly():
    ids = np.array([hash_text(f"{number:x}") for number in range(20_000)])
    assert len(set(ids.tolist())) == 20_000
    counts = np.bincount(fold(ids, 101), minlength=101)
    assert counts[0] == 0
    assert counts[1:].min() > 140
    assert counts[1:].max() < 260


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(2, 1000))
def test_folded_ids_fit_their_table_and_missing_stays_missing(ids, rows):
    folded = fold(np.array(ids, dtype=np.int64), rows)
    assert (folded < rows).all()
    assert ((folded == 0) == (np.array(ids) == 0)).all()
