"""The native scheduler against plain sets, with invariants, for random batches, sizes and settings."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.data import shards
from springtide.embedding.schedule import scheduler as schedulers
from tests.inspected_scheduler import InspectedScheduler
from tests.property import schedule_reference

WIDE = 2**24
"""Ids from here on cannot be told apart as float32."""


@st.composite
def runs(draw):
    """Settings, and a few batches of bags over two or three tables; two features may share a table."""
    chosen = schedulers.ScheduleSettings(
        workers=draw(st.sampled_from([1, 2, 3, 5, 8])),
        capacity_rows=draw(st.sampled_from([0, 1, 2, 5, 20, 1000])),
        policy=draw(st.sampled_from(schedulers.POLICIES)),
        seed=draw(st.integers(0, 2**64 - 1)),
        p2p=draw(st.sampled_from(schedulers.P2P)),
        p2p_trainers=draw(st.integers(1, 4)),
        on_demand=draw(st.booleans()),
        threads=draw(st.sampled_from([1, 1, 3])),
    )
    tables = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([3, 30, 300]))
    steps = draw(st.integers(1, 8))
    bags = draw(st.booleans())
    batches = []
    for _ in range(steps):
        samples = int(random.integers(0, 4 * chosen.workers + 3))
        batches.append((samples, [feature(random, table, samples, spread, bags=bags) for table in tables]))
    flushes = draw(st.sets(st.integers(1, steps)))
    return chosen, batches, flushes


def feature(random, table, samples, spread, *, bags):
    lengths = random.integers(0, 4, samples) if bags else np.ones(samples, dtype=np.int64)
    ids = WIDE + random.integers(0, spread, int(lengths.sum())) * random.choice([1, -1, 2**33])
    return schedulers.FeatureIds(table, ids, np.concatenate([[0], np.cumsum(lengths)]) if bags else None)


def keys_of(features, sample):
    for one in features:
        first, end = (sample, sample + 1) if one.offsets is None else one.offsets[sample : sample + 2]
        yield from ((one.table, int(key)) for key in one.ids[first:end])


def wanted_by(features, ranks, workers):
    wanted = [{} for _ in range(workers)]
    for worker in range(workers):
        for sample in np.flatnonzero(ranks == worker):
            wanted[worker].update(dict.fromkeys(keys_of(features, sample)))
    return [list(keys) for keys in wanted]


def batch_order(features):
    """Table by table, as they first come; within one feature by feature."""
    tables = dict.fromkeys(one.table for one in features)
    return list(
        dict.fromkeys((table, int(key)) for table in tables for f in features if f.table == table for key in f.ids)
    )


def pairs(listed):
    tables, keys = listed
    found = list(zip(tables.tolist(), keys.tolist(), strict=True))
    assert len(set(found)) == len(found)
    return set(found)


def as_reference_plan(plan):
    ends = {
        side: {(peer, key) for peer, rows in getattr(plan, side) for key in pairs(rows)}
        for side in schedule_reference.ENDS
    }
    names = ("write_back", "drop", "hold_hit", "hold_pull", "pass_hit", "pass_pull")
    return schedule_reference.Planned(**{name: pairs(getattr(plan, name)) for name in names}, **ends)


def both_ends_agree(plans):
    """Check that everything sent is received in the same order: parcels have no headers."""
    for sends, receives in (
        ("sends", "receives"),
        ("value_sends", "value_receives"),
        ("gradient_sends", "gradient_receives"),
    ):
        out = {(plan.rank, peer): rows for plan in plans for peer, rows in getattr(plan, sends)}
        into = {(peer, plan.rank): rows for plan in plans for peer, rows in getattr(plan, receives)}
        assert out.keys() == into.keys()
        for pair, (tables, keys) in out.items():
            assert (tables == into[pair][0]).all() and (keys == into[pair][1]).all()


@settings(max_examples=80, deadline=None)
@given(runs())
def test_native_plans_and_caches_match_plain_sets(run):
    chosen, batches, flushes = run
    native = InspectedScheduler(chosen)
    other_rank = InspectedScheduler(chosen)
    model = schedule_reference.Reference(
        workers=chosen.workers,
        capacity=chosen.capacity_rows,
        p2p=chosen.p2p,
        p2p_trainers=chosen.p2p_trainers,
        on_demand=chosen.on_demand,
    )
    for samples, features in batches:
        done = native.schedule(features, samples)
        ranks = done.rank_of_sample
        sizes = np.bincount(ranks, minlength=chosen.workers)
        assert len(ranks) == samples and sizes.max() - sizes.min() <= 1  # even batches
        assert (ranks == other_rank.schedule(features, samples).rank_of_sample).all()  # every rank, the same answer
        assert [as_reference_plan(plan) for plan in done.plans] == model.plan(
            wanted_by(features, ranks, chosen.workers), batch_order(features)
        )
        both_ends_agree(done.plans)
        if done.step in flushes:
            for each in (native, other_rank):
                each.flushed(done.step)
            model.flushed = max(model.flushed, done.step)
        owners = {}
        for worker in range(chosen.workers):
            tables, keys, dirty = native.cached(worker)
            rows = list(zip(tables.tolist(), keys.tolist(), strict=True))
            assert list(zip(rows, dirty.tolist(), strict=True)) == model.cached(worker)
            assert len(rows) <= chosen.capacity_rows
            for row in rows:
                assert owners.setdefault(row, worker) == worker  # one holder at most


@settings(max_examples=60, deadline=None)
@given(runs())
def test_laia_gives_each_sample_to_the_worker_with_room_that_caches_most_keys(run):
    chosen, batches, _ = run
    scheduler = InspectedScheduler(
        schedulers.ScheduleSettings(workers=chosen.workers, capacity_rows=chosen.capacity_rows)
    )
    for samples, features in batches:
        caches = [set() for _ in range(chosen.workers)]
        for worker, cache in enumerate(caches):
            tables, keys, _ = scheduler.cached(worker)
            cache.update(zip(tables.tolist(), keys.tolist(), strict=True))
        runs = [shards.rank_part(samples, rank=w, workers=chosen.workers) for w in range(chosen.workers)]
        room = [run.stop - run.start for run in runs]
        for sample, rank in enumerate(scheduler.schedule(features, samples).rank_of_sample):
            keys = set(keys_of(features, sample))
            scores = {w: len(keys & caches[w]) for w in range(chosen.workers) if room[w]}
            assert scores[rank] == max(scores.values())
            room[rank] -= 1
