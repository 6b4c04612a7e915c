"""Results of `bench stream` from its rounds; all its readers read the whole log."""

import numpy as np
import pytest

from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide_lab.bench.core import harness
from springtide_lab.bench.stream import stream, stream_readers


def rounds(**figures):
    named = {"ours": stream.OURS, "log": stream.LOG, "numpy": stream.NUMPY} | {
        f"bare{n}": f"bare {name}" for n, name in enumerate(stream.BARE)
    }
    return harness.Rounds(figures={named[name]: values for name, values in figures.items()})


def test_kafka_goal_uses_the_faster_bare_loop_and_the_worse_record_kind():
    measured = {
        "click": rounds(ours=[90.0] * 3, bare0=[100.0] * 3, bare1=[120.0] * 3, log=[300.0] * 3, numpy=[600.0] * 3),
        "small": rounds(ours=[95.0] * 3, bare0=[100.0] * 3, bare1=[80.0] * 3, log=[300.0] * 3, numpy=[600.0] * 3),
    }
    result = stream.judge(measured, {"click": 10, "small": 10}, "")
    assert [(goal.id, goal.value, goal.met) for goal in result.goals] == [("kafka_vs_bare", 0.75, True)]
    assert result.details["log_vs_numpy"] == {"click": 0.5, "small": 0.5}


def test_kafka_goal_without_a_broker_is_unmeasured_with_a_reason():
    measured = {"click": rounds(log=[300.0] * 3, numpy=[600.0] * 3)}
    goal = stream.judge(measured, {"click": 10}, "no java").goals[0]
    assert goal.value is None and not goal.met and goal.why == "no java"


@pytest.mark.parametrize("kind", stream_readers.KINDS)
def test_all_records_of_a_log_come_as_tensor_batches(tmp_path, kind):
    rows = stream_readers.draw(kind, 3000, seed=1)
    log = create(tmp_path / "log", LogSettings(partitions=2))
    stream_readers.fill(log, rows, 2)
    log.close()
    found = [batch["label"] for batch in stream_readers.batches_of(f"log://{tmp_path}/log", kind, 256)]
    assert sum(map(len, found)) == 3000
    came = np.concatenate([batch.numpy().view(np.uint32) for batch in found])
    assert np.array_equal(np.sort(came), np.sort(rows["label"].copy().view(np.uint32)))
