"""Initial shape of a new job."""

import math
from dataclasses import replace

import numpy as np
import pytest

from springtide.domain.core.shape import MemoryNeed, Shape, ShapeBounds
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig, PlanningIdentity
from springtide.planning.lifecycle import warm_start

GIB = 1 << 30
FACTS = ModelFacts(dense_bytes=1e6, bandwidth=1e9, dim=416, batch=512)
BOUNDS = ShapeBounds(
    least=Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5),
    most=Shape(workers=64, servers=16, worker_cpu=32, server_cpu=32, worker_memory=64 * GIB, server_memory=64 * GIB),
)
CONFIG = PlanningConfig()
LIKE = {"model": "widedeep", "tables": 26.0, "batch": 512.0, "source": "clicks"}


def shape(workers, servers=4):
    return Shape(workers=workers, servers=servers, worker_cpu=4, server_cpu=8, worker_memory=GIB, server_memory=4 * GIB)


def job(user="ann", features=None, **more):
    known = PlanningIdentity(user=user, features=LIKE if features is None else features)
    return JobView(name="new", identity=known, facts=FACTS, bounds=BOUNDS, **more)


def past_job(name, workers, user="ann", features=None, at=0.0, servers=4):
    return PastJob(name=name, user=user, features=features or LIKE, shape=shape(workers, servers), ended_at=at)


def seasons(seed, count=120):
    """Jobs of three models; the model and the batch size decide on the final shape, the rest is chance."""
    generator, made = np.random.default_rng(seed), []
    for at in range(count):
        kind = int(generator.integers(3))
        batch = float(generator.choice([256, 512, 1024]))
        features = {
            "model": ("widedeep", "xdeepfm", "dcn")[kind],
            "batch": batch,
            "source": f"table-{generator.integers(9)}",
            "rows": float(generator.integers(1_000, 100_000)),
        }
        workers = (24, 8, 15)[kind] * (batch / 512) ** 0.5 + generator.normal(0, 0.4)
        one = past_job(
            f"job-{at}", max(1, round(workers)), f"user-{generator.integers(20)}", features, at, (8, 2, 5)[kind]
        )
        made.append(one)
    return made


def test_most_similar_job_enters_last_with_weight_mu():
    rows = np.array([[10.0], [20.0], [40.0]])  # the most similar first
    mu = 0.7
    assert warm_start.smooth(rows, mu) == pytest.approx([mu * 10 + (1 - mu) * (mu * 20 + (1 - mu) * 40)])
    assert warm_start.smooth(rows[:1], mu) == pytest.approx([10.0])


def test_warm_start_from_differently_shaped_jobs_keeps_their_total_cores():
    """The mean number of the mean size would be 21 servers of 6: 126 cores, at the workers' expense."""
    few = Shape(workers=20, servers=14, worker_cpu=4, server_cpu=8, worker_memory=GIB, server_memory=8 * GIB)
    many = replace(few, workers=40, worker_cpu=2, servers=28, server_cpu=4, server_memory=4 * GIB)
    history = [
        replace(past_job(f"job-{at}", 1, at=float(at)), shape=one, need=MemoryNeed(worker=GIB, rows=100 * GIB))
        for at, one in enumerate((few, many, few, many))
    ]
    bounds = replace(BOUNDS, most=replace(BOUNDS.most, servers=64))
    given = replace(CONFIG, similar=2, smoothing=0.5)
    found = warm_start.start(replace(job(), bounds=bounds), history, given).shape
    assert (found.workers, found.servers) == (30, 21)
    assert found.workers * found.worker_cpu == pytest.approx(80, abs=30 * 0.1)  # cores come in tenths
    assert found.servers * found.server_cpu == pytest.approx(112, abs=21 * 0.1)


def test_only_similar_jobs_decide_the_start():
    other = {"model": "dlrm", "tables": 3.0, "batch": 8192.0, "source": "images"}
    history = [
        past_job("near", 20, at=1),
        past_job("far", 60, user="bob", features=other, at=2),
        past_job("nearer", 22, at=3),
    ]
    start = warm_start.start(job(), history, replace(CONFIG, similar=2, smoothing=0.5))
    assert start.warm and start.shape == replace(shape(21), server_memory=8 * GIB)  # nobody has told what it needed
    assert "2 similar jobs" in start.why and "nearer" in start.why


def test_dissimilar_history_gives_a_small_start():
    stranger = {"model": "dlrm", "tables": 3.0, "batch": 8192.0, "source": "images"}
    start = warm_start.start(job(), [past_job("far", 60, user="bob", features=stranger)], CONFIG)
    assert not start.warm
    assert (start.shape.workers, start.shape.servers) == (1, 1)
    assert start.shape.worker_cpu == CONFIG.server_cpu
    assert "no past job is similar" in start.why


def test_start_without_history_is_small_and_within_bounds():
    tiny = ShapeBounds(least=BOUNDS.least, most=Shape(workers=2, servers=2, worker_cpu=1, server_cpu=1))
    start = warm_start.start(replace(job(), bounds=tiny), [], CONFIG)
    assert start.shape == Shape(workers=1, servers=1, worker_cpu=1, server_cpu=1)
    assert "no history" in start.why


