"""What ranks say with an all-reduce: every rank comes to the same verdict, and it is the right one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from springtide.worker.bsp import allreduce_header

TABLES = (3, 5, 8)
SAID = st.builds(
    allreduce_header.RankWords,
    flush=st.booleans(),
    empty=st.booleans(),
    last=st.booleans(),
    ready=st.booleans(),
    paper=st.booleans(),
    digest=st.integers(0, 2**32 - 1),
    refused=st.frozensets(st.sampled_from(TABLES)),
)


def together(said):
    """The verdict over sums as gloo makes them, in float32."""
    numbers = np.array([allreduce_header.said(one, TABLES) for one in said], dtype=np.float32)
    assert numbers.shape[1] == allreduce_header.length(TABLES)
    return allreduce_header.heard(numbers.sum(axis=0, dtype=np.float32).tolist(), TABLES, len(said))


@given(st.lists(SAID, min_size=1, max_size=128))
def test_any_wish_for_a_flush_counts_all_must_be_ready_and_a_table_is_refused_by_one(said):
    verdict = together(said)
    assert verdict.flush == any(one.flush for one in said)
    assert verdict.paper == any(one.paper for one in said)
    assert verdict.last == any(one.last for one in said)
    assert verdict.ready == all(one.ready for one in said)
    assert verdict.refused == frozenset().union(*(one.refused for one in said))
    assert verdict.torn == (len({one.empty for one in said}) == 2)
    assert verdict.alike == (len({one.digest for one in said}) == 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 128))
def test_equal_digests_are_seen_to_be_equal_by_any_number_of_ranks(digest, ranks):
    assert together([allreduce_header.RankWords(digest=digest)] * ranks).alike


@given(st.integers(0, 2**32 - 1), st.integers(0, 31), st.integers(2, 128), st.data())
def test_one_bit_on_one_rank_is_seen_by_all(digest, bit, ranks, data):
    said = [allreduce_header.RankWords(digest=digest)] * ranks
    said[data.draw(st.integers(0, ranks - 1))] = allreduce_header.RankWords(digest=digest ^ 1 << bit)
    assert not together(said).alike


def test_the_lowest_ranks_effort_is_everyones():
    assert (
        together(
            [allreduce_header.RankWords(effort=12), allreduce_header.RankWords(), allreduce_header.RankWords()]
        ).effort
        == 12
    )
