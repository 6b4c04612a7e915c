import threading

from springtide_lab.bench.core import harness


def test_watch_separates_own_cpu_time_from_that_of_others():
    with harness.Watch(settle_s=0.0) as watch:
        deadline = threading.Event()
        deadline.wait(0.05)
    box = watch.box()
    assert box.cores >= 1 and box.memory_gib > 0 and box.cpu
    assert 0 <= box.others_during <= 1


def test_machine_with_other_load_is_not_idle():
    start = harness.MachineMoment(at=0.0, busy=0.0, steal=0.0, ours=0.0)
    end = harness.MachineMoment(at=10.0, busy=10.0, steal=0.5, ours=4.0)
    others, steal = harness._shares(start, end)
    assert others > 0 and steal > 0
