"""A lost server is restored if its slots can be; otherwise the job fails with the reason."""

import dataclasses

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.job import recovery
from springtide.job.core import actions, events
from springtide.job.core.nodes import RoleNode
from springtide.job.state import JobState
from tests.oracles import job_invariants

SPEC = JobSpec(name="job", servers=2, workers=1, silence_s=10, relaunches=2, backoff_s=1, server_memory=2**30)
SERVERS = [Role(RoleKind.SERVER, rank) for rank in range(2)]
WORKER = Role(RoleKind.WORKER, 0)


def started(*, saved=None, **spec):
    """A job with all roles joined, optionally with a complete checkpoint."""
    state = JobState(dataclasses.replace(SPEC, **spec))
    for server in SERVERS:
        state.handle(events.RoleJoined(server), at=1)
        state.handle(events.RoleReady(server, f"host:{server.rank}"), at=1)
    state.handle(events.RoleJoined(WORKER), at=1)
    assert state.phase is JobPhase.RUNNING and not state.healing
    if saved:
        state.handle(events.CheckpointSaved(saved), at=1)
    return state


def killed(role, incarnation=0, **more):
    return events.RoleExited(RoleExit(role=role, pid=7, signal="SIGKILL", incarnation=incarnation, **more))


def wanted_role(state, role):
    return {each.role: each for each in state.wanted()}.get(role)


def failure(done):
    (end,) = [action for action in done if isinstance(action, actions.EndJob)]
    assert (end.phase, end.blame) == (JobPhase.FAILED, Blame.INFRASTRUCTURE)
    return end.why


def test_lost_server_is_relaunched_and_returns_at_another_address():
    state = started(saved=4)
    lost, decided = state.handle(killed(SERVERS[1]), at=2)
    assert lost == actions.ServerLost(SERVERS[1], 0, "server-1 (pid 7) was killed by SIGKILL")
    assert decided.what == "relaunch server-1 as incarnation 1; its slots come from checkpoint 4"
    assert state.healing and state.phase is JobPhase.RUNNING
    assert (wanted_role(state, SERVERS[1]).incarnation, wanted_role(state, SERVERS[1]).after_s) == (1, 0.0)
    assert state.fenced(SERVERS[1], 0)
    state.handle(events.RoleJoined(SERVERS[1], 1, pid=9), at=3)
    assert state.handle(events.RoleReady(SERVERS[1], "host:1", incarnation=0), at=3) == []  # said by the old one
    assert state.healing
    assert state.handle(events.RoleReady(SERVERS[1], "host:9", incarnation=1), at=4) == [
        actions.ServerReturned(SERVERS[1], 1, "host:9")
    ]
    assert not state.healing
    job_invariants.check(state)


def test_two_servers_lost_at_once_return_independently():
    state = started(saved=1)
    for server in SERVERS:
        state.handle(killed(server), at=2)
        state.handle(events.RoleJoined(server, 1), at=3)
    assert state.handle(events.RoleReady(SERVERS[0], "new:0", 1), at=4) == [
        actions.ServerReturned(SERVERS[0], 1, "new:0")
    ]
    assert state.healing
    state.handle(events.RoleReady(SERVERS[1], "new:1", 1), at=4)
    assert not state.healing


def test_server_dying_again_during_restore_is_delayed_then_fails_the_job():
    state = started(saved=1)
    state.handle(killed(SERVERS[0]), at=2)
    state.handle(killed(SERVERS[0], 1), at=3)
    assert (wanted_role(state, SERVERS[0]).incarnation, wanted_role(state, SERVERS[0]).after_s) == (2, 1.0)
    why = failure(state.handle(killed(SERVERS[0], 2), at=4))
    assert why == "server-0 (pid 7) was killed by SIGKILL; relaunched 2 times already, which is the limit"


