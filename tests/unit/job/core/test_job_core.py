"""Elementary transitions of a job: its plan, roles that find no room, and ranks that are wanted again."""

import pytest

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import FeedRules, StageTarget
from springtide.domain.spec.job_spec import JobSpec
from springtide.domain.spec.planning_config import PlanningStage
from springtide.job.core import events
from springtide.job.core.job_core import FORGOTTEN_S, LATEST_S, SOONEST_S, DataWorkerState, JobCore, PlanState, Shortage
from springtide.job.core.nodes import NodeState, RoleNode
from springtide.job.recovery import Relaunch

SHAPE = Shape(workers=3, servers=2, worker_cpu=1, server_cpu=1)
WORKER = Role(RoleKind.WORKER, 0)


def test_every_change_of_a_plan_begins_an_epoch_of_its_own():
    plan = PlanState(sizes={})
    assert plan.accept(events.PlanTaken(SHAPE, PlanningStage.OPTIMIZING, "slow"), 7.0) == f"plan: {SHAPE}"
    assert (plan.epoch, plan.changed_at, plan.target, plan.why) == (1, 7.0, SHAPE, "slow")
    plan.note_change(8.0, planned=True, asked="workers")
    assert (plan.epoch, plan.changed_at, plan.asked, plan.target) == (2, 8.0, ("workers",), SHAPE)
    plan.end(events.PlanEnded(PlanningStage.ADJUSTING))
    assert (plan.epoch, plan.stage, plan.target, plan.asked) == (3, PlanningStage.ADJUSTING, None, ())


def test_new_bounds_drop_the_plan_and_begin_an_epoch():
    plan = PlanState(sizes={}, target=SHAPE, asked=("workers",), pinned=("workers", "servers"), epoch=4)
    plan.bound({"workers": (1, 2)})
    assert (plan.epoch, plan.target, plan.asked, plan.pinned) == (5, None, (), ("servers",))


@pytest.mark.parametrize(
    ("why", "target", "told"), [("no room", SHAPE, True), ("", SHAPE, False), ("none", None, False)]
)
def test_end_of_a_plan_is_a_decision_only_if_a_plan_is_dropped(why, target, told):
    text = PlanState(sizes={}, target=target).end(events.PlanEnded(PlanningStage.ADJUSTING, why))
    assert text == (f"drop the plan for {SHAPE}" if told else "")


def unplaced(short, *, since, at, **missing):
    node = RoleNode(role=WORKER, since=since)
    return short.note(node, RoleExit(role=WORKER, pid=0, unplaced="no host has 9 cores"), at, **missing)


def test_request_for_room_waits_twice_as_long_each_time_up_to_a_limit():
    short = Shortage()
    assert "requests room again in 50 s" in unplaced(short, since=50.0, at=100.0, workers=1)
    waits = []
    for _ in range(8):
        short.workers, began = 0, short.again_at
        unplaced(short, since=began, at=began + 50.0, workers=1)
        waits.append(short.again_at - began - 50.0)
    assert waits == [100, 200, 400, 800, 1600, 3200, LATEST_S, LATEST_S]


def test_role_refused_at_once_waits_the_shortest_time():
    short = Shortage()
    unplaced(short, since=10.0, at=11.0, workers=1)
    assert (short.again_at, short.why) == (11.0 + SOONEST_S, "no host has 9 cores")


def test_long_time_with_room_makes_the_next_wait_short_again():
    for later, tries in ((FORGOTTEN_S - 1, 4), (FORGOTTEN_S, 1)):
        short = Shortage(tries=3, again_at=500.0)
        unplaced(short, since=500.0 + later, at=500.0 + later, servers=1)
        assert short.tries == tries


def test_shortage_is_described_with_its_roles_and_the_next_request():
    short = Shortage()
    assert short.describe(at=0.0) == ""
    unplaced(short, since=60.0, at=100.0, workers=2, data_workers=1)
    again = "2 workers and 1 data worker fewer than wanted: no host has 9 cores; the job requests room again in"
    assert short.describe(at=110.0) == f"{again} 30 s"
    assert short.describe(at=500.0) == f"{again} 0 s"


def test_removed_rank_that_is_wanted_again_has_no_failures_and_no_delay():
    state = JobCore(JobSpec(name="job", servers=1, workers=1))
    node = state.node(WORKER)
    node.faults.crashes, node.faults.oom_kills, node.after_s = 2, 1, 8.0
    node.remove(at=1.0, why="fewer")
    assert state.add_role(WORKER, at=2.0) is node
    assert (node.state, node.incarnation) == (NodeState.EXPECTED, 1)
    assert (node.faults.crashes, node.faults.oom_kills, node.after_s) == (0, 0, 0.0)


def test_time_to_join_begins_after_the_delay_of_a_relaunch():
    state = JobCore(JobSpec(name="job", servers=1, workers=1))
    node = state.node(WORKER)
    state.relaunch(node, Relaunch(why="killed", failures=2, oom_kills=1, memory=5), 8.0, 100.0)
    assert (node.heard_at, node.after_s, node.since) == (108.0, 8.0, 100.0)
    assert (node.faults.crashes, node.faults.oom_kills, node.memory, state.relaunches) == (2, 1, 5, 1)


def test_more_data_workers_go_to_the_smallest_stages_the_later_first():
    feeding = DataWorkerState(wanted=3, stages=(StageTarget(1, None), StageTarget(1, None), StageTarget(1, None)))
    assert [stage.workers for stage in feeding.scale_up(1, "room again").stages] == [1, 1, 2]
    assert [stage.workers for stage in feeding.scale_up(2, "room again").stages] == [1, 2, 2]


def test_data_worker_without_a_limit_reserves_one_core():
    rules = FeedRules(workers=2)
    assert DataWorkerState().cores(rules) == 2.0
    assert DataWorkerState(wanted=3, pinned=True).cores(rules) == 3.0
    assert DataWorkerState(wanted=3, epoch=1, cpu=0.5).cores(rules) == 1.5
    assert DataWorkerState(stages=(StageTarget(2, 0.5), StageTarget(1, None))).cores(rules) == 2.0
    assert DataWorkerState(wanted=3, epoch=1, given_up="too many failures").cores(rules) == 0.0
