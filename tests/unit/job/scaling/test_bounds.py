"""Bounds changed while a job runs: plans keep to them, and the job is scaled into them."""

from dataclasses import replace

import msgspec
import pytest

from springtide import errors
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.data.data_workers import FeedRules, StageTarget
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.planning_config import PlanningStage, PlanRules
from springtide.job.core import events
from springtide.job.scaling import plan
from springtide.job.state import JobState
from springtide.master.core.record import JobRecord, encode_call

BOUNDS = ShapeBounds(
    least=Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.2),
    most=Shape(workers=4, servers=2, worker_cpu=1.0, server_cpu=1.0),
    quota=ResourceBudget(cpu=6.0, memory=2.0**40),
)
SPEC = JobSpec(name="job", workers=3, worker_cpu=0.5, server_cpu=0.5, planning=PlanRules(bounds=BOUNDS))


def counts(state, name):
    bounds = plan.bounds_of(state)
    return getattr(bounds.least, name), getattr(bounds.most, name)


def change_bounds(state, workers=None, servers=None):
    return state.handle(events.BoundsChanged(workers, servers, "the spec was changed"), at=2.0)


def test_plans_keep_to_new_bounds_and_other_bounds_stay():
    state = JobState(SPEC)
    (decided,) = change_bounds(state, workers=(2, 9))
    assert decided.what == "plan with 2 to 9 workers"
    assert counts(state, "workers") == (2, 9) and counts(state, "servers") == (1, 2)
    change_bounds(state, servers=(2, 5))
    assert counts(state, "workers") == (2, 9) and counts(state, "servers") == (2, 5)


def test_user_bounds_may_exceed_the_quota():
    state = JobState(SPEC)
    change_bounds(state, workers=(20, 20))
    assert plan.bounds_of(state).quota.cpu == pytest.approx(20 * 0.5 + 0.2)


def test_cores_of_data_workers_are_not_planned_for_other_roles():
    state = JobState(SPEC)  # 3 workers and a server of 0.5 cores each: 2 of 6
    assert plan.bounds_of(state).quota.cpu == 6.0
    state.handle(events.DataWorkersScaled(2, 1.5, "they pay"), at=1.0)
    assert plan.bounds_of(state).quota.cpu == pytest.approx(3.0)
    state.handle(events.DataWorkersScaled(3, 1.5, "more pay"), at=2.0)
    assert plan.bounds_of(state).quota.cpu == pytest.approx(2.0), "what workers and servers have is theirs"
    stages = (StageTarget(1, 0.5), StageTarget(2, 1.0))
    state.handle(events.DataWorkersScaled(3, 1.0, "two stages", stages=stages), at=3.0)
    assert plan.bounds_of(state).quota.cpu == pytest.approx(3.5)
    state.handle(events.DataWorkersScaled(0, None, "they do not pay"), at=4.0)
    assert plan.bounds_of(state).quota.cpu == 6.0


def test_requested_data_workers_reserve_their_cores_before_they_start():
    def left(**rules):
        return plan.bounds_of(JobState(replace(SPEC, feeding=FeedRules(**rules)))).quota.cpu

    assert left(workers=2, cpu=1.5) == pytest.approx(3.0)
    assert left(workers=1) == pytest.approx(5.0), "one without a limit counts for a core"
    assert left() == left(workers=0) == 6.0


def test_refused_data_workers_release_their_cores_to_the_plan():
    state = JobState(replace(SPEC, feeding=FeedRules(workers=2, cpu=1.0)))
    state.handle(events.DataWorkersRefused("worker-0: a lock cannot be pickled"), at=1.0)
    assert plan.bounds_of(state).quota.cpu == 6.0


def test_new_bounds_release_a_manually_set_count():
    state = JobState(SPEC)
    state.handle(events.WorkersScaled(2, "by hand", pinned=True), at=1.0)
    assert counts(state, "workers") == (2, 2)
    change_bounds(state, servers=(1, 2))
    assert counts(state, "workers") == (2, 2), "bounds of servers say nothing of workers"
    change_bounds(state, workers=(1, 3))
    assert counts(state, "workers") == (1, 3)


@pytest.mark.parametrize(("limits", "wanted"), [((1, 2), 2), ((5, 8), 5), ((1, 3), None)])
def test_job_outside_new_bounds_is_scaled_into_them_without_pinning(limits, wanted):
    state = JobState(SPEC)
    change_bounds(state, workers=limits)
    assert state.workers == (wanted or 3) and not state.planned.pinned
    assert counts(state, "workers") == limits
    assert plan.moves_into_bounds(state, "why") == []


def test_servers_follow_new_bounds_except_in_a_bsp_group():
    for in_step in (False, True):
        state = JobState(SPEC)
        state.safety.placed, state.bsp.in_step = True, in_step
        change_bounds(state, servers=(2, 3))
        assert state.servers_wanted == (1 if in_step else 2)


def test_plan_for_old_bounds_is_dropped_and_late_advice_refused():
    state = JobState(SPEC)
    state.handle(events.PlanTaken(BOUNDS.most, PlanningStage.ADJUSTING, "more"), at=1.0)
    epoch = state.planned.epoch
    change_bounds(state, workers=(1, 2))
    assert state.planned.target is None and state.planned.epoch > epoch


def test_unplaced_roles_are_not_requested_again_within_new_bounds():
    state = JobState(SPEC)
    state.short.workers, state.short.servers = 2, 1
    change_bounds(state, workers=(1, 3))
    assert (state.short.workers, state.short.servers) == (0, 1)


@pytest.mark.parametrize("limits", [(0, 2), (3, 2)])
def test_impossible_bounds_change_nothing(limits):
    state = JobState(SPEC)
    with pytest.raises(errors.BadInput, match="bounds: workers from"):
        change_bounds(state, workers=limits)
    assert counts(state, "workers") == (1, 4)


def test_next_master_keeps_changed_bounds():
    record = JobRecord(SPEC)
    event = events.BoundsChanged((2, 9), None, "the spec was changed")
    record.replay(encode_call(record.apply, (event, 1.0), {}))
    assert counts(JobRecord.from_bytes(record.to_bytes()).state, "workers") == (2, 9)
    assert msgspec.convert(msgspec.to_builtins(event), type=events.BoundsChanged) == event
