"""Traffic of plans."""

from types import SimpleNamespace

from springtide_lab.bench.cache import plan_traffic


def plan(**counts):
    every = ("pulls", "gradients", "write_backs", "sent", "received")
    return SimpleNamespace(**{name: counts.get(name, 0) for name in every})


def test_row_sent_between_workers_counts_once():
    counted = plan_traffic.traffic([plan(sent=3, pulls=1), plan(received=3, write_backs=2, gradients=4)])
    assert counted.transmissions == 3 + 1 + 2 + 4
    assert counted.pushes == (0, 6)


def test_iteration_time_is_the_largest_push_plus_the_largest_pull():
    before = plan_traffic.traffic([plan(gradients=10), plan(gradients=1)])
    now = plan_traffic.traffic([plan(pulls=5, gradients=100), plan(write_backs=8, pulls=7)])
    assert now.reward(before) == 10 + 7
    assert now.reward() == 8 + 7
