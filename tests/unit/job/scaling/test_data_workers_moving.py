"""An evicted or moving data worker is replaced before it leaves."""

import pytest

from springtide.domain.core.roles import RoleExit, RoleKind
from springtide.domain.data.data_workers import spread
from springtide.job.core import events
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import evictions
from tests.oracles import job_invariants
from tests.unit.job.scaling.test_data_workers import DATA, job_with_data_workers, join_and_ready, names, states
from tests.unit.job.test_state import exited, killed, want

WHY = "there is room beside its trainers"


def notice_eviction(state, role, incarnation=0):
    event = events.EvictionNoticed(role, incarnation, WHY)
    matters = evictions.changes_anything(state, event)
    done = state.handle(event, at=5.0) if matters else []
    job_invariants.check(state)
    return done, evictions.may_go(state, event)


def test_evicted_data_worker_feeds_until_its_replacement_is_ready():
    state = job_with_data_workers(2)
    epoch = state.feeding.epoch
    (decided,), free = notice_eviction(state, DATA[0])
    assert (decided.what, decided.why) == ("data-worker-2 in place of data-worker-0, which feeds until then", WHY)
    assert not free and want(state, DATA[2]).cpu == want(state, DATA[0]).cpu == 1.0
    state.handle(events.RoleJoined(DATA[2]), at=6)
    assert names(state) == ["data-worker-0.0", "data-worker-1.0"] and state.feeding.epoch == epoch
    state.handle(events.RoleReady(DATA[2], "better:2"), at=7)
    assert names(state) == ["data-worker-1.0", "data-worker-2.0"] and state.draining(DATA[0])
    assert state.feeding.epoch == epoch + 1 and notice_eviction(state, DATA[0]) == ([], False)
    state.handle(exited(DATA[0], 0), at=8)
    job_invariants.check(state)
    assert states(state) == [NodeState.GONE, NodeState.JOINED, NodeState.JOINED] and notice_eviction(state, DATA[0])[1]
    assert state.feeding.wanted == 2 and not any(node.incarnation for node in state.of_kind(RoleKind.DATA_WORKER))


def test_repeated_data_worker_eviction_changes_nothing():
    state = job_with_data_workers(1)
    notice_eviction(state, DATA[0])
    assert notice_eviction(state, DATA[0]) == ([], False)
    assert len(states(state)) == 2


def test_data_worker_lost_before_its_replacement_is_ready_is_not_relaunched():
    state = job_with_data_workers(1)
    notice_eviction(state, DATA[0])
    assert state.handle(killed(DATA[0]), at=6) == []
    job_invariants.check(state)
    assert want(state, DATA[0]) is None and notice_eviction(state, DATA[0])[1]
    join_and_ready(state, DATA[1], at=7)
    assert names(state) == ["data-worker-1.0"]


def test_lost_replacement_is_relaunched_while_the_first_feeds_on():
    state = job_with_data_workers(1)
    notice_eviction(state, DATA[0])
    state.handle(killed(DATA[1]), at=6)
    job_invariants.check(state)
    assert names(state) == ["data-worker-0.0"] and want(state, DATA[1]).incarnation == 1
    join_and_ready(state, DATA[1], 1, at=7)
    assert names(state) == ["data-worker-1.1"]


def test_evicted_data_worker_stays_if_its_replacement_cannot_be_placed():
    state = job_with_data_workers(1)
    notice_eviction(state, DATA[0])
    (decided,) = state.handle(events.RoleExited(RoleExit(role=DATA[1], pid=0, unplaced="no node took it")), at=6)
    assert decided.what == "data-worker-0 continues, because no host has room for data-worker-1"
    job_invariants.check(state)
    assert state.feeding.wanted == 1 and names(state) == ["data-worker-0.0"]
    assert not state.node(DATA[0]).departure.replaced


@pytest.mark.parametrize("count", [0, 1, 3])
def test_scaling_during_an_eviction_reaches_the_wanted_count(count):
    state = job_with_data_workers(2)
    notice_eviction(state, DATA[0])
    state.handle(events.DataWorkersScaled(count, 1.0, "asked"), at=6)
    job_invariants.check(state)
    for role in DATA:
        if want(state, role) is not None and not state.draining(role):
            join_and_ready(state, role, state.node(role).incarnation, at=7)
    assert len(names(state)) == count and "data-worker-0.0" not in names(state)


def test_replacement_joins_the_same_stage():
    state = job_with_data_workers(4)
    state.handle(events.DataWorkersScaled(4, 1.0, "two stages", stages=spread(4, 1.0, 2)), at=3)
    (decided,), _ = notice_eviction(state, DATA[1])
    assert decided.what.startswith("data-worker-5 in place of data-worker-1")


def test_no_replacement_starts_in_an_ending_job():
    state = job_with_data_workers(1)
    state.handle(events.StopRequested("enough"), at=4)
    assert notice_eviction(state, DATA[0]) == ([], True)
