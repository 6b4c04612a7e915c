"""Slot moves: enough to balance measured load, none that is not needed, nothing left on a server that leaves."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from springtide import errors
from springtide.embedding.placement import placement
from springtide.embedding.placement.placement import ServerCapacity, SlotLoad

SLOTS = 64


@pytest.fixture(autouse=True, scope="module")
def _time_enough():
    """What the solver finds must not depend on how busy the machine is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(placement, "SECONDS", 240.0)
        yield


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
def test_no_single_move_could_be_left_out(old, servers, load):
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
def test_a_balanced_placement_stays(servers, load):
    once = applied([min(servers)] * SLOTS, placement.moves([min(servers)] * SLOTS, servers, load))
    if not any(excess(once, servers, load).values()):
        assert placement.moves(once, servers, load) == ()


def fewest(old, servers, load):
    """The true optimum by trying everything: moves needed for no excess at all, or None."""
    problem = placement._problem(old, servers, load, placement.TOLERANCE)
    layouts = np.array(list(itertools.product(range(len(servers)), repeat=len(old))))
    sums = np.stack([((layouts == server)[:, :, None] * problem.part).sum(axis=1) for server in range(len(servers))])
    balanced = (np.abs(sums / problem.share[:, None, :] - 1.0) <= placement.TOLERANCE + 1e-9).all(axis=(0, 2))
    counts = (layouts != problem.before).sum(axis=1)[balanced]
    return int(counts.min()) if len(counts) else None


few_slots = st.lists(st.integers(1, 4), min_size=9, max_size=9)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=9, max_size=9),
    st.dictionaries(
        st.integers(0, 3),
        st.builds(lambda cpu, memory: ServerCapacity(cpu=cpu, memory=memory), amounts, amounts),
        min_size=1,
        max_size=3,
    ),
    few_slots,
    st.one_of(st.none(), few_slots),
)
def test_small_cases_take_the_fewest_moves_there_are(old, servers, sizes, asked):
    load = [SlotLoad(bytes=float(b), requests=float(r)) for b, r in zip(sizes, asked or sizes, strict=True)]
    best = fewest(old, servers, load)
    moves = placement.moves(old, servers, load)
    if best is not None:
        assert placement.fewest(old, servers, load) <= best
        assert not any(value > 1e-9 for value in excess(applied(old, moves), servers, load).values())
        assert len(moves) == best


def by_a_solver(problem):
    """The fewest moves of larger cases: a binary a slot and server, by branch and bound over linear programs."""
    slots, servers = len(problem.before), len(problem.share)
    costs = np.ones((slots, servers))
    costs[np.arange(slots)[problem.before >= 0], problem.before[problem.before >= 0]] = 0.0
    once = np.kron(np.eye(slots), np.ones((1, servers)))
    held = [np.kron(problem.part[:, kind], np.eye(servers)) / problem.share[:, [kind]] for kind in (0, 1)]
    low = np.r_[np.ones(slots), np.full(2 * servers, 1.0 - problem.tolerance)]
    high = np.r_[np.ones(slots), np.full(2 * servers, 1.0 + problem.tolerance)]
    found = optimize.milp(
        costs.ravel(),
        integrality=np.ones(costs.size),
        bounds=optimize.Bounds(0, 1),
        constraints=optimize.LinearConstraint(np.vstack([once, *held]), low - 1e-9, high + 1e-9),
    )
    return round(found.fun) if found.success else None


@pytest.mark.parametrize("seed", range(12))
def test_larger_cases_take_the_fewest_moves_there_are(seed):
    """Servers that come, go, and are unbalanced, in turn; three or four of them, and loads with heavy tails."""
    rng = np.random.default_rng(seed)
    ranks = range(3 + seed % 2)
    load = [SlotLoad(bytes=1 + b, requests=1 + r) for b, r in rng.pareto(2.5, (SLOTS, 2))]
    servers = {rank: ServerCapacity() for rank in ranks if seed % 3 != 1 or rank != 1}
    had = len(ranks) - (seed % 3 == 0)
    old = rng.integers(0, had, SLOTS).tolist() if seed % 3 == 2 else placement.even(SLOTS, had).server_of_slot
    best = by_a_solver(placement._problem(old, servers, load, placement.TOLERANCE))
    moves = placement.moves(old, servers, load)
    assert best is not None and not any(excess(applied(old, moves), servers, load).values())
    assert placement.fewest(old, servers, load) <= best == len(moves)