def test_out_of_memory_server_gets_twice_as_much_and_an_evicted_one_no_blame():
    state = started(saved=1)
    state.handle(killed(SERVERS[0], oom=True), at=2)
    assert wanted_role(state, SERVERS[0]).memory == 2**31
    state.handle(killed(SERVERS[1], evicted=True), at=2)
    assert state.node(SERVERS[1]).faults.crashes == 0 and wanted_role(state, SERVERS[1]).after_s == 0


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_job_without_restorable_slots_fails_with_the_reason(sync):
    why = failure(started(saved=None, sync=sync).handle(killed(SERVERS[1]), at=2))
    assert why.startswith("server-1 (pid 7) was killed by SIGKILL: its rows are lost, and ")
    assert "no checkpoint is complete yet" in why


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_server_lost_before_the_first_checkpoint_restarts_training(sync):
    state = started(saved=None, sync=sync, checkpoints=CheckpointRules(every_s=60))
    done = state.handle(killed(SERVERS[1]), at=2)
    assert done[0] == actions.ServerLost(SERVERS[1], 0, "server-1 (pid 7) was killed by SIGKILL")
    assert actions.RollBack(anew=True) in done
    assert done[-1].what == "restart training from the first sample, because no checkpoint is complete yet"
    assert all(wanted_role(state, role).incarnation == 1 for role in (*SERVERS, WORKER))
    job_invariants.check(state)
    for server in SERVERS:
        state.handle(events.RoleJoined(server, 1), at=3)
        state.handle(events.RoleReady(server, f"host:{server.rank}", 1), at=3)
    state.handle(events.RoleJoined(WORKER, 1), at=3)
    job_invariants.check(state)
    assert state.phase is JobPhase.RUNNING and not state.healing


def test_restart_from_first_sample_ends_draining_workers_and_relaunches_draining_servers():
    state = started(saved=None, workers=2, checkpoints=CheckpointRules(every_s=60))
    leaving = Role(RoleKind.WORKER, 1)
    state.handle(events.RoleJoined(leaving), at=1)
    state.handle(events.WorkersScaled(1, "fewer"), at=2)
    state.handle(events.ServersScaled(1, "fewer"), at=2)
    done = state.handle(killed(SERVERS[0]), at=3)
    fenced = [action for action in done if isinstance(action, actions.FenceWorker)]
    assert {(fence.role, fence.incarnation) for fence in fenced} == {(WORKER, 0), (leaving, 0)}
    assert wanted_role(state, leaving) is None and state.fenced(leaving, 0)
    assert wanted_role(state, SERVERS[1]).incarnation == 1  # it has rows of the samples that are trained again
    job_invariants.check(state)


def test_stopping_job_does_not_restart_training():
    state = started(saved=None, checkpoints=CheckpointRules(every_s=60))
    state.handle(events.StopRequested("Ctrl-C"), at=2)
    assert "no checkpoint is complete yet" in failure(state.handle(killed(SERVERS[1]), at=2))


def test_server_lost_before_training_is_simply_relaunched():
    state = JobState(SPEC)
    for server in SERVERS:
        state.handle(events.RoleJoined(server), at=1)
        state.handle(events.RoleReady(server, f"host:{server.rank}"), at=1)
    _, decided = state.handle(killed(SERVERS[0]), at=2)
    assert decided.what == "relaunch server-0 as incarnation 1"
    state.handle(events.RoleJoined(WORKER), at=3)
    assert state.phase is JobPhase.STARTING
    state.handle(events.RoleJoined(SERVERS[0], 1), at=3)
    state.handle(events.RoleReady(SERVERS[0], "host:5", 1), at=3)
    assert state.phase is JobPhase.RUNNING
    job_invariants.check(state)


def test_silent_server_is_replaced_after_its_own_timeout():
    state = started(saved=1, server_silence_s=3.0)
    state.handle(events.RoleAlive(WORKER), at=4)
    state.handle(events.RoleAlive(SERVERS[0]), at=4)
    (silent,) = state.due(at=4.5)
    done = state.handle(silent, at=4.5)
    assert done[0].why.startswith("server-1 has been silent for 4 s (limit 3 s)")
    assert wanted_role(state, SERVERS[1]).incarnation == 1
    with pytest.raises(errors.Fenced):
        state.handle(events.RoleJoined(SERVERS[1], 0), at=5)


def test_worker_that_gave_up_waiting_for_a_server_is_relaunched_without_blame():
    state = started(saved=1, relaunches=1)
    state.handle(killed(SERVERS[0]), at=2)
    for life in range(4):
        state.handle(events.ScriptFailed(WORKER, "ServerUnreachable: s", "", Blame.INFRASTRUCTURE, life), at=3)
        done = state.handle(events.RoleExited(RoleExit(role=WORKER, pid=8, code=1, incarnation=life)), at=3)
        assert any(isinstance(action, actions.FenceWorker) for action in done) and not state.phase.over
    assert state.node(WORKER).faults.crashes == 0


def test_worker_that_failed_before_the_loss_was_known_does_not_end_the_job():
    state = started(saved=1, relaunches=0)
    state.handle(events.ScriptFailed(WORKER, "ServerUnreachable: s", "", Blame.INFRASTRUCTURE), at=2)
    state.handle(events.RoleExited(RoleExit(role=WORKER, pid=8, code=1)), at=2)
    assert state.ending.suspicion
    failure(state.handle(killed(SERVERS[0]), at=2.1))  # no relaunch is allowed here at all