def test_invalid_history_entries_are_skipped_with_a_note():
    garbage = [
        PastJob(name="none"),
        PastJob(name="no time", shape=shape(3), ended_at=math.nan),
        PastJob(name="failed", shape=shape(50), features=LIKE, user="ann", finished=False),
        PastJob(name="odd features", shape=shape(9), features={"model": math.nan, "batch": math.inf, "source": ""}),
    ]
    start = warm_start.start(job(), [*garbage, past_job("good", 12)], CONFIG)
    assert start.shape.workers == 12
    assert any("2 of 5 jobs skipped, because their records are invalid" in note for note in start.notes)
    assert any("1 of 5 jobs skipped, because they did not finish" in note for note in start.notes)
    assert not warm_start.start(job(), garbage, CONFIG).warm


def learn_lesson(history, similar=None, smoothing=None):
    return warm_start.known(warm_start.SameHistory(history), similar, smoothing).lesson


@pytest.mark.parametrize("count", [1, 20])
def test_features_unknown_before_a_run_do_not_reduce_similarity(count):
    """For a repeated script, its history has model features that its submission lacks."""
    script = {"script": "train.py", "job": "train", "sync": "async"}
    made_of = {"tables": 26.0, "dim": 416.0, "dense_bytes": 1e6, "batch": 512.0, "samples": 1e6}
    history = [past_job(f"train-{at}", 12, features={**script, **made_of}, at=at) for at in range(count)]
    assert warm_start.start(job(features=script), history, CONFIG).shape.workers == 12
    other = warm_start.start(job(features={**script, "arguments": "--epochs 3"}), history, CONFIG)
    assert other.warm and other.shape.workers == 12
    assert not warm_start.start(job(user="", features={}), history, CONFIG).warm


def test_another_script_of_the_same_user_is_not_similar():
    history = [past_job("deep", 12, features={"script": "deep.py", "job": "deep", "sync": "async", "dim": 8.0})]
    start = warm_start.start(job(features={"script": "wide.py", "job": "wide", "sync": "async"}), history, CONFIG)
    assert not start.warm and "no past job is similar (at best 50%)" in start.why


@pytest.mark.parametrize("count", [1, 20])
def test_history_without_features_gives_a_small_start(count):
    history = [PastJob(name=str(at), shape=shape(9), ended_at=at) for at in range(count)]
    start = warm_start.start(job(user="", features={}), history, CONFIG)
    assert not start.warm and "no past job has a feature" in start.why


def test_unknown_user_starts_like_jobs_of_the_same_model():
    history = seasons(5, 60)
    stranger = job("nobody", {"model": "xdeepfm", "batch": 512.0, "source": "table-99", "rows": 7.0})
    start = warm_start.start(stranger, history, CONFIG)
    assert start.warm and start.shape.servers == 2 and start.shape.workers == pytest.approx(8, abs=2)


def test_small_start_has_the_memory_of_all_requested_servers():
    asked = warm_start.cold(job(requested=shape(8, servers=4)), CONFIG, "there is no history").shape
    assert asked.server_memory == 4 * 4 * GIB


def test_start_holds_the_known_memory_need():
    start = warm_start.start(job(need=MemoryNeed(worker=2 * GIB, rows=40 * GIB)), [past_job("one", 12)], CONFIG)
    assert start.shape.worker_memory == 2 * GIB
    assert start.shape.server_memory == 10 * GIB


@pytest.mark.parametrize("seed", [1, 2])
def test_backtest_finds_predictive_features_and_predicts_the_final_shape(seed):
    history = seasons(seed, 160)
    known, new = history[:120], history[120:]
    lesson = learn_lesson(known)
    weights = lesson.telling.weights
    assert weights["model"] > weights["source"] and weights["model"] > weights["user"]
    near = []
    for one in new:
        started = warm_start.start(job(one.user, one.features), known, CONFIG).shape
        near.append(
            [
                min(a, b) / max(a, b)
                for a, b in ((started.workers, one.shape.workers), (started.servers, one.shape.servers))
            ]
        )
    workers, servers = np.mean(near, axis=0)
    assert workers >= 0.92 and servers >= 0.85


def test_given_k_and_mu_are_used():
    lesson = learn_lesson(seasons(3, 40), similar=2, smoothing=0.6)
    assert (lesson.similar, lesson.smoothing) == (2, 0.6)
    short = learn_lesson(seasons(3, 4))
    assert math.isnan(short.accuracy) and short.similar == warm_start.USUAL_SIMILAR


def test_jobs_with_the_same_history_learn_from_it_once():
    history = tuple(seasons(4, 60))
    warm_start.known.cache_clear()
    starts = [warm_start.start(job(), history, CONFIG) for at in range(5)]
    assert warm_start.known.cache_info().misses == 1 and len({one.why for one in starts}) == 1
    warm_start.start(job(), (*history, history[0]), CONFIG)
    assert warm_start.known.cache_info().misses == 2


def test_history_of_100000_jobs_costs_no_more_than_its_newest_part():
    long = tuple(seasons(5, warm_start.NEWEST)) * 625
    new = job()
    assert len(long) == 100_000 and warm_start.start(new, long, CONFIG) == warm_start.start(new, long[-200:], CONFIG)
