"""How a job reacts to what happens to its processes."""

import pytest

from springtide import errors
from springtide.domain.cluster import Role, RoleExit, RoleKind
from springtide.domain.job import Blame, JobSpec, Phase
from springtide.job import actions, events
from springtide.job.nodes import IllegalMove, Node, NodeState
from springtide.job.state import EXPLANATION_S, JobState

SPEC = JobSpec(name="job", servers=2, workers=2, join_s=60, silence_s=10)
SERVERS = [Role(RoleKind.SERVER, rank) for rank in range(2)]
WORKERS = [Role(RoleKind.WORKER, rank) for rank in range(2)]


def started():
    """A job in which everyone has joined, at 1 s."""
    state = JobState(SPEC)
    for server in SERVERS:
        state.handle(events.Joined(server), at=1)
        state.handle(events.Ready(server, f"host:{server.rank}"), at=1)
    for worker in WORKERS:
        state.handle(events.Joined(worker), at=1)
    assert state.phase is Phase.RUNNING
    return state


def killed(role):
    return events.Gone(RoleExit(role=role, pid=7, signal="SIGKILL"))


def exited(role, code):
    return events.Gone(RoleExit(role=role, pid=7, code=code))


def test_slots_are_placed_once_all_servers_are_ready():
    state = JobState(SPEC)
    state.handle(events.Joined(WORKERS[0]), at=0)
    for server in SERVERS:
        state.handle(events.Joined(server), at=1)
    assert state.handle(events.Ready(SERVERS[1], "b:2"), at=2) == []
    assert state.phase is Phase.STARTING
    assert state.handle(events.Ready(SERVERS[0], "a:1"), at=3) == [actions.PlaceSlots(("a:1", "b:2"))]
    assert state.phase is Phase.RUNNING


def test_a_job_finishes_when_every_script_has_ended():
    state = started()
    assert state.handle(events.Finished(WORKERS[1]), at=2) == []
    assert state.handle(exited(WORKERS[1], 0), at=2) == []
    (end,) = state.handle(events.Finished(WORKERS[0]), at=3)
    assert end.phase is Phase.FINISHED
    state.check()


def test_a_users_exception_fails_the_job_at_once_and_comes_first():
    state = started()
    (end,) = state.handle(events.Failed(WORKERS[1], "ValueError: no (train.py:3)", "the trace"), at=2)
    assert (end.phase, end.why, end.blame) == (Phase.FAILED, "ValueError: no (train.py:3)", Blame.USER)
    assert state.detail == "the trace"
    assert state.handle(killed(SERVERS[0]), at=3) == []  # what comes after does not change the reason
    assert state.why == "ValueError: no (train.py:3)"


def test_a_lost_server_fails_the_job_and_is_named():
    state = started()
    (end,) = state.handle(killed(SERVERS[1]), at=2)
    assert end.why.startswith("server-1 (pid 7) was killed by SIGKILL")
    assert end.blame is Blame.INFRASTRUCTURE


def test_a_worker_that_cannot_reach_a_server_waits_for_the_cause():
    state = started()
    lost = events.Failed(WORKERS[0], "ServerUnreachable: a:1", "trace", Blame.INFRASTRUCTURE)
    assert state.handle(lost, at=2) == []
    assert state.handle(exited(WORKERS[0], 1), at=2.1) == []
    (end,) = state.handle(killed(SERVERS[0]), at=2.2)
    assert end.why.startswith("server-0 (pid 7) was killed by SIGKILL")
    assert state.detail == "trace"


def test_a_symptom_without_a_cause_fails_the_job_in_the_end():
    state = started()
    assert state.handle(events.HungUp(SERVERS[0]), at=2) == []
    assert state.handle(events.Tick(), at=2 + EXPLANATION_S / 2) == []
    (end,) = state.handle(events.Tick(), at=2 + EXPLANATION_S)
    assert end.why == "server-0 has closed its connection to the master without a word"
    assert end.blame is Blame.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("event", "why", "blame"),
    [
        (killed(WORKERS[0]), "worker-0 (pid 7) was killed by SIGKILL, without an exception", Blame.INFRASTRUCTURE),
        (exited(WORKERS[0], 3), "worker-0 (pid 7) exited with status 3", Blame.USER),
        (exited(WORKERS[0], 0), "worker-0: the script left in the middle of the job", Blame.USER),
    ],
)
def test_a_worker_that_leaves_early_fails_the_job(event, why, blame):
    (end,) = started().handle(event, at=2)
    assert end.why.startswith(why)
    assert end.blame is blame


def test_a_script_that_never_joins_is_told_what_to_do():
    (end,) = JobState(SPEC).handle(exited(WORKERS[0], 0), at=2)
    assert "ended without calling st.join()" in end.why
    (late,) = JobState(SPEC).handle(events.Tick(), at=61)
    assert late.why == "server-0 has not called in within 61 s; its log may say why"


def test_silence_counts_from_the_last_heartbeat_and_not_before_training():
    state = JobState(SPEC)
    state.handle(events.Joined(WORKERS[0]), at=0)
    assert state.handle(events.Tick(), at=50) == []  # it waits for the servers and cannot send heartbeats
    state = started()
    for role in (*SERVERS, WORKERS[1]):
        state.handle(events.Heard(role), at=11)
    (end,) = state.handle(events.Tick(), at=12)
    assert end.why.startswith("worker-0 has been silent for 11 s (limit 10 s)")


def test_ctrl_c_drains_and_then_the_job_is_stopped():
    state = started()
    assert state.handle(events.StopAsked("Ctrl-C"), at=2) == [actions.Drain("Ctrl-C")]
    assert state.handle(events.StopAsked("Ctrl-C"), at=2) == []
    state.handle(events.Finished(WORKERS[0]), at=3)
    (end,) = state.handle(exited(WORKERS[1], 0), at=3)
    assert (end.phase, end.why) == (Phase.STOPPED, "Ctrl-C")


def test_a_second_process_of_the_same_name_is_turned_away():
    with pytest.raises(errors.BadInput, match="a second worker-0 wants to join; the first is joined"):
        started().handle(events.Joined(WORKERS[0]), at=2)
    with pytest.raises(errors.BadInput, match="worker-9 is not part of job job, which has 2 servers and 2 workers"):
        started().handle(events.Joined(Role(RoleKind.WORKER, 9)), at=2)


def test_an_illegal_move_tells_the_story():
    node = Node(WORKERS[0])
    node.move(NodeState.JOINED, at=1, why="called in")
    node.move(NodeState.GONE, at=4, why="killed")
    with pytest.raises(
        IllegalMove, match=r"worker-0: gone -> joined is not legal \(again\); story: 1.0s expected->joined"
    ):
        node.move(NodeState.JOINED, at=9, why="again")