def test_bsp_group_without_own_checkpoint_rolls_back_to_the_resumed_one():
    state = started(sync="bsp")
    state.safety.origin = 3
    state.handle(events.GroupFormed((LeaseHolder(0),), "all are here"), at=2)
    done = state.handle(killed(SERVERS[1]), at=3)
    decided = next(action for action in done if isinstance(action, actions.LogDecision))
    assert decided.what.startswith("roll the bsp group back to checkpoint 3, from which the job continued")
    assert {each.role: each.incarnation for each in state.wanted()} == {SERVERS[0]: 1, SERVERS[1]: 1, WORKER: 1}
    job_invariants.check(state)


SERVER, WORKERS = Role(RoleKind.SERVER, 0), [Role(RoleKind.WORKER, rank) for rank in range(2)]


def form_workers(state, lives, *, at):
    """All roles join, and the workers form a group."""
    for role, life in zip((SERVER, *WORKERS), lives, strict=True):
        state.handle(events.RoleJoined(role, life, pid=life), at=at)
        if role == SERVER:
            state.handle(events.RoleReady(role, f"host:{life}", life), at=at)
    state.handle(
        events.GroupFormed(
            tuple(LeaseHolder(role.rank, life) for role, life in zip(WORKERS, lives[1:], strict=True)), ""
        ),
        at=at,
    )
    job_invariants.check(state)


def trained_job():
    """A job whose group formed after 8 s, with a checkpoint."""
    state = JobState(JobSpec(name="job", servers=1, workers=2, sync="bsp", relaunches=9))
    form_workers(state, (0, 0, 0), at=8)
    state.handle(events.CheckpointSaved(1), at=20)
    return state, state.safety.breaks


def lose(state, role, life, *, at):
    state.handle(events.RoleExited(RoleExit(role=role, pid=life, signal="SIGKILL", incarnation=life)), at=at)


def test_expected_recovery_time_defaults_to_the_start_time():
    _, breaks = trained_job()
    assert (breaks.losses, breaks.return_s, breaks.watched_s(108)) == (0, 8, 100)


def test_recovery_time_is_learned_from_recoveries_without_single_worker_waits():
    state, breaks = trained_job()
    lose(state, WORKERS[1], 0, at=30)
    form_workers(state, (0, 0, 1), at=33)
    assert (breaks.losses, breaks.waits, breaks.return_s) == (1, 1, 8 - 3)
    lose(state, WORKERS[1], 1, at=40)
    state.handle(events.GroupLost("together with rows that only its cache had"), at=41)
    assert breaks.losses == 2, "one worker was lost; that all begin anew is no loss of theirs"
    form_workers(state, (1, 1, 2), at=55)
    assert (breaks.losses, breaks.returns, breaks.return_s) == (2, 1, 15 - 3)
    lose(state, SERVER, 1, at=70)
    form_workers(state, (2, 2, 3), at=81)
    assert (breaks.losses, breaks.returns) == (2, 2), "a lost server takes the group back too"
    assert breaks.return_s == pytest.approx((15 + 11) / 2 - 3)


def test_regrouping_to_scale_counts_as_no_loss():
    state, breaks = trained_job()
    state.handle(events.WorkersScaled(1, "asked"), at=30)
    state.handle(events.GroupFormed((LeaseHolder(0),), "between two shards"), at=31)
    assert (breaks.losses, breaks.waits, breaks.returns) == (0, 0, 0)


@pytest.mark.parametrize(("failures", "delay"), [(0, 0.0), (1, 3.0), (2, 6.0), (4, 24.0), (6, 60.0), (2000, 60.0)])
def test_delay_of_a_relaunch_doubles_up_to_a_minute(failures, delay):
    assert recovery.backoff_s(failures, 3.0) == delay


def test_failures_are_forgotten_exactly_after_the_steady_time():
    node = RoleNode(role=WORKER, since=10.0)
    node.faults.crashes, node.faults.oom_kills = 2, 1
    assert recovery.remembered(node, 10.0 + recovery.STEADY_S - 1) == (2, 1)
    assert recovery.remembered(node, 10.0 + recovery.STEADY_S) == (0, 0)
    assert recovery.remembered(node, recovery.STEADY_S - 5) == (2, 1), "it lives for less, whatever the clock says"


def test_limit_of_relaunches_is_named_in_the_error():
    assert recovery.tried(0) == ""
    assert recovery.tried(1) == "; relaunched 1 time already, which is the limit"
    assert recovery.tried(2, 3 * 2**30) == "; relaunched 2 times already, most recently with 3 GiB, which is the limit"


