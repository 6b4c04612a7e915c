"""Reactions of the job state machine to events of its processes."""

import dataclasses

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.job.core import actions, events
from springtide.job.core.nodes import IllegalMove, NodeState, RoleNode
from springtide.job.recovery import Suspicion
from springtide.job.state import EXPLANATION_S, JobState
from tests.oracles import job_invariants

SPEC = JobSpec(name="job", servers=2, workers=2, join_s=60, silence_s=10, relaunches=2, backoff_s=1, drain_s=30)
SERVERS = [Role(RoleKind.SERVER, rank) for rank in range(2)]
WORKERS = [Role(RoleKind.WORKER, rank) for rank in range(4)]


def started(**spec):
    """A job with all roles joined, at 1 s."""
    state = JobState(dataclasses.replace(SPEC, **spec))
    for server in SERVERS:
        state.handle(events.RoleJoined(server), at=1)
        state.handle(events.RoleReady(server, f"host:{server.rank}"), at=1)
    for worker in WORKERS[:2]:
        state.handle(events.RoleJoined(worker), at=1)
    assert state.phase is JobPhase.RUNNING
    return state


def killed(role, incarnation=0, **more):
    return events.RoleExited(RoleExit(role=role, pid=7, signal="SIGKILL", incarnation=incarnation, **more))


def exited(role, code, incarnation=0):
    return events.RoleExited(RoleExit(role=role, pid=7, code=code, incarnation=incarnation))


def conclusion(done):
    """The EndJob action among these actions."""
    (end,) = [action for action in done if isinstance(action, actions.EndJob)]
    return end


def tick(state, *, at):
    """Handle the events due at this time."""
    return [action for event in state.due(at=at) for action in state.handle(event, at=at)]


def want(state, role):
    """The agent's order for a role."""
    return {each.role: each for each in state.wanted()}.get(role)


def test_slots_are_placed_once_all_servers_are_ready():
    state = JobState(SPEC)
    state.handle(events.RoleJoined(WORKERS[0]), at=0)
    for server in SERVERS:
        state.handle(events.RoleJoined(server), at=1)
    assert state.handle(events.RoleReady(SERVERS[1], "b:2"), at=2) == []
    assert state.phase is JobPhase.STARTING
    assert state.handle(events.RoleReady(SERVERS[0], "a:1"), at=3) == [actions.PlaceSlots(("a:1", "b:2"))]
    assert state.phase is JobPhase.RUNNING
    assert state.handle(events.RoleReady(SERVERS[0], "a:1"), at=4) == []  # said again to a new master


def test_job_finishes_when_every_script_has_ended():
    state = started()
    (fence,) = state.handle(events.ScriptFinished(WORKERS[1]), at=2)
    assert (fence.role, fence.incarnation) == (WORKERS[1], 0)  # what it still held goes to others
    assert state.handle(events.ScriptFinished(WORKERS[1]), at=2) == []
    assert state.handle(exited(WORKERS[1], 0), at=2) == []
    assert conclusion(state.handle(events.ScriptFinished(WORKERS[0]), at=3)).phase is JobPhase.FINISHED
    job_invariants.check(state)


def test_job_ends_only_after_its_final_checkpoint():
    state = started(checkpoints=CheckpointRules(every_s=60))
    assert not state.saving_last
    state.handle(events.ScriptFinished(WORKERS[1]), at=2)
    (fence,) = state.handle(events.ScriptFinished(WORKERS[0]), at=3)
    assert isinstance(fence, actions.FenceWorker) and state.saving_last
    assert conclusion(state.handle(events.FinalCheckpointDone("checkpoint 4"), at=4)).phase is JobPhase.FINISHED
    assert not state.saving_last
    job_invariants.check(state)


def test_untrained_shards_are_reported_at_the_end():
    state = started()
    state.handle(events.ScriptFinished(WORKERS[1], untrained=5), at=2)
    end = conclusion(state.handle(events.ScriptFinished(WORKERS[0], untrained=3), at=3))
    assert end.phase is JobPhase.FINISHED and "3 shards stay untrained" in end.why


