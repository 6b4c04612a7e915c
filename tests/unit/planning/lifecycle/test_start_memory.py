"""Initial memory of a new job."""

import numpy as np
import pytest

from springtide.domain.core.shape import GIB, MemoryNeed
from springtide.domain.plan.view import PastJob
from springtide.planning.lifecycle import warm_start


def past_job(kind, rows, at=0, model="wd"):
    need = MemoryNeed(worker=3 * GIB, server=GIB, rows=int(rows * GIB))
    return PastJob(name=f"{kind}-{at}", features={"kind": kind, "model": model}, need=need, ended_at=float(at))


def jobs_of_kinds(count=60, seed=0):
    """Jobs of twelve kinds; how much one needs is its kind's, between 4 and 256 GiB."""
    random = np.random.default_rng(seed)
    sizes = 2.0 ** random.uniform(2, 8, size=12)
    return sizes, [
        past_job(f"kind-{which}", sizes[which], at) for at, which in enumerate(random.integers(12, size=count))
    ]


def similarities(ones, others):
    columns = map(warm_start.feature_columns, (ones, others))
    return warm_start.between(*columns, (len(ones), len(others)))


def predict_need(features, history):
    each = [one.features for one in history]
    newest = each[-warm_start.BACKTESTED :]
    told = warm_start.learn_needs(history, similarities(newest, newest))
    return warm_start.predict_need(history, similarities([features], each), told)


@pytest.mark.parametrize("which", range(12))
def test_job_of_a_known_kind_starts_with_its_memory_plus_a_margin(which):
    sizes, history = jobs_of_kinds()
    need = predict_need({"kind": f"kind-{which}", "model": "wd"}, history)
    assert need.rows / GIB == pytest.approx(warm_start.ROW_MARGIN * sizes[which], rel=1e-6)
    assert (need.worker, need.server) == (3 * GIB, GIB)


def test_job_of_an_unknown_kind_starts_with_the_most_any_similar_job_needed():
    sizes, history = jobs_of_kinds()
    need = predict_need({"kind": "new", "model": "wd"}, history)
    assert need.rows / GIB >= sizes.max()


def test_with_few_past_jobs_the_largest_need_counts():
    assert predict_need({"kind": "b"}, [past_job("a", 7), past_job("b", 2)]).rows == pytest.approx(
        warm_start.ROW_MARGIN * 7 * GIB
    )


def test_past_jobs_without_reported_memory_are_ignored():
    silent = [PastJob(name=str(at), features={"kind": "a"}) for at in range(9)]
    assert predict_need({"kind": "a"}, silent) is None
    assert predict_need({"kind": "a"}, [*silent, past_job("a", 5)]).rows == pytest.approx(
        warm_start.ROW_MARGIN * 5 * GIB
    )
