"""Counts and goals of `bench allocate` on streams small enough for a unit test."""

import numpy as np
import pytest

from springtide import errors
from springtide_lab import bench
from springtide_lab.bench.cache import allocate, id_streams


def small(samples, seed=0):
    """A stream of 4 tables with frequent hot ids."""
    ids = (200 * np.random.default_rng(seed).random((samples, 4)) ** 2).astype(np.int64)
    return id_streams.IdStream(name="small", ids=ids, rows=(200,) * 4, said="a few ids")


def run_scheme(way, stream, *, workers=4, warmup=2):
    settings = way.settings(workers=workers, capacity_rows=800)
    return allocate.run_scheme(settings, stream.batches(64), warmup=warmup)


def test_every_step_of_the_comparison_saves_transmissions():
    found = {way.name: run_scheme(way, small(64 * 10)) for way in allocate.WAYS}
    totals = [found[way.name].total for way in allocate.WAYS]
    assert totals[0] > totals[2] > totals[4] > totals[5] > totals[6]
    assert found["vanilla"].p2p == found["ours, no P2P"].p2p == 0 < found["ours"].p2p


def test_without_a_scheduler_every_trained_row_is_pushed():
    one = run_scheme(allocate.VANILLA, small(64 * 3), workers=1, warmup=0)
    distinct = [
        len({(t, key) for t, column in enumerate(batch.T) for key in column}) for batch in small(64 * 3).batches(64)
    ]
    pushed_by_then = distinct[:-1]  # a step's rows are written back in the transition to the next
    assert one.push * 3 == sum(pushed_by_then)


def test_best_of_a_tiny_batch_is_never_beaten_and_nearly_reached():
    assert 0.9 < allocate.quality(small(200), workers=4, p2p="off", steps=20, warmup=5) <= 1


def test_id_file_replaces_the_generated_streams(tmp_path):
    np.save(tmp_path / "ids.npy", small(3000).ids)
    [stream] = allocate.given(bench.Options(ids=tmp_path / "ids.npy"), samples=10_000)
    assert stream.name == "ids.npy" and stream.ids.shape == (3000, 4)
    np.save(tmp_path / "few.npy", small(100).ids)
    with pytest.raises(errors.BadInput, match="has 100 samples; at least 2048"):
        allocate.given(bench.Options(ids=tmp_path / "few.npy"), samples=10_000)


def test_goals_use_the_worst_comparison_of_equal_settings():
    of = {
        way.name: allocate.SentRows(pull=p, push=0, p2p=0, largest=1, largest_pull=1, largest_push=1)
        for way, p in zip(allocate.WAYS, (20, 18, 10, 8, 9.5, 7.9, 6), strict=True)
    }
    values = {goal.id: (goal.value, goal.met) for goal in allocate.goals({"correlated": of}, 0.93, "correlated")}
    assert values == {
        "vs_laia_plan_correlated": (0.6, True),
        "vs_laia_plan_p2p_correlated": (0.75, True),
        "vs_laia_plan_worst": (0.9875, True),
        "quality_vs_brute_force": (0.93, True),
    }
