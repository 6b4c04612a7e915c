"""Figures of the shuffle benchmark: load per partition, lag, and when a backlog is drained."""

import numpy as np

from springtide_lab.bench.stream import shuffle
from springtide_lab.bench.stream import shuffle as shuffle_bench
from springtide_lab.bench.stream.shuffle import Scene, ShuffleReport

SCENE = Scene(name="few", partitions=4, workers=2, capacity=100.0, load=0.5, begins_s=1.0, burst_s=2.0)


def report_of(strategy, waiting, sent=0):
    times, waiting = np.arange(len(waiting)) * 1.0, np.array(waiting) * 1.0
    return ShuffleReport(
        strategy=strategy,
        times=times,
        lag_s=np.zeros((2, len(waiting))),
        waiting=waiting,
        read_bytes=1000,
        sent_bytes=sent,
        late_s=0.0,
    )


def test_burst_multiplies_one_partition_by_ten():
    assert SCENE.rate == 25
    assert [SCENE.due(1, at) for at in (0, 1, 3, 4)] == [0, 25, 75, 100]
    assert [SCENE.due(0, at) for at in (0, 1, 2, 3, 4)] == [0, 25, 275, 525, 550]


def test_backlog_may_arrive_at_once_with_all_hot_partitions_on_one_worker():
    flood = Scene(name="flood", partitions=8, workers=2, capacity=100.0, load=0.5, hot=2, at_once=True, burst_s=2.0)
    assert [flood.due(each, 2.0) for each in range(4)] == [25] * 4
    assert [flood.due(each, 2.01) for each in range(4)] == [250, 25, 250, 25]
    assert flood.alone_s() == 2 * flood.together_s() == 9.0 and flood.quiet_from_s == 2.0


def test_burst_arithmetic_is_correct():
    assert SCENE.alone_s() == (225 - 50) * 2 / 50 and SCENE.together_s() == (225 - 100) * 2 / 100


def test_lag_is_the_wait_of_the_oldest_untrained_record():
    appended = np.array([0.0, 1.0, 2.0])
    lag = shuffle_bench.lags(np.array([0.5, 1.5, 2.5, 3.0]), np.array([1, 1, 1, 3]), appended)
    assert lag.tolist() == [0.0, 0.5, 1.5, 0.0]
    assert shuffle_bench.lags(np.array([1.0]), np.array([0]), np.empty(0)).tolist() == [0.0]


def test_arrived_untrained_records_wait():
    assert shuffle_bench.waiting_times(np.array([0.5, 2.5]), np.array([1, 1]), np.array([0.0, 1.0, 2.0])).tolist() == [
        0,
        2,
    ]


def test_backlog_is_drained_once_the_queue_stays_small():
    times, amount = np.arange(6.0), np.array([9.0, 9.0, 1.0, 9.0, 1.0, 1.0])
    assert shuffle_bench.drained_at(times, amount, since=1.0, calm=2.0) == 4.0
    assert shuffle_bench.drained_at(times, amount, since=4.0, calm=2.0) == 4.0
    assert shuffle_bench.drained_at(times, amount, since=0.0, calm=0.5) is None


def test_goals_use_the_worst_scene_and_fail_if_one_never_drains():
    runs = [
        report_of("none", [1, 5, 5, 5, 5, 5, 5, 5, 5, 1]),
        report_of("basic", [1] * 10, sent=900),
        report_of("advanced", [1, 5, 5, 5, 1, 1, 1, 1, 1, 1], sent=50),
    ]
    drain, extra = shuffle._result({SCENE: runs}, []).goals
    assert (drain.value, drain.met) == (6.0, True) and (extra.value, extra.met) == (0.05, True)
    never = [report_of("none", [1, *[5] * 9]), *runs[1:]]
    assert not shuffle._result({SCENE: never}, []).goals[0].met