def test_out_of_memory_kills_have_a_limit_of_their_own():
    node = RoleNode(role=WORKER, memory=2**30)
    node.faults.crashes, node.faults.oom_kills = 2, 1
    ended = RoleExit(role=WORKER, pid=7, signal="SIGKILL", oom=True)
    again = recovery.after_exit(node, ended, SPEC, at=5.0)
    assert (again.failures, again.oom_kills, again.memory, again.starved) == (2, 2, 2**31, True)
    assert again.why.endswith("at 1 GiB: its memory limit rises to 2 GiB")
    node.faults.oom_kills = 2
    verdict = recovery.after_exit(node, ended, SPEC, at=5.0)
    assert (
        verdict.blame is Blame.INFRASTRUCTURE
        and "relaunched 2 times already, most recently with 1 GiB" in verdict.error
    )


@pytest.mark.parametrize(
    ("ended", "said", "blame", "text"),
    [
        ({"code": 1}, "", Blame.USER, "without an exception in the script"),
        ({"code": 0}, "", Blame.USER, "status 0, before its script had ended"),
        ({"signal": "SIGSEGV"}, "", Blame.INFRASTRUCTURE, "without an exception in the script"),
        ({"code": 1}, "ServerUnreachable", Blame.INFRASTRUCTURE, "worker-0 cannot continue: ServerUnreachable"),
    ],
)
def test_blame_for_a_crash_follows_its_cause(ended, said, blame, text):
    node = RoleNode(role=WORKER)
    node.faults.crashes, node.faults.said = 2, said
    verdict = recovery.after_exit(node, RoleExit(role=WORKER, pid=7, **ended), SPEC, at=5.0)
    assert verdict.blame is blame and text in verdict.error
    node.faults.crashes = 1
    again = recovery.after_exit(node, RoleExit(role=WORKER, pid=7, **ended), SPEC, at=5.0)
    assert (again.failures, again.after_s, again.starved) == (2, 1.0, False)


def test_role_that_never_joined_is_named_with_the_blame():
    server = recovery.never_joined(RoleNode(role=SERVERS[0]), 61.0, others=False)
    assert server.blame is Blame.INFRASTRUCTURE and server.error.startswith("server-0 has not joined within 61 s;")
    worker = recovery.never_joined(RoleNode(role=WORKER), 61.0, others=False)
    assert worker.blame is Blame.USER and worker.error.startswith("worker-0: the script has not called st.join()")
    late = recovery.never_joined(RoleNode(role=WORKER), 61.0, others=True)
    assert late.blame is Blame.INFRASTRUCTURE and "although another worker has" in late.error


def test_relaunch_is_described_with_its_delay_and_source():
    node = RoleNode(role=SERVERS[0], incarnation=2)
    assert recovery.relaunch_text(node, 0.0) == "relaunch server-0 as incarnation 2"
    text = "relaunch server-0 as incarnation 2 after 1.5 s; its slots come from checkpoint 4"
    assert recovery.relaunch_text(node, 1.5, "checkpoint 4") == text


def test_rollback_counts_from_the_first_loss_and_once():
    breaks = recovery.GroupBreaks()
    assert breaks.watched_s(50.0) == 0.0
    breaks.formed({}, (LeaseHolder(0),), {0: 0.0}, start=2.0, at=10.0)
    assert (breaks.formed_at, breaks.start_s, breaks.watched_s(50.0)) == (10.0, 8.0, 40.0)
    breaks.went_back([25.0, 20.0], at=30.0)
    assert (breaks.losses, breaks.back_at) == (2, 20.0)
    for at in (33.0, 60.0):
        breaks.formed({}, (LeaseHolder(0, 1),), {0: 30.0}, start=2.0, at=at)
    assert (breaks.returns, breaks.returned_s, breaks.start_s) == (1, 13.0, 8.0)
    breaks.went_back([], at=70.0)
    assert (breaks.losses, breaks.back_at) == (2, 70.0)


def test_rollback_takes_no_less_than_no_time():
    assert recovery.GroupBreaks(start_s=3.0, waits=2, waited_s=10.0).return_s == 0.0
    assert recovery.GroupBreaks(start_s=3.0, waits=2, waited_s=10.0, returns=2, returned_s=14.0).return_s == 2.0


@pytest.mark.parametrize(("gang", "who"), [(True, "all workers have"), (False, "a worker has")])
def test_reason_to_run_says_which_workers_joined(gang, who):
    assert started(gang=gang).why == f"all servers are ready and {who} joined"