def test_job_with_unreadable_shards_fails():
    state = started()
    state.handle(events.ScriptFinished(WORKERS[1]), at=2)
    end = conclusion(state.handle(events.ScriptFinished(WORKERS[0], poisoned="shard 3 could not be read"), at=3))
    assert (end.phase, end.why, end.blame) == (JobPhase.FAILED, "shard 3 could not be read", Blame.USER)


def test_user_exception_fails_the_job_at_once_and_stays_the_reason():
    state = started()
    (end,) = state.handle(events.ScriptFailed(WORKERS[1], "ValueError: no (train.py:3)", "the trace"), at=2)
    assert (end.phase, end.why, end.blame) == (JobPhase.FAILED, "ValueError: no (train.py:3)", Blame.USER)
    assert state.ending.detail == "the trace"
    assert state.handle(killed(SERVERS[0]), at=3) == []  # what comes after does not change the reason
    assert state.why == "ValueError: no (train.py:3)"


def test_lost_server_fails_the_job_and_is_named():
    (end,) = started().handle(killed(SERVERS[1]), at=2)
    assert end.why.startswith("server-1 (pid 7) was killed by SIGKILL")
    assert end.blame is Blame.INFRASTRUCTURE
    silent = started()
    for role in (SERVERS[1], *WORKERS[:2]):
        silent.handle(events.RoleAlive(role), at=31)
    assert tick(silent, at=31) == []  # it has longer than a worker, since nothing can replace it
    assert conclusion(tick(silent, at=32)).why.startswith("server-0 has been silent for 31 s (limit 30 s)")


def test_killed_worker_is_fenced_and_relaunched():
    state = started()
    fence, decided = state.handle(killed(WORKERS[0]), at=2)
    assert (fence.role, fence.incarnation) == (WORKERS[0], 0)
    assert decided.what == "relaunch worker-0 as incarnation 1"
    assert decided.why.startswith("worker-0 (pid 7) was killed by SIGKILL")
    assert (want(state, WORKERS[0]).incarnation, want(state, WORKERS[0]).after_s) == (1, 0.0)
    assert state.fenced(WORKERS[0], 0) and not state.fenced(WORKERS[0], 1)
    assert state.handle(killed(WORKERS[0]), at=3) == []  # the agent says it again
    assert state.handle(events.ScriptFinished(WORKERS[0]), at=3) == []  # a late word
    with pytest.raises(errors.Fenced, match="worker-0 of incarnation 0 was fenced"):
        state.handle(events.RoleJoined(WORKERS[0]), at=3)
    state.handle(events.RoleJoined(WORKERS[0], 1), at=4)
    assert state.node(WORKERS[0]).state is NodeState.JOINED
    job_invariants.check(state)


def test_crashing_worker_is_delayed_longer_each_time_then_fails_the_job():
    state = started(relaunches=3)
    pauses = []
    for life in range(3):
        state.handle(killed(WORKERS[0], life), at=2 + life)
        pauses.append(want(state, WORKERS[0]).after_s)
    assert pauses == [0.0, 1.0, 2.0]
    end = conclusion(state.handle(exited(WORKERS[0], 3, 3), at=9))
    assert end.why.startswith("worker-0 (pid 7) exited with status 3")
    assert end.why.endswith("relaunched 3 times already, which is the limit")


def test_failures_are_forgotten_after_a_long_life():
    state = started(relaunches=1, silence_s=10_000)
    state.handle(killed(WORKERS[0]), at=2)
    state.handle(events.RoleJoined(WORKERS[0], 1), at=3)
    state.handle(killed(WORKERS[0], 1), at=1000)
    assert want(state, WORKERS[0]).incarnation == 2


def test_out_of_memory_worker_gets_twice_as_much():
    state = started(worker_memory=2**30, relaunches=2)
    _, decided = state.handle(killed(WORKERS[0], oom=True), at=2)
    assert decided.why.endswith("for lack of memory at 1 GiB: its memory limit rises to 2 GiB")
    assert (want(state, WORKERS[0]).memory, want(state, WORKERS[1]).memory) == (2**31, 2**30)
    state.handle(killed(WORKERS[0], 1, oom=True), at=3)
    assert want(state, WORKERS[0]).memory == 2**32
    assert "most recently with 4 GiB" in conclusion(state.handle(killed(WORKERS[0], 2, oom=True), at=4)).why


