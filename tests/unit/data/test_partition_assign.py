"""Partitions are assigned evenly with few moves."""

import collections

import hypothesis.strategies as st
from hypothesis import given, settings

from springtide.data.partition_assign import assign


def test_all_partitions_go_to_present_workers():
    found = assign(range(5), {}, [3, 7])
    assert sorted(collections.Counter(found.owners.values()).values()) == [2, 3]
    assert found.why == "5 partitions, 2 workers: 5 free partitions get a worker"


def test_balanced_assignment_moves_no_partition():
    owners = {0: 1, 1: 0, 2: 1, 3: 0}
    found = assign(range(4), owners, [0, 1])
    assert found.owners == owners and found.why.endswith("each worker already has its share")


def test_new_worker_gets_its_share_and_no_other_partition_moves():
    owners = {partition: partition % 2 for partition in range(8)}
    found = assign(range(8), owners, [0, 1, 2, 3]).owners
    assert all(count == 2 for count in collections.Counter(found.values()).values())
    assert sum(found[one] != owners[one] for one in range(8)) == 4


def test_partitions_of_a_lost_worker_are_shared_by_the_others():
    owners = {partition: partition % 3 for partition in range(9)}
    found = assign(range(9), owners, [0, 2]).owners
    assert all(found[one] == owners[one] for one in range(9) if owners[one] != 1)
    assert sorted(collections.Counter(found.values()).values()) == [4, 5]


def test_slow_worker_keeps_one_partition():
    owners = {partition: partition % 3 for partition in range(9)}
    found = assign(range(9), owners, [0, 1, 2], slow=[1])
    counts = collections.Counter(found.owners.values())
    assert [one for one, rank in found.owners.items() if rank == 1] == [1] and counts == {0: 4, 2: 4, 1: 1}
    assert all(found.owners[one] == owners[one] for one in range(9) if owners[one] != 1)
    assert found.why == "9 partitions, 3 workers: 2 move away from slow workers"
    again = assign(range(9), found.owners, [0, 1, 2], slow=[1])
    assert again.owners == found.owners and again.why.endswith("each worker already has its share")


def test_recovered_worker_regains_its_share():
    owners = {0: 0, 1: 1, 2: 2, 3: 0, 4: 2, 5: 0, 6: 2}
    found = assign(range(7), owners, [0, 1, 2]).owners
    assert sorted(collections.Counter(found.values()).values()) == [2, 2, 3]


def test_no_worker_counts_as_slow_when_all_are():
    owners = {partition: partition % 2 for partition in range(4)}
    assert assign(range(4), owners, [0, 1], slow=[0, 1]).owners == owners


def test_free_partitions_do_not_go_to_a_slow_worker():
    assert assign(range(4), {0: 1}, [0, 1], slow=[1]).owners == {0: 1, 1: 0, 2: 0, 3: 0}


def test_partitions_have_no_owner_without_workers():
    assert assign(range(3), {0: 1}, []) == ({}, "no worker asks for partitions")


@settings(max_examples=200, deadline=None)
@given(
    partitions=st.integers(0, 40),
    ranks=st.sets(st.integers(0, 9), min_size=1),
    chance=st.randoms(use_true_random=False),
)
def test_assignment_is_even_with_few_moves_and_stable(partitions, ranks, chance):
    owners = {one: chance.randrange(10) for one in range(partitions) if chance.random() < 0.8}
    found = assign(range(partitions), owners, ranks).owners
    assert found.keys() == set(range(partitions))
    counts = [sum(rank == owner for owner in found.values()) for rank in ranks]
    assert max(counts) - min(counts) <= 1
    had = [sum(rank == owner for owner in owners.values()) for rank in ranks]
    least, more = divmod(partitions, len(ranks))
    keeps = sum(min(have, least + (place < more)) for place, have in enumerate(sorted(had, reverse=True)))
    assert sum(found[one] == owners.get(one) for one in found) == keeps, "fewest moves"
    assert assign(range(partitions), found, ranks).owners == found
