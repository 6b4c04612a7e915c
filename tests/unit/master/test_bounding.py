"""What a user's new bounds do to a job that runs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from springtide import errors
from springtide.domain.plan_rules import PlanRules
from springtide.job import planned
from springtide.master import bounding
from springtide.master.record import Record
from springtide.rpc import messages
from tests.unit.job.test_bounding import SPEC


def doors(spec):
    record = Record(spec)
    return SimpleNamespace(record=record, happen=lambda event: record.happen(event, 1.0))


def test_a_job_comes_into_its_new_bounds_and_plans_within_them():
    made = doors(SPEC)
    assert bounding.answer(made, messages.Rebound(workers=(1, 2), why="less")) == messages.Ok()
    state = made.record.state
    assert state.workers == 2 and planned.bounds_of(state).most.workers == 2
    assert state.decision.why == "less"
    bounding.answer(made, messages.Rebound(workers=(1, 9)))
    assert state.workers == 2 and planned.bounds_of(state).most.workers == 9


def test_a_job_that_nobody_plans_has_no_bounds():
    made = doors(replace(SPEC, planning=PlanRules()))
    with pytest.raises(errors.BadInput, match="springtide scale"):
        bounding.answer(made, messages.Rebound(workers=(1, 2)))
    assert made.record.state.workers == 3
