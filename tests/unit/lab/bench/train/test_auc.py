"""Results from AUCs with and without faults, and the reproduction rows they fill."""

import json

import msgspec

from springtide_lab.bench.train import auc
from springtide_lab.bench.train.auc import ACTS, Trained
from springtide_lab.reproduce.dlrover_rm import testbed

DONE = tuple(what for _, what, _ in ACTS)


def runs(calm, disturbed, *, lost=0, done=DONE):
    def one(value, *, acts=(), lost=0):
        return Trained(auc=value, lost=lost, repeated=0, seconds=20.0, done=acts)

    return {
        "undisturbed": [one(each) for each in calm],
        "disturbed": [one(each, acts=done, lost=lost) for each in disturbed],
    }


def test_auc_difference_is_that_of_the_means_over_seeds():
    told = auc.judge(runs([0.750, 0.752, 0.751], [0.7503, 0.7518, 0.7512]), "widedeep", 1000)
    difference, counted = told.goals
    assert difference.id == "auc_difference" and difference.value == 0.0001 and difference.met
    assert counted.value == 0 and counted.met


def test_worse_models_lost_samples_and_unfinished_faults_are_reported():
    told = auc.judge(runs([0.75, 0.75], [0.74, 0.74], lost=3), "widedeep", 1000)
    assert [goal.met for goal in told.goals] == [False, False]
    (difference, _) = auc.judge(runs([0.75, 0.75], [0.75, 0.75], done=DONE[:2]), "widedeep", 1000).goals
    assert difference.value is None and difference.why == "2 runs ended before all disturbances"


def test_published_result_fills_the_papers_rows(tmp_path):
    path = tmp_path / "auc.json"
    assert all(row.ours is None for row in testbed.trained(tmp_path))
    told = auc.judge(runs([0.750, 0.752], [0.7503, 0.7518]), "widedeep", 1000)
    path.write_text(json.dumps({**msgspec.to_builtins(told), "date": "2026-11-16"}))
    fig_8, spread, *others = testbed.trained(tmp_path)
    assert fig_8.ours == 0.0 and fig_8.seeds == 2 and fig_8.spread == (-0.0002, 0.0003)
    assert spread.met and "2026-11-16" in spread.why
    assert [row.ours for row in others] == [None, None], "xDeepFM has a file of its own"


def test_quick_or_broken_result_fills_no_row(tmp_path):
    path = tmp_path / "auc.json"
    told = auc.judge(runs([0.750, 0.752], [0.7503, 0.7518]), "widedeep", 1000)
    path.write_text(json.dumps({**msgspec.to_builtins(told), "quick": True}))
    assert testbed.trained(tmp_path)[0].ours is None
    path.write_text("{")
    assert testbed.trained(tmp_path)[0].ours is None