def test_eviction_does_not_count_as_a_failure():
    state = started(relaunches=1)
    for life in range(9):
        state.handle(killed(WORKERS[0], life, evicted=True), at=2 + life)
    assert (want(state, WORKERS[0]).incarnation, want(state, WORKERS[0]).after_s) == (9, 0.0)


def test_worker_exiting_with_status_0_before_its_end_is_replaced():
    _, decided = started().handle(exited(WORKERS[0], 0), at=2)
    assert "status 0, before its script had ended" in decided.why


def test_worker_that_cannot_reach_a_server_waits_for_the_cause():
    for relaunches in (0, 2):
        state = started(relaunches=relaunches)
        lost = events.ScriptFailed(WORKERS[0], "ServerUnreachable: a:1", "trace", Blame.INFRASTRUCTURE)
        assert state.handle(lost, at=2) == []
        state.handle(exited(WORKERS[0], 1), at=2.1)
        assert not state.phase.over
        if relaunches:
            assert want(state, WORKERS[0]).after_s >= EXPLANATION_S
        (end,) = state.handle(killed(SERVERS[0]), at=2.2)
        assert end.why.startswith("server-0 (pid 7) was killed by SIGKILL")
        assert state.ending.detail == ("trace" if not relaunches else state.ending.detail)


def test_symptom_without_a_cause_finally_fails_the_job():
    state = started(relaunches=0)
    state.handle(events.ScriptFailed(WORKERS[0], "ServerUnreachable: a:1", "trace", Blame.INFRASTRUCTURE), at=2)
    assert state.handle(exited(WORKERS[0], 1), at=2) == []
    assert tick(state, at=2 + EXPLANATION_S / 2) == []
    end = conclusion(tick(state, at=2 + EXPLANATION_S))
    assert end.why == "worker-0 cannot continue: ServerUnreachable: a:1"


@pytest.mark.parametrize(
    ("event", "why", "blame"),
    [
        (killed(WORKERS[0]), "worker-0 (pid 7) was killed by SIGKILL, without an exception", Blame.INFRASTRUCTURE),
        (exited(WORKERS[0], 3), "worker-0 (pid 7) exited with status 3", Blame.USER),
    ],
)
def test_without_relaunches_a_lost_worker_fails_the_job(event, why, blame):
    (end,) = started(relaunches=0).handle(event, at=2)
    assert end.why.startswith(why)
    assert end.blame is blame


def test_bsp_group_reforms_with_the_next_incarnation_of_a_lost_member():
    state = started(sync="bsp")
    state.handle(events.GroupFormed((LeaseHolder(0), LeaseHolder(1)), "all are here"), at=2)
    assert state.bsp.generation == 1 and not state.group_lost
    done = state.handle(killed(WORKERS[0]), at=3)
    assert any(isinstance(action, actions.FenceWorker) for action in done)
    assert state.group_lost and state.node(WORKERS[0]).incarnation == 1
    state.handle(events.RoleJoined(WORKERS[0], 1, pid=9), at=4)
    assert state.group_lost
    state.handle(events.GroupFormed((LeaseHolder(0, 1), LeaseHolder(1)), "all are here"), at=5)
    assert state.bsp.generation == 2 and not state.group_lost
    job_invariants.check(state)


def test_bsp_group_drains_surplus_workers_when_it_reforms():
    state = started(sync="bsp")
    state.handle(events.GroupFormed((LeaseHolder(0), LeaseHolder(1)), "all are here"), at=2)
    state.handle(events.WorkersScaled(1, "why"), at=3)
    assert state.node(WORKERS[1]).state is NodeState.JOINED and not state.draining(WORKERS[1])
    state.handle(events.GroupFormed((LeaseHolder(0),), "between two shards"), at=4)
    assert state.node(WORKERS[1]).state is NodeState.DRAINING and state.draining(WORKERS[1])
    assert not state.group_lost
    job_invariants.check(state)


def test_bsp_job_without_a_checkpoint_fails_when_all_ranks_are_lost():
    end = conclusion(started(sync="bsp").handle(events.GroupLost(), at=2))
    assert "all ranks of the bsp group were lost" in end.why


