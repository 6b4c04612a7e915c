"""What a cluster adds to a restart is given and said."""

import pytest

from springtide import errors
from springtide_lab.bench.core import jobs
from springtide_lab.bench.faults.straggler import USUAL_DELAYS


def test_delays_are_arguments_and_are_said():
    delays = jobs.delays_of({"pull": 5}, USUAL_DELAYS)
    assert delays["pull"] == 5 and sum(delays.values()) == 155
    assert jobs.delays_text(delays) == "delays: notice 30 s, save 30 s, pull 5 s, start 60 s, load 30 s"
    with pytest.raises(errors.UnknownName, match="Did you mean 'pull'"):
        jobs.delays_of({"pul": 5}, USUAL_DELAYS)
