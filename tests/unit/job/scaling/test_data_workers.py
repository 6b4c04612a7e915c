"""Life cycle of data workers; the job continues whatever happens to them."""

import dataclasses

import msgspec
import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.data_workers import StageTarget, spread
from springtide.domain.spec.job_spec import JobPhase
from springtide.job.core import actions, events
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import data_workers
from springtide.job.state import JobState
from tests.oracles import job_invariants
from tests.unit.job.test_state import WORKERS, exited, killed, started, tick, want

DATA = [Role(RoleKind.DATA_WORKER, rank) for rank in range(4)]


def job_with_data_workers(count=2, cpu=1.0, **spec):
    """A job with data workers that feed, at 2 s."""
    state = started(**spec)
    state.handle(events.DataWorkersScaled(count, cpu, "asked"), at=2)
    for role in DATA[:count]:
        join_and_ready(state, role)
    return state


def join_and_ready(state, role, incarnation=0, at=2.0):
    state.handle(events.RoleJoined(role, incarnation), at=at)
    state.handle(events.RoleReady(role, f"host:{role.rank}.{incarnation}", incarnation), at=at)
    job_invariants.check(state)


def names(state):
    return [each.name for each in data_workers.roster(state)]


def states(state):
    return [node.state for node in data_workers.of(state)]


def test_data_worker_role_prints_as_its_log_name():
    assert [str(role) for role in DATA[:2]] == ["data-worker-0", "data-worker-1"]


def test_job_has_no_data_workers_until_scaled():
    state = started()
    assert not data_workers.of(state) and not data_workers.roster(state) and state.feeding.epoch == 0


def test_data_workers_have_their_cores_and_feed_once_ready():
    state = started(worker_memory=2**30)
    (decided,) = state.handle(events.DataWorkersScaled(2, 0.5, "queues are empty"), at=2)
    assert decided.what == "scale from 0 to 2 data workers of 0.5 CPU: add data-worker-0, data-worker-1"
    assert decided.why == "queues are empty"
    assert [(want(state, role).cpu, want(state, role).memory) for role in DATA[:2]] == [(0.5, 2**30)] * 2
    state.handle(events.RoleJoined(DATA[0]), at=3)
    assert names(state) == []  # it has no address yet
    epoch = state.feeding.epoch
    state.handle(events.RoleReady(DATA[0], "host:1"), at=4)
    assert names(state) == ["data-worker-0.0"] and state.feeding.epoch == epoch + 1
    state.handle(events.RoleReady(DATA[0], "host:1"), at=5)  # said again
    assert state.feeding.epoch == epoch + 1
    job_invariants.check(state)


def test_changed_cores_apply_to_running_data_workers_without_restart():
    state = job_with_data_workers()
    (decided,) = state.handle(events.DataWorkersScaled(2, 2.0, "linear so far"), at=3)
    assert decided.what == "scale from 2 to 2 data workers of 2 CPU: no role changes"
    assert [(want(state, role).cpu, want(state, role).incarnation) for role in DATA[:2]] == [(2.0, 0)] * 2


def test_highest_ranks_drain_until_their_batches_are_fetched():
    state = job_with_data_workers(3)
    (decided,) = state.handle(events.DataWorkersScaled(1, 1.0, "queues are full"), at=3)
    assert decided.what.endswith("drain data-worker-1, data-worker-2")
    assert names(state) == ["data-worker-0.0"] and want(state, DATA[2]) is not None  # it still hands out
    state.handle(exited(DATA[2], 0), at=4)
    assert want(state, DATA[2]) is None and not state.relaunches
    job_invariants.check(state)


def test_data_worker_that_drains_too_long_is_ended():
    state = job_with_data_workers(2, drain_s=5)
    state.handle(events.DataWorkersScaled(1, 1.0, "less"), at=3)
    for role in (*WORKERS[:2], *[node.role for node in state.nodes.values()]):
        state.handle(events.RoleAlive(role), at=8)
    tick(state, at=8.5)
    assert states(state) == [NodeState.JOINED, NodeState.GONE] and want(state, DATA[1]) is None


def test_drained_rank_returns_as_its_next_incarnation():
    state = job_with_data_workers(2)
    state.handle(events.DataWorkersScaled(1, 1.0, "less"), at=3)
    state.handle(events.DataWorkersScaled(2, 1.0, "more"), at=3)  # the first still drains: another rank comes
    assert [str(each.role) for each in state.wanted()][-3:] == ["data-worker-0", "data-worker-1", "data-worker-2"]
    state.handle(exited(DATA[1], 0), at=4)
    state.handle(events.DataWorkersScaled(3, 1.0, "more"), at=5)
    assert want(state, DATA[1]).incarnation == 1
    job_invariants.check(state)