@pytest.mark.parametrize("lost", [events.GroupLost(), killed(SERVERS[0])])
def test_bsp_group_that_lost_its_model_or_a_server_rolls_back(lost):
    state = started(sync="bsp")
    state.handle(events.GroupFormed((LeaseHolder(0), LeaseHolder(1)), "all are here"), at=2)
    state.handle(events.CheckpointSaved(4), at=3)
    done = state.handle(lost, at=4)
    assert actions.RollBack(anew=False) in done
    assert {action.role for action in done if isinstance(action, actions.ServerLost | actions.FenceWorker)} == {
        *SERVERS,
        *WORKERS[:2],
    }
    assert all(node.incarnation == 1 and node.state is NodeState.EXPECTED for node in state.nodes.values())
    assert state.bsp.generation == 2 and not state.bsp.members and "checkpoint 4" in state.decision.what
    job_invariants.check(state)
    for server in SERVERS:  # one that is lost while they come back is started again by itself
        state.handle(events.RoleJoined(server, 1, pid=9), at=5)
    state.handle(killed(SERVERS[0], 1), at=6)
    assert state.node(SERVERS[0]).incarnation == 2
    assert all(state.node(role).incarnation == 1 for role in (*SERVERS[1:], *WORKERS[:2]))
    job_invariants.check(state)


def test_stopping_bsp_job_that_loses_a_server_ends_at_its_checkpoint():
    state = started(sync="bsp")
    state.handle(events.GroupFormed((LeaseHolder(0), LeaseHolder(1)), "all are here"), at=2)
    state.handle(events.CheckpointSaved(4), at=3)
    state.handle(events.StopRequested("Ctrl-C"), at=4)
    end = conclusion(state.handle(killed(SERVERS[0]), at=5))
    assert end.phase is JobPhase.STOPPED and "the newest state is checkpoint 4" in end.why


def test_worker_that_joins_too_late_is_not_the_scripts_fault_if_another_has_joined():
    def late(*joined):
        state = JobState(SPEC)
        for role in (*SERVERS, *joined):
            state.handle(events.RoleJoined(role), at=1)
            state.handle(events.RoleAlive(role, 0), at=61.5)
        for server in SERVERS:
            state.handle(events.RoleReady(server, f"host:{server.rank}"), at=61.5)
        return conclusion(state.handle(events.RoleLate(WORKERS[1], 0, 61.0), at=62))

    assert late().blame is Blame.USER and "the script has not called st.join()" in late().why
    end = late(WORKERS[0])
    assert end.blame is Blame.INFRASTRUCTURE and "although another worker has" in end.why


def test_script_that_never_joins_gets_advice():
    (end,) = JobState(SPEC).handle(exited(WORKERS[0], 0), at=2)
    assert "ended without calling st.join()" in end.why
    (late,) = tick(JobState(SPEC), at=61)
    assert late.why == "server-0 has not joined within 61 s; its log may say why"


def test_silence_counts_from_the_last_heartbeat_and_not_before_training():
    state = JobState(SPEC)
    state.handle(events.RoleJoined(WORKERS[0]), at=0)
    assert tick(state, at=50) == []  # it waits for the servers and cannot send heartbeats
    state = started()
    for role in (*SERVERS, WORKERS[1]):
        state.handle(events.RoleAlive(role), at=11)
    fence, decided = tick(state, at=12)
    assert (fence.role, fence.incarnation) == (WORKERS[0], 0)
    assert decided.why.startswith("worker-0 has been silent for 11 s (limit 10 s)")
    state.handle(events.RoleAlive(WORKERS[0], 0), at=50)  # the zombie wakes: that counts for nothing
    assert state.node(WORKERS[0]).heard_at == 12


def test_master_downtime_is_not_counted_as_silence():
    state = started()
    state.forgive(100)
    assert tick(state, at=110) == []


def test_new_master_gives_every_role_time_to_reconnect():
    state = started()
    (decided,) = state.handle(events.MasterTookOver(2), at=1000)
    assert decided.what == "took over as master number 2"
    assert tick(state, at=1009) == []


