"""Slot moves balance the measured load with no unnecessary move and empty every leaving server."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.embedding.placement import placement
from springtide.embedding.placement.placement import ServerCapacity, SlotLoad

SLOTS = 64


def applied(old, moves):
    now = list(old)
    for move in moves:
        assert now[move.slot] == move.source != move.target
        now[move.slot] = move.target
    return now


def excess(owners, servers, load):
    """By how much each server is outside the tolerance, in shares, summed over bytes and requests."""
    sums = {}
    for rank, has in servers.items():
        sums[rank] = 0.0
        for kind, amount in (("bytes", "memory"), ("requests", "cpu")):
            total = sum(getattr(each, kind) for each in load)
            weights = [getattr(each, kind) / total if total else 1 / len(load) for each in load]
            share = getattr(has, amount) / sum(getattr(each, amount) for each in servers.values())
            held = sum(weight for weight, owner in zip(weights, owners, strict=True) if owner == rank) / share
            sums[rank] += max(0.0, abs(held - 1) - placement.TOLERANCE)
    return sums


amounts = st.sampled_from([1.0, 2.0, 4.0])
alike = st.dictionaries(
    st.integers(0, 7), amounts.map(lambda size: ServerCapacity(cpu=size, memory=size)), min_size=1, max_size=5
)
"""A server twice as large in both: with other proportions no layout may satisfy bytes and requests at once."""
capacities = st.dictionaries(
    st.integers(0, 7),
    st.builds(lambda cpu, memory: ServerCapacity(cpu=cpu, memory=memory), amounts, amounts),
    min_size=1,
    max_size=5,
)
zipf = st.tuples(st.integers(0, 2**31), st.sampled_from([0.0, 0.5, 0.9])).map(
    lambda pair: [
        SlotLoad(bytes=float(b), requests=float(r))
        for b, r in zip(
            np.random.default_rng(pair[0]).permutation(1000.0 / np.arange(1, SLOTS + 1) ** pair[1]),
            np.random.default_rng(pair[0] + 1).permutation(1000.0 / np.arange(1, SLOTS + 1) ** pair[1]),
            strict=True,
        )
    ]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=SLOTS, max_size=SLOTS), alike, zipf)
def test_servers_end_near_their_share_and_leaving_ones_end_empty(old, servers, load):
    moves = placement.moves(old, servers, load)
    now = applied(old, moves)
    assert set(now) <= set(servers)
    off = excess(now, servers, load)
    # a server may stay off by what its own share leaves no slot fine enough for
    for rank, has in servers.items():
        grain = 0.0
        for kind, amount in (("bytes", "memory"), ("requests", "cpu")):
            total = sum(getattr(each, kind) for each in load)
            share = getattr(has, amount) / sum(getattr(each, amount) for each in servers.values())
            grain += max(getattr(each, kind) for each in load) / total / share
        assert off[rank] <= grain, (rank, off, grain)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=SLOTS, max_size=SLOTS), capacities, zipf)
def test_no_further_move_would_help(old, servers, load):
    now = applied(old, placement.moves(old, servers, load))
    whole = sum(excess(now, servers, load).values())
    for slot in range(0, SLOTS, 5):
        for rank in servers:
            other = list(now)
            other[slot] = rank
            assert sum(excess(other, servers, load).values()) > whole - placement.MIN_GAIN - 1e-9, (slot, rank)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=SLOTS, max_size=SLOTS), capacities, zipf)
def test_every_single_move_is_necessary(old, servers, load):
    moves = placement.moves(old, servers, load)
    now = applied(old, moves)
    whole = sum(excess(now, servers, load).values())
    for move in moves:
        if move.source not in servers:
            continue
        without = list(now)
        without[move.slot] = move.source
        assert sum(excess(without, servers, load).values()) > whole, f"{move} was not needed"


@settings(max_examples=12, deadline=None)
@given(capacities, zipf)
def test_balanced_placement_stays(servers, load):
    once = applied([min(servers)] * SLOTS, placement.moves([min(servers)] * SLOTS, servers, load))
    if not any(excess(once, servers, load).values()):
        assert placement.moves(once, servers, load) == ()


def at_least(old, servers, load):
    """Lower bound on the moves of any layout within the tolerance."""
    problem = placement._problem(old, servers, load)
    held = problem.held(problem.before)
    over, under = held - (1 + placement.TOLERANCE), (1 - placement.TOLERANCE) - held

    def cover(sizes, amount):
        return 0 if amount <= 1e-9 else int(np.searchsorted(np.cumsum(-np.sort(-sizes)), amount - 1e-9)) + 1

    leave, arrive = int(np.count_nonzero(problem.before < 0)), 0
    for server, share in enumerate(problem.share):
        here = problem.before == server
        mine, others = problem.part[here] / share, problem.part[~here] / share
        leave += max(cover(mine[:, kind], over[server, kind]) for kind in (0, 1))
        arrive += max(cover(others[:, kind], under[server, kind]) for kind in (0, 1))
    return max(leave, arrive)


@pytest.mark.parametrize("servers", [2, 3, 4, 8])
def test_few_more_slots_than_necessary_move_when_a_server_joins_or_leaves(servers):
    rng = np.random.default_rng(servers)
    load = [SlotLoad(bytes=1 + b, requests=1 + b + 0.2 * f) for b, f in rng.pareto(2.0, (1024, 2))]
    ranks = {rank: ServerCapacity() for rank in range(servers)}
    came = placement.even(1024, servers - 1).server_of_slot
    assert len(placement.moves(came, ranks, load)) <= 1.25 * at_least(came, ranks, load)
    gone = placement.even(1024, servers + 1).server_of_slot
    assert len(placement.moves(gone, ranks, load)) == at_least(gone, ranks, load)


@pytest.mark.parametrize("servers", [2, 3, 4, 5])
def test_with_equal_slots_only_the_new_servers_share_moves(servers):
    old = placement.even(1024, servers - 1).server_of_slot
    load = [SlotLoad(bytes=10.0, requests=3.0)] * 1024
    moves = placement.moves(old, {rank: ServerCapacity() for rank in range(servers)}, load)
    got = [move.slot for move in moves if move.target == servers - 1]
    assert len(got) == len(moves)
    assert 0.9 * 1024 / servers <= len(got) <= 0.9 * 1024 / servers + servers


def test_replaced_server_hands_over_everything_and_others_keep_theirs():
    old = placement.even(1024, 2).server_of_slot
    moves = placement.moves(old, {0: ServerCapacity(), 2: ServerCapacity()}, [SlotLoad()] * 1024)
    assert {(move.source, move.target) for move in moves} == {(1, 2)} and len(moves) == 512


def test_server_with_twice_the_cpu_takes_more_requests():
    old = placement.even(64, 2).server_of_slot
    servers = {0: ServerCapacity(cpu=3.0), 1: ServerCapacity(cpu=1.0)}
    load = [SlotLoad(bytes=0.0, requests=1.0)] * 64
    now = applied(old, placement.moves(old, servers, load))
    assert now.count(0) > 34


def test_thousands_of_skewed_slots_end_near_their_share():
    rng = np.random.default_rng(7)
    load = [SlotLoad(bytes=float(b), requests=float(r)) for b, r in rng.pareto(2.0, (4096, 2))]
    old = placement.even(4096, 7).server_of_slot
    moves = placement.moves(old, {rank: ServerCapacity() for rank in range(8)}, load)
    now = applied(old, moves)
    assert max(excess(now, {rank: ServerCapacity() for rank in range(8)}, load).values()) < 0.05


def test_placement_on_zero_servers_is_refused():
    with pytest.raises(errors.BadInput, match="on 0 servers"):
        placement.moves([0] * 64, {}, [SlotLoad()] * 64)