def test_lost_data_worker_is_relaunched_and_trainers_are_told():
    state = job_with_data_workers(2)
    epoch = state.feeding.epoch
    (decided,) = state.handle(killed(DATA[1]), at=3)
    assert decided.what == "relaunch data-worker-1 as incarnation 1"
    assert names(state) == ["data-worker-0.0"] and state.feeding.epoch == epoch + 1
    join_and_ready(state, DATA[1], 1, at=4)
    assert names(state) == ["data-worker-0.0", "data-worker-1.1"]


def test_silent_data_worker_is_lost():
    state = job_with_data_workers(1, silence_s=10)
    for role in (*WORKERS[:2], Role(RoleKind.SERVER, 0), Role(RoleKind.SERVER, 1)):
        state.handle(events.RoleAlive(role), at=12)
    done = tick(state, at=12.5)
    assert [action.what for action in done] == ["relaunch data-worker-0 as incarnation 1"]


def test_job_continues_without_data_workers_after_too_many_failures():
    state = job_with_data_workers(2, relaunches=2)
    for life in range(2):
        state.handle(killed(DATA[0], life), at=3 + life)
        join_and_ready(state, DATA[0], life + 1, at=3.5 + life)
    (decided,) = state.handle(killed(DATA[0], 2), at=6)
    assert decided.what == "continue without data workers: workers read data themselves"
    assert "relaunched 2 times already" in decided.why
    assert state.phase is JobPhase.RUNNING and state.feeding.wanted == 0 and not data_workers.roster(state)
    assert states(state) == [NodeState.GONE, NodeState.DRAINING]
    job_invariants.check(state)
    with pytest.raises(errors.BadInput, match="continues without data workers"):
        state.handle(events.DataWorkersScaled(1, 1.0, "tuning"), at=7)
    state.handle(events.DataWorkersScaled(1, 1.0, "asked", pinned=True), at=7)  # the user may
    assert state.feeding.wanted == 1 and not state.feeding.given_up
    job_invariants.check(state)


def test_data_worker_that_never_joins_is_relaunched():
    state = started(join_s=5)
    state.handle(events.DataWorkersScaled(1, None, "asked"), at=1)
    for role in (*WORKERS[:2], Role(RoleKind.SERVER, 0), Role(RoleKind.SERVER, 1)):
        state.handle(events.RoleAlive(role), at=7)
    tick(state, at=7)
    assert state.phase is JobPhase.RUNNING and want(state, DATA[0]).incarnation == 1


def test_refused_data_workers_are_removed():
    state = job_with_data_workers(2)
    (decided,) = state.handle(events.DataWorkersRefused("worker-0: the data set cannot be pickled"), at=3)
    assert decided.why == "worker-0: the data set cannot be pickled"
    assert state.handle(events.DataWorkersRefused("worker-1: the same"), at=3) == []
    assert state.feeding.given_up == "worker-0: the data set cannot be pickled"
    job_invariants.check(state)


def test_finishing_job_does_not_wait_for_data_workers():
    state = job_with_data_workers(2)
    state.handle(events.ScriptFinished(WORKERS[0]), at=3)
    done = state.handle(events.ScriptFinished(WORKERS[1]), at=3)  # it keeps no checkpoints
    assert any(isinstance(action, actions.EndJob) for action in done) and state.phase is JobPhase.FINISHED


def test_data_worker_lost_while_draining_is_not_relaunched():
    state = job_with_data_workers(1)
    state.handle(events.StopRequested("Ctrl-C"), at=3)
    assert state.handle(killed(DATA[0]), at=4) == [] and want(state, DATA[0]) is None
    with pytest.raises(errors.BadInput, match="is draining"):
        state.handle(events.DataWorkersScaled(2, 1.0, "asked"), at=5)


def test_bsp_rollback_leaves_data_workers_running():
    state = job_with_data_workers(1)
    state.bsp.members, state.bsp.in_step = {0: 0, 1: 0}, True
    state.handle(events.CheckpointSaved(3), at=3)
    state.handle(events.GroupLost("rows"), at=4)
    assert names(state) == ["data-worker-0.0"]


def test_invalid_data_worker_counts_are_refused():
    state = job_with_data_workers(1)
    for count in (-1, data_workers.MOST + 1):
        with pytest.raises(errors.BadInput, match="expected 0 to"):
            state.handle(events.DataWorkersScaled(count, None, "asked"), at=3)
    assert state.feeding.wanted == 1


def test_successor_master_knows_the_data_workers():
    state = job_with_data_workers(2)
    state.handle(killed(DATA[0]), at=3)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=JobState)
    assert dataclasses.asdict(again) == dataclasses.asdict(state)


