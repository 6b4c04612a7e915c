"""Replace servers: by a ready one, or by their peers at once if they are very slow."""

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import actions, events, nodes
from springtide.job.state import JobState
from tests.oracles import job_invariants


def training(**spec):
    """A job of two servers and a worker."""
    state = JobState(JobSpec(name="job", servers=2, **spec))
    for kind, ranks in ((RoleKind.SERVER, 2), (RoleKind.WORKER, 1)):
        for rank in range(ranks):
            state.handle(events.RoleJoined(Role(kind, rank), pid=rank + 1), at=0.0)
    for rank in range(2):
        state.handle(events.RoleReady(Role(RoleKind.SERVER, rank), f"host:{rank}"), at=0.0)
    return state


def become_ready(state, rank):
    role = Role(RoleKind.SERVER, rank)
    state.handle(events.RoleJoined(role, pid=10 + rank), at=2.0)
    state.handle(events.RoleReady(role, f"host:{rank}"), at=2.0)
    job_invariants.check(state)


def test_replaced_server_keeps_its_slots_until_another_is_ready():
    state = training()
    state.handle(events.ServerReplaced(1, "its machine is slow"), at=1.0)

    assert nodes.staying_servers(state.nodes) == (0, 1)
    become_ready(state, 2)
    assert nodes.staying_servers(state.nodes) == (0, 2)


def test_very_slow_server_loses_its_slots_at_once():
    state = training()
    (told,) = state.handle(events.ServerReplaced(1, "its machine is very slow", at_once=True), at=1.0)

    assert told == actions.LogDecision(
        "replace server-1 by server-2, and move its slots to its peers at once", "its machine is very slow"
    )
    assert nodes.staying_servers(state.nodes) == (0,)
    job_invariants.check(state)
    become_ready(state, 2)
    assert nodes.staying_servers(state.nodes) == (0, 2)


def test_server_is_kept_if_its_replacement_never_joins():
    state = training(join_s=5.0)
    state.handle(events.ServerReplaced(1, "its machine is very slow", at_once=True), at=1.0)
    for event in state.due(at=7.0):
        state.handle(event, at=7.0)

    assert nodes.staying_servers(state.nodes) == (0, 1)
    job_invariants.check(state)


def test_replacement_server_has_the_size_of_the_replaced():
    state = training(server_cpu=1.0, server_memory=1 << 30)
    state.nodes["server-1"].memory = 2 << 30
    state.handle(events.ServerReplaced(1, "its machine is slow"), at=1.0)

    assert (state.nodes["server-2"].cpu, state.nodes["server-2"].memory) == (1.0, 2 << 30)


def kill(state, rank, *, oom, at=3.0):
    """Kill a server; return the resulting decisions."""
    role = Role(RoleKind.SERVER, rank)
    life = state.nodes[str(role)].incarnation
    ended = RoleExit(role=role, pid=rank + 1, signal="SIGKILL", incarnation=life, oom=oom)
    told = state.handle(events.RoleExited(ended), at=at)
    job_invariants.check(state)
    return [action.what for action in told if isinstance(action, actions.LogDecision)]


def test_out_of_memory_kill_doubles_the_number_of_servers():
    state = training(server_memory=1 << 30)
    state.handle(events.CheckpointSaved(1), at=1.0)

    again, more = kill(state, 1, oom=True)
    assert again.startswith("relaunch server-1 as incarnation 1") and more.startswith("scale from 2 to 4 servers: add ")
    assert [state.nodes[f"server-{rank}"].memory for rank in (1, 2)] == [2 << 30, 1 << 30]
    assert len(kill(state, 0, oom=True)) == 1, "more are on their way already"


def test_other_kills_keep_the_number_of_servers():
    state = training(server_memory=1 << 30)
    state.handle(events.CheckpointSaved(1), at=1.0)

    assert len(kill(state, 1, oom=False)) == 1 and state.servers_wanted == 2


def test_servers_are_added_beside_one_being_replaced():
    state = training()
    state.handle(events.ServerReplaced(1, "its machine is slow"), at=1.0)
    state.handle(events.ServersScaled(3, "asked"), at=1.5)
    state.handle(
        events.RoleExited(RoleExit(role=Role(RoleKind.SERVER, 2), pid=0, unplaced="0/3 nodes have room")), at=2.0
    )
    job_invariants.check(state)
    assert state.servers_wanted == 3
    become_ready(state, 3)
    assert nodes.staying_servers(state.nodes) == (0, 1, 3)


def test_server_that_has_not_joined_is_dropped_when_fewer_are_wanted():
    state = training()
    state.handle(events.ServersScaled(3, "more"), at=1.0)
    (told,) = state.handle(events.ServersScaled(2, "fewer"), at=2.0)
    assert told.what == "scale from 3 to 2 servers: drop server-2"
    assert [str(each.role) for each in state.wanted()] == ["server-0", "server-1", "worker-0"]


def test_server_is_replaced_by_only_one_other():
    state = training()
    state.handle(events.ServerReplaced(1, "its machine is slow"), at=1.0)
    with pytest.raises(errors.BadInput, match="server-1 is joined: it cannot be replaced now"):
        state.handle(events.ServerReplaced(1, "its machine is slow"), at=2.0)
    assert len(state.of_kind(RoleKind.SERVER)) == 3
