"""Results of `bench straggler` from its jobs' notes; the models it trains are the zoo's."""

import itertools

import numpy as np
import pytest
import torch

from springtide.data.source import as_batch
from springtide.zoo.models import WideDeep, XDeepFM
from springtide_lab.bench.faults import straggler
from springtide_lab.bench.faults.straggler import KINDS, LOG, SLOW, WORKERS, StragglerRun


def test_full_pace_of_a_slowed_worker_is_that_of_its_peers():
    def at(pace, begin, end):
        return np.arange(begin, end, 1 / pace).tolist()

    times = [at(10, 0, 10) + at(12, 10, 60) for _ in range(WORKERS)]
    times[SLOW] = at(11, 0, 10) + at(1, 10, 60)
    assert straggler.full_paces(times, 0.0, 10.0) == pytest.approx((12.0,) * WORKERS, rel=0.01)
    assert straggler.full_paces(times, 10.0, 10.0) == pytest.approx((12.0,) * WORKERS, rel=0.01), "from the start on"


def test_every_straggler_case_is_shown_beside_equal_parts():
    outcomes = [
        straggler.StragglerOutcome(
            case=case,
            runs=(StragglerRun(took_s=33.0, ideal_s=30.0),),
            parts=StragglerRun(took_s=110.0, ideal_s=50.0),
        )
        for case in (straggler.HARD, *straggler.MODELS)
    ]
    told = straggler.judge(outcomes)
    assert [(goal.id, goal.value, goal.met) for goal in told.goals] == [("jct_vs_ideal", 1.1, True)]
    shown = {row[0]: row[2:] for row in told.rows}
    assert shown["3%: equal parts, of less work"] == (2.2, "-50%", "-48.5%")
    assert shown["25% WideDeep: equal parts"] == (2.2, "-50%", "-24%")
    assert shown["25% xDeepFM: equal parts"] == (2.2, "-50%", "-42%")
    assert all(len(row) == len(told.columns) for row in told.rows)


@pytest.mark.parametrize(("kind", "model"), [("WideDeep", WideDeep), ("xDeepFM", XDeepFM)])
def test_model_trains_on_a_log_that_repeats_after_its_last_sample(tmp_path, kind, model):
    work = KINDS[kind]
    trained, data = work.model(), work.data(tmp_path, 2 * LOG)
    assert type(trained) is model and len(data) == 2 * LOG
    first, again = (data.batch(np.arange(begin, begin + work.batch)) for begin in (0, LOG))
    assert torch.equal(first[1], again[1])
    loss = work.loss(trained, as_batch(first))
    loss.backward()
    grads = list(itertools.islice((param.grad for param in trained.parameters()), 3))
    assert loss.item() > 0 and all(grad is not None for grad in grads)