def test_scaling_up_uses_the_next_ranks_and_scaling_down_drains_the_highest():
    state = started()
    (decided,) = state.handle(events.WorkersScaled(4, "more"), at=2)
    assert decided.what == "scale from 2 to 4 workers: add worker-2, worker-3"
    state.handle(events.RoleJoined(WORKERS[2]), at=3)
    dropped, decided = state.handle(events.WorkersScaled(1, "less"), at=4)
    assert dropped.role == WORKERS[3]
    assert decided.what == "scale from 4 to 1 workers: drain worker-1, worker-2, drop worker-3"
    assert state.draining(WORKERS[1]) and not state.draining(WORKERS[0])
    assert want(state, WORKERS[1]) and not want(state, WORKERS[3])
    state.handle(events.ScriptFinished(WORKERS[1]), at=5)
    state.handle(exited(WORKERS[1], 0), at=5)
    job_invariants.check(state)
    state.handle(events.WorkersScaled(3, "more again"), at=6)
    lives = {str(each.role): each.incarnation for each in state.wanted() if each.role.kind is RoleKind.WORKER}
    assert lives == {"worker-0": 0, "worker-1": 1, "worker-2": 0, "worker-3": 1}  # worker-2 still drains
    with pytest.raises(errors.BadInput, match="0 workers: a job needs at least one"):
        state.handle(events.WorkersScaled(0, "why"), at=7)


def test_worker_that_drains_too_slowly_is_fenced_and_not_replaced():
    state = started(silence_s=1000)
    state.handle(events.WorkersScaled(1, "less"), at=2)
    assert tick(state, at=31) == []
    (fence,) = tick(state, at=33)
    assert (fence.role, fence.why) == (WORKERS[1], "not drained within 30 s")
    assert not want(state, WORKERS[1])
    assert not state.phase.over


def test_ctrl_c_drains_and_then_stops_the_job():
    state = started()
    assert state.handle(events.StopRequested("Ctrl-C"), at=2) == [actions.DrainWorkers("Ctrl-C")]
    assert state.handle(events.StopRequested("Ctrl-C"), at=2) == []
    state.handle(events.ScriptFinished(WORKERS[0]), at=3)
    end = conclusion(state.handle(killed(WORKERS[1]), at=3))  # not relaunched to be stopped
    assert (end.phase, end.why) == (JobPhase.STOPPED, "Ctrl-C")
    with pytest.raises(errors.BadInput, match="draining"):
        draining = started()
        draining.handle(events.StopRequested("Ctrl-C"), at=2)
        draining.handle(events.WorkersScaled(3, "why"), at=3)


def test_ctrl_c_before_any_role_joined_stops_at_once():
    assert conclusion(JobState(SPEC).handle(events.StopRequested("Ctrl-C"), at=2)).phase is JobPhase.STOPPED


def test_second_process_of_the_same_role_is_refused():
    state = started()
    state.handle(events.RoleJoined(WORKERS[0]), at=2)  # the same one over a new connection
    with pytest.raises(errors.BadInput, match="a second process wants to join as worker-0; the first is joined"):
        state.handle(events.RoleJoined(WORKERS[0], pid=8), at=2)
    with pytest.raises(errors.BadInput, match="a second process"):
        state.handle(events.RoleJoined(WORKERS[0], birth=5), at=2)  # a container that was started again in its place
    with pytest.raises(errors.BadInput, match="is incarnation 5; expected 0"):
        state.handle(events.RoleJoined(WORKERS[0], 5), at=2)
    with pytest.raises(errors.BadInput, match="worker-9 is not part of job job, which has 2 servers and 2 workers"):
        state.handle(events.RoleJoined(Role(RoleKind.WORKER, 9)), at=2)


def test_illegal_move_reports_the_history():
    node = RoleNode(role=WORKERS[0])
    node.move(NodeState.JOINED, at=1, why="joined")
    node.move(NodeState.GONE, at=4, why="killed")
    with pytest.raises(
        IllegalMove, match=r"worker-0: gone -> joined is not legal \(again\); history: 1.0s expected->joined"
    ):
        node.move(NodeState.JOINED, at=9, why="again")