def test_each_stage_has_its_own_ranks_and_scales_independently():
    state = started()
    stages = (StageTarget(2, 0.5), StageTarget(1, 1.0))  # ranks 1 and 3 read, rank 0 goes on from there
    (decided,) = state.handle(events.DataWorkersScaled(3, 1.0, "cut in two", stages=stages), at=2)
    assert "(stages: 2 of 0.5 CPU, 1 of 1 CPU): add data-worker-1, data-worker-3, data-worker-0" in decided.what
    assert [want(state, DATA[rank]).cpu for rank in (0, 1, 3)] == [1.0, 0.5, 0.5]
    for rank in (0, 1, 3):
        join_and_ready(state, DATA[rank])
    fewer = (StageTarget(1, 0.5), StageTarget(2, 1.0))
    (decided,) = state.handle(events.DataWorkersScaled(3, 1.0, "the second is the limit", stages=fewer), at=3)
    assert "add data-worker-2, drain data-worker-3" in decided.what
    job_invariants.check(state)


def test_unplaced_data_worker_is_missing_in_its_own_stage():
    state = started()
    stages = (StageTarget(1, 0.5), StageTarget(1, 1.0))
    state.handle(events.DataWorkersScaled(2, 1.0, "cut in two", stages=stages), at=2)
    state.handle(events.RoleExited(RoleExit(role=DATA[1], pid=0, code=None, unplaced="no room")), at=3)
    assert state.feeding.stages == (StageTarget(0, 0.5), StageTarget(1, 1.0)) and state.feeding.wanted == 1
    assert state.feeding.scale_up(1, "room again") == events.DataWorkersScaled(2, 1.0, "room again", stages=stages)
    job_invariants.check(state)


def test_inconsistent_stages_are_refused():
    state = started()
    with pytest.raises(errors.BadInput, match="3 data workers, but the stages have"):
        state.handle(events.DataWorkersScaled(3, 1.0, "wrong", stages=(StageTarget(1, 1.0), StageTarget(1, 1.0))), at=2)


def test_data_workers_are_divided_over_stages_later_stages_first():
    assert spread(3, 1.0, 1) == ()
    assert [one.workers for one in spread(1, 1.0, 2)] == [0, 1]
    assert [one.workers for one in spread(5, 1.0, 3)] == [1, 2, 2]


def test_address_of_an_ended_data_worker_is_ignored():
    state = job_with_data_workers()
    state.handle(killed(DATA[0]), at=3)
    state.handle(events.RoleReady(DATA[0], "host:late", 0), at=4)
    assert state.node(DATA[0]).address == "" and names(state) == ["data-worker-1.0"]
    state.handle(events.RoleReady(DATA[0], "host:early", 1), at=4)
    assert state.node(DATA[0]).address == "", "it has not joined yet"


def test_most_data_workers_may_be_asked_for_and_the_users_number_stays():
    state = started()
    state.handle(events.DataWorkersScaled(data_workers.MOST, None, "asked", pinned=True), at=2)
    state.short.data_workers = 2
    state.handle(events.DataWorkersScaled(1, None, "room again"), at=3)
    assert state.feeding.pinned and state.short.data_workers == 0


def test_single_stage_is_described_like_no_stages():
    state = started()
    (decided,) = state.handle(events.DataWorkersScaled(1, 2.0, "asked", stages=(StageTarget(1, 2.0),)), at=2)
    assert decided.what == "scale from 0 to 1 data workers of 2 CPU: add data-worker-0"


def test_repeated_or_late_reports_of_a_data_worker_change_nothing():
    state = job_with_data_workers(count=1, drain_s=5.0)
    state.handle(events.DataWorkersScaled(0, None, "queues are full"), at=3)
    (overdue,) = [event for event in state.due(at=9) if isinstance(event, events.DrainOverdue)]
    state.handle(overdue, at=9)
    assert states(state) == [NodeState.GONE]
    assert state.handle(overdue, at=9) == [] and state.handle(exited(DATA[0], 0), at=10) == []
    assert state.node(DATA[0]).incarnation == 0


def test_rank_of_a_replaced_data_worker_can_feed_again():
    state = job_with_data_workers(count=1)
    state.handle(events.EvictionNoticed(DATA[0], 0, "its pod is being evicted"), at=3)
    join_and_ready(state, DATA[1], at=4)
    state.handle(events.DrainOverdue(DATA[0], 0), at=5)
    state.handle(events.DataWorkersScaled(2, 1.0, "queues are empty"), at=6)
    join_and_ready(state, DATA[0], 1, at=7)
    assert names(state) == ["data-worker-0.1", "data-worker-1.0"] and not state.node(DATA[0]).departure.replaced
