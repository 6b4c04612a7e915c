"""Gradients of rows, added one by one in the order of the batch, whoever had them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.worker.bsp.batch_order import row_sums

DIMS = {0: 1, 1: 3, 7: 2}


def made(entries, seed=0):
    """Rows for (table, key, place): values that depend on all three, and so that order matters."""
    parts = []
    for table, key, place in entries:
        chance = np.random.default_rng((seed, table, key % 2**64, place))
        values = (chance.normal(size=DIMS[table]) * 10.0 ** (place % 9 - 4)).astype(np.float32)
        keys, places, dims = (np.array([one], np.int64) for one in (key, place, DIMS[table]))
        parts.append(row_sums.RowGradients(np.array([table], np.uint16), keys, places, dims, values))
    return row_sums.together(parts)


def by_hand(entries):
    sums = {}
    for table, key, place in sorted(entries, key=lambda one: one[2]):
        value = made([(table, key, place)]).grads
        known = sums.get((table, key))
        sums[table, key] = value if known is None else known + value
    return sums


entries = st.sets(
    st.tuples(st.sampled_from(sorted(DIMS)), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), st.integers(0, 12)),
    max_size=40,
)


@given(entries, st.randoms(use_true_random=False))
def test_the_sum_of_a_row_is_that_of_its_units_one_by_one_in_their_order(found, chance):
    shuffled = sorted(found)
    chance.shuffle(shuffled)
    sums, expected = row_sums.summed(made(shuffled)), by_hand(found)
    ends = np.cumsum(sums.dims)
    got = {
        (int(table), int(key)): sums.grads[end - dim : end]
        for table, key, dim, end in zip(sums.tables, sums.keys, sums.dims, ends, strict=True)
    }
    assert list(got) == sorted(expected)
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes()


def test_a_row_of_one_unit_stays_as_it_is_a_negative_zero_too():
    one = made([(0, 5, 3)])._replace(grads=np.array([-0.0], np.float32))
    assert np.signbit(row_sums.summed(one).grads[0])


@given(entries)
def test_rows_reach_another_rank_as_they_are(found):
    sent = made(sorted(found))
    for column, other in zip(row_sums.RowGradients.from_bytes(sent.to_bytes()), sent, strict=True):
        assert column.dtype == other.dtype and np.array_equal(column, other)


@given(st.lists(entries, min_size=1, max_size=4))
def test_each_row_is_summed_by_the_lowest_rank_that_has_it(found):
    known = []
    for one in found:
        pairs = sorted({(table, key) for table, key, _ in one})
        known.append((np.array([p[0] for p in pairs], np.uint16), np.array([p[1] for p in pairs], np.int64)))
    for rank, (tables, keys) in enumerate(known):
        home = row_sums.homes(known, rank)
        for table, key, lowest in zip(tables, keys, home, strict=True):
            have = [r for r, one in enumerate(found) if any((t, k) == (table, key) for t, k, _ in one)]
            assert lowest == min(have)


@pytest.mark.parametrize("wanted", [[True, False, True], [False] * 3])
def test_some_rows_come_with_their_own_gradients(wanted):
    three = made([(1, 4, 0), (7, 2, 0), (0, 9, 1)])
    some = three.where(np.array(wanted))
    assert some.keys.tolist() == [key for key, here in zip([4, 2, 9], wanted, strict=True) if here]
    assert some.grads.tolist() == [*three.grads[:3], three.grads[5]] if wanted[0] else not some.grads.size
