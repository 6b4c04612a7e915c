"""Arithmetic of `bench checkpoint`: gaps between steps, and the cost share of checkpoints."""

import pytest

from springtide_lab.bench import Options
from springtide_lab.bench.faults import checkpoint


class Process:
    """Answers as the benchmark's processes do, from a script."""

    def __init__(self, answer):
        self.ask = answer


def test_gaps_are_measured_between_steps():
    assert checkpoint.gaps([1.0, 1.5, 3.5]) == [(1.5, 0.5), (3.5, 2.0)]


def test_longest_gap_counts_only_during_a_save():
    beside = [10.0, 10.01, 10.05], [10.05, 10.06, 10.08], [10.08, 11.0]
    times = iter([[0.0, *(n / 100 for n in range(1, 101)), 9.0], *beside])
    worker = Process(lambda do, **_: {"times": next(times)})
    saved = {"figure": 0.02, "began": 10.02, "ended": 10.07, "bytes": 10**9, "cpu_s": 0.1}
    server = Process(lambda do, what="", **_: saved)
    still = iter([1.0, 1.0, 0.0])
    server.figure = lambda what: next(still)
    one = checkpoint.stall(Options(quick=True), server, worker)
    assert one.longest_s == pytest.approx(0.04) and one.p99_s == pytest.approx(0.01)
    assert one.longest_without_s == pytest.approx(8.0) and next(times, None) is None
    assert one.ratio == pytest.approx(4.0)


def test_rounds_of_a_single_step_have_a_gap():
    worker = Process(lambda do, **_: {"times": [10.0, 12.0]})
    saved = {"figure": 0.02, "began": 20.0, "ended": 20.1, "bytes": 10**9, "cpu_s": 0.1}
    server = Process(lambda do, **_: saved)
    server.figure = lambda what: 0.0
    one = checkpoint.stall(Options(quick=True), server, worker)
    assert one.p99_s == one.longest_s == 2.0, "none of the steps lies within the save: the longest of all counts"


def test_checkpoint_share_is_saver_cpu_plus_extra_worker_blocking():
    state = {"cpu": 0.0, "saves": False}

    def server(do, what="", **_):
        if what == "save":
            state["saves"] = True
        if what == "saved":
            state["cpu"] += 0.5
            return {"cpu_s": 0.5, "bytes": 10**6}
        return {"cpu_s": state["cpu"]}

    def worker(do, **_):
        state["cpu"] += 4.0
        blocked, state["saves"] = (3.0 if state["saves"] else 2.0), False
        return {"cpu_s": 14.0, "figure": 100.0, "spent": {"pull_wait_s": blocked, "push_wait_s": 0.0}}

    share, rows = checkpoint.cost_share(Options(quick=True), Process(server), Process(worker))
    assert share == pytest.approx((0.5 + 1.0) / (18.0 + 2.0))
    assert rows[0][1] == pytest.approx(18.0)


@pytest.mark.parametrize(
    ("gigabytes", "sizes"),
    [(100, (1024, 4096, 8192)), (20.3, (1024, 4096)), (9, (1024,)), (4, (256,))],
)
def test_only_tables_that_fit_memory_are_measured(gigabytes, sizes):
    assert checkpoint.sizes_for(int(gigabytes * 2**30)) == sizes
