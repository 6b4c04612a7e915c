"""Baselines of the straggler benchmark, by hand."""

import pytest

from springtide import errors
from springtide.bench.static_parts import Delays, equal_parts_s, restart_s


def test_with_equal_parts_the_slowest_decides():
    assert equal_parts_s(400, [10, 10, 1, 10]) == 100


def test_a_restart_costs_its_delays_and_goes_on_with_healthy_workers():
    delays = Delays(notice_s=5, save_s=1, pull_s=2, start_s=3, load_s=4)
    # 155 trained in five seconds, 245 left for 40 a second
    assert restart_s(400, [10, 10, 1, 10], [10] * 4, delays) == pytest.approx(5 + 10 + 245 / 40)
    assert restart_s(400, [10, 10, 1, 10], [10] * 4, Delays(notice_s=5)) == pytest.approx(5 + 245 / 40)


def test_what_is_over_before_anyone_notices_is_not_restarted():
    assert restart_s(40, [10, 10, 1, 10], [10] * 4, Delays(notice_s=60)) == 10


def test_delays_are_arguments_and_are_said():
    delays = Delays.of({"pull": 5})
    assert delays.pull_s == 5 and delays.idle_s == 125
    assert str(delays) == "delays: notice 30 s, save 30 s, pull 5 s, start 60 s, load 30 s"
    with pytest.raises(errors.UnknownName, match="Did you mean 'pull'"):
        Delays.of({"pul": 5})
