"""Effects of new bounds on a running job."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from springtide import errors
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard
from springtide.domain.spec.planning_config import PlanRules
from springtide.job.core import events
from springtide.job.scaling import plan
from springtide.master import handlers
from springtide.master.core.record import JobRecord
from springtide.rpc.messages import messages
from tests.unit.job.scaling.test_bounds import SPEC


def master_context(spec):
    record = JobRecord(spec)
    happened = []

    def happen(event):
        happened.append(event)
        record.apply(event, 1.0)

    return SimpleNamespace(record=record, apply=happen, happened=happened)


def test_changed_bounds_scale_the_job_and_bound_the_plan():
    made = master_context(SPEC)
    assert handlers.change_bounds(made, messages.BoundsRequest(workers=(1, 2), why="less")) == messages.Ok()
    state = made.record.state
    assert state.workers == 2 and plan.bounds_of(state).most.workers == 2
    assert state.decision.why == "less"
    handlers.change_bounds(made, messages.BoundsRequest(workers=(1, 9)))
    assert state.workers == 2 and plan.bounds_of(state).most.workers == 9


def test_bounds_of_an_unplanned_job_are_refused():
    made = master_context(replace(SPEC, planning=PlanRules()))
    with pytest.raises(errors.BadInput, match="springtide scale"):
        handlers.change_bounds(made, messages.BoundsRequest(workers=(1, 2)))
    assert made.record.state.workers == 3


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"workers": (9, 12)}, "9 workers cannot share a batch of 8 samples"),
        ({"servers": (SPEC.slots + 1, SPEC.slots + 1)}, "at most one server per slot"),
    ],
)
def test_bounds_the_job_cannot_satisfy_are_refused(bounds, why):
    made = master_context(replace(SPEC, sync="bsp"))
    card = DatasetCard(samples=800, batch_size=8, in_step=True)
    made.record.lease(LeaseHolder(0, 0), card, 1, 2.0)
    with pytest.raises(errors.BadInput, match=why):
        handlers.change_bounds(made, messages.BoundsRequest(**bounds))
    assert not made.happened and not made.record.state.planned.limits


def test_draining_or_starting_job_refuses_new_bounds():
    made = master_context(SPEC)
    with pytest.raises(errors.BadInput, match="its servers are not ready yet; try again"):
        handlers.change_bounds(made, messages.BoundsRequest(servers=(2, 2)))
    begun = master_context(replace(SPEC, workers=1, servers=1))
    for role, address in (("server-0", "here"), ("worker-0", "")):
        begun.record.apply(events.RoleJoined(begun.record.state.nodes[role].role, pid=1), 1.0)
        if address:
            begun.record.apply(events.RoleReady(begun.record.state.nodes[role].role, address), 1.0)
    begun.record.apply(events.StopRequested("enough"), 2.0)
    with pytest.raises(errors.BadInput, match="is draining"):
        handlers.change_bounds(begun, messages.BoundsRequest(workers=(1, 2)))
    assert not made.happened and not begun.happened