def test_the_bound_counts_what_must_leave_and_what_must_arrive():
    part = np.repeat(np.array([[0.4], [0.3], [0.1], [0.1], [0.05], [0.05]]), 2, axis=1)

    def bound(*before):
        share = np.full((2, 2), 0.5)
        problem = placement.PlacementProblem(before=np.array(before), part=part, share=share, tolerance=0.1)
        return placement.at_least(problem)

    assert bound(0, 1, 1, 1, 0, 0) == 0
    assert bound(0, 0, 0, 0, 0, 0) == 2  # 0.45 of all must arrive at the other: 0.4 is too little
    assert bound(1, 0, 0, 0, 0, 0) == 1
    assert bound(-1, -1, -1, 0, 1, 1) == 3  # whoever leaves gives all


def test_of_too_many_slots_the_ones_that_matter_are_laid_anew():
    """Bytes and requests apart, 1024 slots: more choices than one program has. The true fewest are 37."""
    rng = np.random.default_rng(0)
    load = [SlotLoad(bytes=1 + b, requests=1 + r) for b, r in rng.pareto(2.5, (1024, 2))]
    old = placement.even(1024, 7).server_of_slot
    problem = placement._problem(old, {rank: ServerCapacity() for rank in range(8)}, load, placement.TOLERANCE)
    quick = placement.settled(problem, least=placement.at_least(problem))
    better = placement.fewer(problem, quick)
    assert problem.balanced(quick) and problem.balanced(better)
    assert problem.moves(better) == 37 < problem.moves(quick)


def test_without_time_the_quick_layout_stays():
    part, share = np.repeat(np.full((16, 1), 1 / 16), 2, axis=1), np.full((2, 2), 0.5)
    problem = placement.PlacementProblem(before=np.zeros(16, dtype=np.int64), part=part, share=share, tolerance=0.1)
    quick = np.array([0, 1] * 8)
    assert (placement.fewer(problem, quick, seconds=0.0) == quick).all()


@pytest.mark.parametrize("servers", [2, 3, 4, 8])
def test_thousands_of_slots_take_the_fewest_moves_or_hardly_more_when_a_server_comes_or_goes(servers):
    """Against the bound, which no layout goes below: a new server, and one that leaves."""
    rng = np.random.default_rng(servers)
    load = [SlotLoad(bytes=1 + b, requests=1 + b + 0.2 * f) for b, f in rng.pareto(2.0, (1024, 2))]
    ranks = {rank: ServerCapacity() for rank in range(servers)}
    came = placement.even(1024, servers - 1).server_of_slot
    assert len(placement.moves(came, ranks, load)) <= 1.1 * placement.fewest(came, ranks, load)
    gone = placement.even(1024, servers + 1).server_of_slot
    assert len(placement.moves(gone, ranks, load)) == placement.fewest(gone, ranks, load)


@pytest.mark.parametrize("servers", [2, 3, 4, 5])
def test_with_equal_slots_a_new_server_costs_only_what_it_gets(servers):
    old = placement.even(1024, servers - 1).server_of_slot
    load = [SlotLoad(bytes=10.0, requests=3.0)] * 1024
    moves = placement.moves(old, {rank: ServerCapacity() for rank in range(servers)}, load)
    got = [move.slot for move in moves if move.target == servers - 1]
    assert len(got) == len(moves)
    assert 0.9 * 1024 / servers <= len(got) <= 0.9 * 1024 / servers + servers


def test_a_replaced_server_hands_over_all_it_has_and_others_keep_theirs():
    old = placement.even(1024, 2).server_of_slot
    moves = placement.moves(old, {0: ServerCapacity(), 2: ServerCapacity()}, [SlotLoad()] * 1024)
    assert {(move.source, move.target) for move in moves} == {(1, 2)} and len(moves) == 512


def test_a_server_with_twice_the_cpu_takes_more_requests():
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


def test_nobody_to_stay_is_refused():
    with pytest.raises(errors.BadInput, match="one must stay"):
        placement.moves([0] * 64, {}, [SlotLoad()] * 64)
