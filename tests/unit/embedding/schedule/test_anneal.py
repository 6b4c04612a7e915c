"""The annealing allocator: even, equal on every rank, and counted like its plans."""

import itertools
import math

import numpy as np
import pytest

from springtide import errors
from springtide.embedding.schedule import scheduler as schedulers
from springtide_lab.bench.cache import allocate as allocate_bench
from springtide_lab.bench.cache import plan_traffic
from tests.inspected_scheduler import InspectedScheduler


def features(ids):
    """Features of a matrix of ids, samples by tables."""
    return [schedulers.FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(ids.T)]


def stream(seed, *, batches, samples, tables=3, rows=40):
    """Few hot ids and many cold ones."""
    random = np.random.default_rng(seed)
    return (rows * random.random((batches, samples, tables)) ** 3).astype(np.int64)


def scheduler(**changed):
    return InspectedScheduler(
        schedulers.ScheduleSettings(**{"workers": 4, "capacity_rows": 1000, "policy": "anneal", "seed": 5, **changed})
    )


def spent(of, ids, **wish):
    return plan_traffic.traffic(of.schedule(features(ids), len(ids), **wish).plans).transmissions


@pytest.mark.parametrize("workers", [1, 2, 5, 8, 9, 128])
@pytest.mark.parametrize("samples", [1, 7, 64])
def test_anneal_gives_every_worker_an_equal_share(workers, samples):
    of = scheduler(workers=workers)
    for ids in stream(1, batches=2, samples=samples):
        ranks = of.schedule(features(ids), samples).rank_of_sample
        shares = np.bincount(ranks, minlength=workers)
        assert shares.sum() == samples and shares.max() - shares.min() <= 1


@pytest.mark.parametrize("p2p", schedulers.P2P)
@pytest.mark.parametrize("capacity", [0, 1000])
def test_estimated_traffic_equals_that_of_the_plans(p2p, capacity):
    of = scheduler(p2p=p2p, capacity_rows=capacity)
    for ids in stream(2, batches=8, samples=24):
        reckoned = of.consider(features(ids), len(ids), "anneal")
        done = of.schedule(features(ids), len(ids))
        assert (done.rank_of_sample == reckoned.rank_of_sample).all()
        assert plan_traffic.traffic(done.plans).transmissions == reckoned.transmissions


def test_considering_a_schedule_changes_nothing():
    one, other = scheduler(), scheduler()
    for ids in stream(3, batches=5, samples=16):
        other.consider(features(ids[::-1]), len(ids), "laia")
        assert spent(one, ids) == spent(other, ids)
        assert all((one.cached(w)[1] == other.cached(w)[1]).all() for w in range(4))


def test_all_ranks_agree_and_another_seed_differs():
    batches = stream(4, batches=3, samples=64)
    ranks = [
        [of.schedule(features(ids), len(ids)).rank_of_sample.tolist() for ids in batches]
        for of in (scheduler(), scheduler(), scheduler(seed=6))
    ]
    assert ranks[0] == ranks[1] != ranks[2]


@pytest.mark.parametrize("p2p", schedulers.P2P)
def test_anneal_is_near_optimal_for_a_tiny_batch(p2p):
    of = scheduler(p2p=p2p)
    for ids in stream(5, batches=30, samples=4, tables=6, rows=12):
        found = of.consider(features(ids), 4, "anneal").transmissions
        every = min(count_transmissions(of, ids, ranks) for ranks in itertools.permutations(range(4)))
        assert allocate_bench.fewest_transmissions(of, features(ids)) == every <= found <= every + 1
        of.schedule(features(ids), 4)


def count_transmissions(of, ids, ranks):
    """Count transmissions of one allocation key by key from the caches' contents, in plain Python."""
    owner, dirty = {}, {}
    for worker in range(4):
        for table, key, only in zip(*of.cached(worker), strict=True):
            owner[(table, key)], dirty[(table, key)] = worker, bool(only)
    total = 0
    for table, column in enumerate(ids.T):
        for key in set(column.tolist()):
            who = {rank for rank, each in zip(ranks, column, strict=True) if each == key}
            has, only = owner.get((table, key)), dirty.get((table, key), False)
            if len(who) > 1 and of.settings.p2p == "gradients" and len(who) <= of.settings.p2p_trainers:
                total += 2 * (len(who) - 1) + (has not in who)
            elif len(who) > 1:
                total += 2 * len(who) - (has in who) + only
            elif has not in who:
                total += 1 + (only and of.settings.p2p == "off")
    return total


def test_samples_that_share_keys_go_to_one_worker():
    ids = np.repeat(np.arange(4, dtype=np.int64), 8)[:, None] + np.array([0, 10, 20])
    mixed = np.random.default_rng(7).permutation(ids)
    assert spent(scheduler(), mixed) == 12  # every key is pulled once, by one worker
    assert spent(scheduler(policy="laia"), mixed) > 40


def test_annealing_sends_less_than_herald_and_more_effort_never_more():
    batches = stream(8, batches=12, samples=128, tables=8, rows=3000)
    sent = {
        name: sum(spent(of, ids, effort=effort) for ids in batches)
        for name, of, effort in (
            ("laia", scheduler(policy="laia"), 0),
            ("quick", scheduler(), 2),
            ("long", scheduler(), 30),
        )
    }
    assert sent["long"] <= sent["quick"] < 0.97 * sent["laia"]


def test_bags_and_shared_tables_are_allocated():
    of = scheduler(workers=3)
    bags = schedulers.FeatureIds(
        0, np.array([1, 1, 2, 3, 1, 2], dtype=np.int64), np.array([0, 3, 3, 4, 6], dtype=np.int64)
    )
    other = schedulers.FeatureIds(0, np.array([2, 9, 9, 1], dtype=np.int64))
    reckoned = of.consider([bags, other], 4, "anneal")
    assert plan_traffic.traffic(of.schedule([bags, other], 4).plans).transmissions == reckoned.transmissions


def test_unscored_tables_do_not_affect_the_allocation():
    ids = stream(9, batches=1, samples=128, tables=2, rows=500)[0]
    blind = ids.copy()
    blind[:, 1] = np.arange(128)
    seen, unseen = (scheduler().schedule(features(each), 128, scored=[0]).rank_of_sample for each in (ids, blind))
    assert (seen == unseen).all()


def test_unknown_policy_is_refused():
    ids = stream(10, batches=1, samples=64)[0]
    with pytest.raises(errors.UnknownName, match="anneal"):
        scheduler().consider(features(ids), 64, "aneal")


def test_annealing_noise_is_identical_with_any_math_library():
    for step in range(1024):  # the table of cpp/schedule/allocate/allocate_anneal.cpp
        value = -math.log(-math.log((step + 0.5) / 1024)) * 256
        assert abs(value - math.floor(value) - 0.5) > 1e-6
