"""Roles that their host takes away soon: others come at once, and they leave when nothing more is wanted of them."""

import pytest

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import actions, events, nodes
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import evictions
from springtide.job.state import JobState

WORKER, SERVER = Role(RoleKind.WORKER, 0), Role(RoleKind.SERVER, 1)
WHY = "its pod is being evicted"


def training(*, servers=2, workers=1, **spec):
    state = JobState(JobSpec(name="job", servers=servers, workers=workers, **spec))
    for kind, ranks in ((RoleKind.SERVER, servers), (RoleKind.WORKER, workers)):
        for rank in range(ranks):
            state.handle(events.RoleJoined(Role(kind, rank), pid=rank + 1), at=0.0)
    for rank in range(servers):
        state.handle(events.RoleReady(Role(RoleKind.SERVER, rank), f"host:{rank}"), at=0.0)
    return state


def leaving(state, role, *, empty=False, incarnation=0):
    event = events.EvictionNoticed(role, incarnation, WHY, empty=empty)
    done = state.handle(event, at=1.0)
    state.check()
    return done, evictions.may_go(state, event)


def test_a_worker_finishes_its_batch_while_another_comes():
    state = training()
    (told,), free = leaving(state, WORKER)
    assert not free and state.draining(WORKER)
    assert told == actions.LogDecision("worker-1 in place of worker-0, which finishes its batch and leaves", WHY)
    assert {str(each.role) for each in state.wanted()} == {"server-0", "server-1", "worker-0", "worker-1"}
    state.handle(events.ScriptFinished(WORKER, untrained=5), at=2.0)
    state.handle(events.RoleExited(RoleExit(role=WORKER, pid=1, code=0)), at=2.1)
    state.check()
    assert not state.phase.over, "the job goes on with the other"
    assert leaving(state, WORKER)[1]


def test_what_is_said_again_changes_nothing():
    state = training()
    leaving(state, WORKER)
    assert leaving(state, WORKER) == ([], False)
    assert len(state.of_kind(RoleKind.WORKER)) == 2


def test_a_servers_slots_go_to_its_peers_and_it_is_free_without_them():
    state = training()
    (told,), free = leaving(state, SERVER)
    assert told.what == "replace server-1 by server-2, its slots go to its peers at once" and not free
    assert nodes.staying_servers(state.nodes) == (0,)
    assert leaving(state, SERVER) == ([], False)
    assert leaving(state, SERVER, empty=True) == ([], False), "slots may be on their way to it"
    assert state.node(SERVER).state is NodeState.DRAINING
    assert actions.ServerLeft(SERVER) in state.handle(events.ServerEmptied(SERVER), at=2.0)
    assert leaving(state, SERVER, empty=True) == ([], True)
    assert state.node(SERVER).state is NodeState.GONE
    assert state.handle(events.RoleExited(RoleExit(role=SERVER, pid=2, code=0)), at=3.0) == []


def test_the_only_server_waits_for_its_successor():
    state = training(servers=1)
    only = Role(RoleKind.SERVER, 0)
    leaving(state, only)
    assert nodes.staying_servers(state.nodes) == (0,)
    assert leaving(state, only, empty=False) == ([], False)
    state.handle(events.RoleJoined(SERVER, pid=9), at=2.0)
    state.handle(events.RoleReady(SERVER, "host:1"), at=2.0)
    assert state.node(only).state is NodeState.DRAINING
    state.handle(events.ServerEmptied(only), at=3.0)
    assert leaving(state, only)[1]


@pytest.mark.parametrize("spec", [{"sync": "bsp"}], ids=["bsp"])
def test_a_group_in_step_is_formed_anew_when_one_is_lost(spec):
    state = training(**spec)
    assert leaving(state, WORKER) == ([], True)


def test_a_life_that_is_over_is_free():
    state = training()
    assert leaving(state, Role(RoleKind.WORKER, 7)) == ([], True)
    assert leaving(state, Role(RoleKind.DATA_WORKER, 0)) == ([], True)
    state.handle(events.RoleExited(RoleExit(role=WORKER, pid=1, signal="SIGKILL", evicted=True)), at=1.0)
    assert leaving(state, WORKER) == ([], True)


def test_before_the_job_runs_there_is_nothing_to_save():
    state = JobState(JobSpec(name="job", servers=1, workers=1))
    assert leaving(state, WORKER) == ([], True)
