"""What a cluster adds to a restart is given and said."""

import pytest

from springtide import errors
from springtide_lab.bench.faults.recovery import Delays


def test_delays_are_arguments_and_are_said():
    delays = Delays.of({"pull": 5})
    assert delays.pull_s == 5 and delays.idle_s == 125
    assert str(delays) == "delays: notice 30 s, save 30 s, pull 5 s, start 60 s, load 30 s"
    with pytest.raises(errors.UnknownName, match="Did you mean 'pull'"):
        Delays.of({"pul": 5})