def test_job_never_gets_more_workers_than_its_gpus_can_take():
    state = started(worker_gpu=0.5, gpus=2)
    state.handle(events.WorkersScaled(4, "asked"), at=2)
    with pytest.raises(errors.BadInput, match=r"5 workers with 0\.5 GPU each: job job may use 2 GPUs, enough for 4"):
        state.handle(events.WorkersScaled(5, "asked"), at=3)
    assert state.workers == 4
    free = started(gpus=1)
    free.handle(events.WorkersScaled(8, "nothing is reserved"), at=2)
    assert free.workers == 8


def test_decisions_and_faults_of_the_master_are_recorded():
    state = started()
    made = state.handle(events.DecisionMade("move 3 slots", "server-0 is hot", told=True), at=2)
    assert made == [actions.LogDecision("move 3 slots", "server-0 is hot", told=True)] and state.decision == made[0]
    end = conclusion(state.handle(events.MasterFailed("OSError: disk full"), at=3))
    assert (end.phase, end.why, end.blame) == (JobPhase.FAILED, "OSError: disk full", Blame.INFRASTRUCTURE)


def test_job_trains_in_step_once_a_script_asks_for_it():
    state = started()
    assert state.handle(events.BspBegan(), at=2) == [] and state.bsp.in_step


def test_role_may_join_until_exactly_its_timeout():
    state = JobState(SPEC)
    assert state.due(at=60) == []
    assert {type(event) for event in state.due(at=60.1)} == {events.RoleLate}


def test_ready_server_cannot_move_to_another_address():
    with pytest.raises(errors.BadInput, match="server-0 is already ready at host:0, and now reports other:0"):
        started().handle(events.RoleReady(SERVERS[0], "other:0"), at=2)


def test_history_says_whether_a_finished_worker_was_drained():
    state = started()
    state.handle(events.WorkersScaled(1, "fewer"), at=2)
    state.handle(events.ScriptFinished(WORKERS[1]), at=3)
    state.handle(events.ScriptFinished(WORKERS[0]), at=4)
    assert state.node(WORKERS[1]).history[-1] == "3.0s draining->finished: drained"
    assert state.node(WORKERS[0]).history[-1] == "4.0s joined->finished: the script ended"


def test_failure_of_a_fenced_worker_does_not_end_the_job():
    state = started()
    state.handle(killed(WORKERS[0]), at=2)
    assert state.handle(events.ScriptFailed(WORKERS[0], "ValueError", "line 3"), at=3) == []
    assert state.phase is JobPhase.RUNNING


def test_lost_server_explains_the_failures_of_workers():
    state = started(checkpoints=CheckpointRules(every_s=60), relaunches=1)
    state.handle(events.CheckpointSaved(1), at=1)
    state.ending.suspicion = Suspicion(2.0, "ServerUnreachable")
    state.handle(killed(SERVERS[0]), at=3)
    assert state.ending.suspicion is None and state.safety.lost == {0: 1}


def test_stopped_job_still_saves_what_was_trained():
    state = started(checkpoints=CheckpointRules(every_s=60))
    state.handle(events.StopRequested("Ctrl-C"), at=2)
    assert state.ending.last_save is None
    starting = JobState(dataclasses.replace(SPEC, checkpoints=CheckpointRules(every_s=60)))
    assert conclusion(starting.handle(events.StopRequested("Ctrl-C"), at=2)).phase is JobPhase.STOPPED
    assert starting.ending.last_save == "nothing was trained"


def test_late_report_of_silence_changes_nothing():
    state = started()
    for late in (events.RoleSilent(WORKERS[0], 1, 11.0), events.RoleSilent(WORKERS[0], 0, 11.0)):
        if late.incarnation == 0:
            state.handle(events.ScriptFinished(WORKERS[0]), at=3)
        assert state.handle(late, at=4) == []


def test_silent_worker_is_not_replaced_if_it_drains_or_the_job_does():
    for command in (events.WorkersScaled(1, "fewer"), events.StopRequested("Ctrl-C")):
        state = started()
        state.handle(command, at=2)
        state.handle(events.RoleSilent(WORKERS[1], 0, 11.0), at=13)
        assert state.node(WORKERS[1]).state is NodeState.GONE and state.relaunches == 0
