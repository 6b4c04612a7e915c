"""A plan becomes single moves within the quota, and always ends."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.planning_config import AdviserRules, PlanningStage, PlanRules
from springtide.job.core import actions, events
from springtide.job.scaling import plan
from springtide.job.state import JobState
from tests.oracles import job_invariants

MOST = Shape(workers=6, servers=4, worker_cpu=4.0, server_cpu=4.0)
LEAST = Shape(workers=1, servers=1, worker_cpu=0.1, server_cpu=0.1)
SMALL = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.5)
SHAPES = st.builds(
    Shape,
    workers=st.integers(1, 6),
    servers=st.integers(1, 4),
    worker_cpu=st.sampled_from([0.1, 0.5, 1.0, 4.0]),
    server_cpu=st.sampled_from([0.1, 0.5, 1.0, 4.0]),
    worker_memory=st.sampled_from([0, 1 << 30]),
    server_memory=st.sampled_from([0, 1 << 30]),
)

CORES = st.builds(lambda shape: replace(shape, worker_memory=0, server_memory=0), SHAPES)


def running_job(quota=8.0, sync="async", *, overlap=False, brain=""):
    """A small job, all of which is there."""
    bounds = ShapeBounds(least=LEAST, most=MOST, quota=ResourceBudget(cpu=quota, memory=2**40))
    rules = PlanRules(bounds=bounds, overlap=overlap, adviser=AdviserRules(brain=brain))
    spec = JobSpec(name="job", worker_cpu=0.5, server_cpu=0.5, sync=sync, planning=rules)
    state = JobState(spec)
    join_and_leave(state)
    return state


def join_and_leave(state):
    """All expected roles join and all draining roles leave."""
    for name, node in list(state.nodes.items()):
        if node.state == "expected":
            state.handle(events.RoleJoined(node.role, node.incarnation, 1), at=1.0)
        if node.role.kind is RoleKind.SERVER and node.state == "joined" and not node.address:
            state.handle(events.RoleReady(node.role, name, node.incarnation), at=1.0)
    for node in list(state.nodes.values()):
        if node.state == "draining" and node.role.kind is RoleKind.WORKER:
            state.handle(events.ScriptFinished(node.role, node.incarnation), at=1.0)
            state.handle(
                events.RoleExited(RoleExit(role=node.role, pid=1, code=0, incarnation=node.incarnation)), at=1.0
            )
        elif node.state == "draining":
            state.handle(events.ServerEmptied(node.role), at=1.0)
    job_invariants.check(state)


def carry_out(state, target, **more):
    """All moves of a plan; the shapes on the way."""
    state.handle(events.PlanTaken(target, PlanningStage.ADJUSTING, "because", **more), at=2.0)
    shapes = []
    for _ in range(20):
        move = plan.next_move(state)
        if move is None:
            return shapes
        state.handle(move, at=3.0)
        shapes.append(plan.shape_of(state))
        join_and_leave(state)
        assert plan.unsettled(state, moving=0) == ""
    raise AssertionError("a plan never ends")


@given(now=CORES, target=CORES)
def test_intermediate_shapes_stay_within_the_quota(now, target):
    quota = ResourceBudget(cpu=max(now.cpu, target.cpu), memory=max(now.memory, target.memory))
    for _ in range(5):
        some = plan.next_fields(now, target, quota)
        if some is None:
            break
        now = plan.changed(now, target, some)
        assert quota.holds(now)
    assert now == target


def test_overlapping_change_keeps_old_roles_until_new_ones_are_ready():
    target = Shape(workers=3, servers=1, worker_cpu=0.2, server_cpu=0.4)
    shapes = carry_out(running_job(quota=1.0, overlap=True), target)
    assert (shapes[0].workers, shapes[0].worker_cpu) == (3, 0.5)
    assert shapes[-1] == target
    shapes = carry_out(running_job(quota=1.0), target)
    assert (shapes[0].workers, shapes[0].worker_cpu) == (1, 0.2)


@given(target=SHAPES)
def test_any_valid_plan_is_carried_out(target):
    state = running_job(quota=100.0)
    carry_out(state, target)
    assert plan.shape_of(state) == target
    assert state.planned.target is None and state.planned.stage is PlanningStage.ADJUSTING
    active = [node for node in state.nodes.values() if node.active]
    assert {(node.cpu, node.memory or 0) for node in active if node.role.kind is RoleKind.WORKER} == {
        (target.worker_cpu, target.worker_memory)
    }
    assert {node.cpu for node in active if node.role.kind is RoleKind.SERVER} == {target.server_cpu}


@given(before=CORES, target=CORES)
def test_intermediate_shapes_on_a_shared_cluster_never_exceed_both_ends(before, target):
    state = running_job(quota=100.0, brain="host:1")
    carry_out(state, before)
    for shape in carry_out(state, target):
        assert shape.cpu <= max(before.cpu, target.cpu) * (1 + 1e-9)


def test_plan_adds_workers_before_servers():
    target = Shape(workers=2, servers=2, worker_cpu=0.5, server_cpu=0.5)
    assert [s.servers for s in carry_out(running_job(), target)] == [1, 2, 2]


def test_server_that_never_joins_ends_the_plan_with_a_reason():
    state = running_job()
    target = Shape(workers=1, servers=2, worker_cpu=0.5, server_cpu=0.5)
    state.handle(events.PlanTaken(target, PlanningStage.ADJUSTING, "because"), at=2.0)
    state.handle(plan.next_move(state), at=3.0)
    state.handle(events.RoleLate(Role(RoleKind.SERVER, 1), 0, 400.0), at=400.0)
    end = plan.next_move(state)
    assert isinstance(end, events.PlanEnded) and "the plan asked for 2, and the job got 1" in end.why
    (said,) = state.handle(end, at=401.0)
    assert "drop the plan" in said.what and state.planned.target is None
    assert plan.next_move(state) is None


def test_manual_scaling_is_not_overruled_by_a_plan():
    state = running_job()
    target = Shape(workers=3, servers=1, worker_cpu=0.5, server_cpu=0.5)
    state.handle(events.PlanTaken(target, PlanningStage.ADJUSTING, "because"), at=2.0)
    epoch = state.planned.epoch
    state.handle(events.WorkersScaled(2, "asked by the user", pinned=True), at=3.0)
    assert state.planned.target is None and state.planned.epoch > epoch
    bounds = plan.bounds_of(state)
    assert (bounds.least.workers, bounds.most.workers) == (2, 2)
    assert (bounds.least.servers, bounds.most.servers) == (1, 4)


def test_manual_scaling_may_exceed_the_quota():
    state = running_job(quota=1.0)
    state.handle(events.WorkersScaled(6, "asked by the user", pinned=True), at=3.0)
    assert plan.bounds_of(state).quota.cpu >= 6 * 0.1 + 0.1


def test_servers_added_by_a_guard_drop_the_plan_and_stay():
    state = running_job()
    state.handle(
        events.PlanTaken(Shape(workers=3, servers=1, worker_cpu=0.5, server_cpu=0.5), PlanningStage.ADJUSTING, "x"),
        at=2.0,
    )
    state.handle(events.ServersScaled(2, "memory would run out"), at=3.0)
    assert state.planned.target is None and state.servers_wanted == 2


def test_bsp_plan_keeps_servers_and_changes_cores_and_workers():
    state = running_job(sync="bsp")
    bounds = plan.bounds_of(state)
    assert (bounds.least.servers, bounds.most.servers) == (1, 1)
    assert (bounds.least.workers, bounds.most.workers) == (LEAST.workers, MOST.workers)
    carry_out(state, Shape(workers=2, servers=1, worker_cpu=1.0, server_cpu=0.25))
    assert [node.cpu for node in state.nodes.values()] == [0.25, 1.0, 1.0]
    state.handle(events.WorkersScaled(2, "by hand", pinned=True), at=9.0)
    bounds = plan.bounds_of(state)
    assert bounds.least.workers == bounds.most.workers == 2, "what the user has set stays"


def test_bsp_group_is_settled_once_all_its_workers_formed_it():
    state = running_job(sync="bsp")
    state.handle(events.GroupFormed((LeaseHolder(0, 0),), "all are there"), at=2.0)
    assert not plan.unsettled(state, moving=0)
    state.handle(events.WorkersScaled(2, "the plan", planned=True), at=3.0)
    join_and_leave(state)
    assert "1 of 2 workers are in the bsp group" in plan.unsettled(state, moving=0)
    state.handle(events.GroupFormed((LeaseHolder(0, 0), LeaseHolder(1, 0)), "one more"), at=4.0)
    assert not plan.unsettled(state, moving=0)


def test_new_roles_get_the_planned_size():
    state = running_job()
    carry_out(state, Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=0.25))
    state.handle(events.WorkersScaled(2, "by hand"), at=5.0)
    assert state.nodes["worker-1"].wanted.cpu == 1.0
    state.handle(events.RoleExited(RoleExit(role=Role(RoleKind.WORKER, 0), pid=1, signal="SIGKILL")), at=6.0)
    assert state.nodes["worker-0"].wanted.cpu == 1.0  # its next life too


def test_job_is_unsettled_while_a_role_is_awaited_draining_or_lost():
    state = running_job()
    assert plan.unsettled(state, moving=0) == ""
    assert "slots" in plan.unsettled(state, moving=3)
    state.handle(events.WorkersScaled(2, "by hand"), at=5.0)
    assert "has not joined yet" in plan.unsettled(state, moving=0)
    join_and_leave(state)
    state.handle(events.WorkersScaled(1, "by hand"), at=6.0)
    assert "draining" in plan.unsettled(state, moving=0)


def test_draining_job_takes_no_plan():
    state = running_job()
    state.handle(events.StopRequested("enough"), at=2.0)
    with pytest.raises(errors.BadInput, match="draining"):
        state.handle(events.PlanTaken(SMALL, PlanningStage.ADJUSTING, "because"), at=3.0)


def test_plan_for_more_workers_than_can_share_a_batch_is_dropped_with_a_reason():
    state = running_job()
    state.handle(events.PlanTaken(replace(SMALL, workers=3), PlanningStage.ADJUSTING, "because"), at=2.0)
    (decision,) = state.handle(events.PlanAdvanced(largest_group=2), at=3.0)
    assert "cannot share a batch of 2 samples" in decision.why
    assert state.workers == 1 and state.planned.target is None


def test_state_machine_advances_its_plan_and_reports_its_completion():
    state = running_job()
    state.handle(events.PlanTaken(replace(SMALL, workers=2), PlanningStage.ADJUSTING, "because"), at=2.0)
    state.handle(events.PlanAdvanced(), at=3.0)
    join_and_leave(state)
    assert state.handle(events.PlanAdvanced(), at=4.0) == [actions.PlanCompleted(str(plan.shape_of(state)), "because")]
    assert state.handle(events.PlanAdvanced(), at=5.0) == []


def test_resized_roles_are_a_step_of_the_plan_with_a_decision():
    state = running_job()
    state.handle(events.PlanTaken(SMALL, PlanningStage.ADJUSTING, "because"), at=2.0)
    (decided,) = state.handle(events.RolesResized(RoleKind.WORKER, 2.0, None, "faster"), at=3.0)
    assert (decided.what, decided.why) == ("give each worker 2 CPU", "faster")
    assert (state.planned.asked, state.planned.target, state.planned.changed_at) == (("worker_cpu",), SMALL, 3.0)
    (decided,) = state.handle(events.RolesResized(RoleKind.SERVER, None, None, "idle cores"), at=4.0)
    assert decided.what == "give each server all cores"


def test_reason_of_an_unsettled_job_names_its_phase_or_the_finished_worker():
    state = running_job()
    state.handle(events.WorkersScaled(2, "by hand"), at=2.0)
    join_and_leave(state)
    state.handle(events.ScriptFinished(Role(RoleKind.WORKER, 1)), at=3.0)
    assert plan.unsettled(state, moving=0) == "a worker's script has ended"
    state.handle(events.StopRequested("enough"), at=4.0)
    assert plan.unsettled(state, moving=0) == "the job is draining"


def test_plan_whose_change_had_no_effect_is_dropped_and_not_reported_as_complete():
    state = running_job()
    state.handle(events.PlanTaken(replace(SMALL, workers=2), PlanningStage.ADJUSTING, "because"), at=2.0)
    state.handle(events.PlanAdvanced(), at=3.0)
    state.workers = 1
    (decision,) = state.handle(events.PlanAdvanced(), at=4.0)
    assert decision.why == "workers: the plan asked for 2, and the job got 1"
