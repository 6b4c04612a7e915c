"""Evicted roles are replaced at once and leave when nothing needs them."""

import pytest

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.domain.spec.planning_config import PlanningStage, PlanRules
from springtide.job.core import actions, events, nodes
from springtide.job.core.nodes import NodeState
from springtide.job.scaling import evictions, plan
from springtide.job.state import JobState
from tests.oracles import job_invariants

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


def notice_eviction(state, role, *, empty=False, incarnation=0):
    event = events.EvictionNoticed(role, incarnation, WHY, empty=empty)
    done = state.handle(event, at=1.0)
    job_invariants.check(state)
    return done, evictions.may_go(state, event)


def test_evicted_worker_finishes_its_batch_while_its_replacement_starts():
    state = training()
    (told,), free = notice_eviction(state, WORKER)
    assert not free and state.draining(WORKER)
    assert told == actions.LogDecision("worker-1 in place of worker-0, which finishes its batch and leaves", WHY)
    assert {str(each.role) for each in state.wanted()} == {"server-0", "server-1", "worker-0", "worker-1"}
    state.handle(events.ScriptFinished(WORKER, untrained=5), at=2.0)
    state.handle(events.RoleExited(RoleExit(role=WORKER, pid=1, code=0)), at=2.1)
    job_invariants.check(state)
    assert not state.phase.over, "the job goes on with the other"
    assert notice_eviction(state, WORKER)[1]


def test_repeated_eviction_changes_nothing():
    state = training()
    notice_eviction(state, WORKER)
    assert notice_eviction(state, WORKER) == ([], False)
    assert len(state.of_kind(RoleKind.WORKER)) == 2


def test_evicted_servers_slots_move_to_peers_before_it_is_released():
    state = training()
    (told,), free = notice_eviction(state, SERVER)
    assert told.what == "replace server-1 by server-2, and move its slots to its peers at once" and not free
    assert nodes.staying_servers(state.nodes) == (0,)
    assert notice_eviction(state, SERVER) == ([], False)
    assert notice_eviction(state, SERVER, empty=True) == ([], False), "slots may be on their way to it"
    assert state.node(SERVER).state is NodeState.DRAINING
    assert actions.ServerLeft(SERVER) in state.handle(events.ServerEmptied(SERVER), at=2.0)
    assert notice_eviction(state, SERVER, empty=True) == ([], True)
    assert state.node(SERVER).state is NodeState.GONE
    assert state.handle(events.RoleExited(RoleExit(role=SERVER, pid=2, code=0)), at=3.0) == []


def test_only_server_waits_for_its_successor():
    state = training(servers=1)
    only = Role(RoleKind.SERVER, 0)
    notice_eviction(state, only)
    assert nodes.staying_servers(state.nodes) == (0,)
    assert notice_eviction(state, only, empty=False) == ([], False)
    state.handle(events.RoleJoined(SERVER, pid=9), at=2.0)
    state.handle(events.RoleReady(SERVER, "host:1"), at=2.0)
    assert state.node(only).state is NodeState.DRAINING
    state.handle(events.ServerEmptied(only), at=3.0)
    assert notice_eviction(state, only)[1]


@pytest.mark.parametrize("spec", [{"sync": "bsp"}], ids=["bsp"])
def test_evicted_bsp_worker_is_released_at_once(spec):
    state = training(**spec)
    assert notice_eviction(state, WORKER) == ([], True)


def test_ended_incarnation_is_released():
    state = training()
    assert notice_eviction(state, Role(RoleKind.WORKER, 7)) == ([], True)
    assert notice_eviction(state, Role(RoleKind.DATA_WORKER, 0)) == ([], True)
    state.handle(events.RoleExited(RoleExit(role=WORKER, pid=1, signal="SIGKILL", evicted=True)), at=1.0)
    assert notice_eviction(state, WORKER) == ([], True)


def test_eviction_before_the_job_runs_saves_nothing():
    state = JobState(JobSpec(name="job", servers=1, workers=1))
    assert notice_eviction(state, WORKER) == ([], True)


WORKERS = [Role(RoleKind.WORKER, rank) for rank in range(4)]
SERVERS = [Role(RoleKind.SERVER, rank) for rank in range(4)]


def job(workers=2, servers=1, **fields):
    return JobState(JobSpec(name="job", workers=workers, servers=servers, **fields))


def exit_unplaced(state, role, at=300.0):
    ended = RoleExit(role=role, pid=0, incarnation=state.node(role).incarnation, unplaced="0/3 nodes have 8 CPU")
    return state.handle(events.RoleExited(ended), at=at)


def begin(state, workers, servers):
    for role in servers:
        state.handle(events.RoleJoined(role, pid=1), at=1.0)
        state.handle(events.RoleReady(role, f"host:{role.rank}"), at=1.0)
    for role in workers:
        state.handle(events.RoleJoined(role, pid=1), at=1.0)


def test_job_continues_without_an_unplaceable_worker_and_says_so():
    state = job(workers=2)
    begin(state, WORKERS[:1], SERVERS[:1])
    done = exit_unplaced(state, WORKERS[1])
    assert (state.workers, state.phase, state.relaunches) == (1, JobPhase.RUNNING, 0)
    assert [each.role for each in state.wanted()] == [SERVERS[0], WORKERS[0]]
    assert any(isinstance(action, actions.FenceWorker) for action in done)
    assert state.decision.what == "continue with 1 worker, without worker-1"
    assert "0/3 nodes have 8 CPU" in state.decision.why and "again in 300 s" in state.decision.why


def test_unplaced_role_is_requested_again_after_growing_delays():
    state = job(workers=2)
    begin(state, WORKERS[:1], SERVERS[:1])
    exit_unplaced(state, WORKERS[1], at=300.0)
    assert evictions.requests_due(state, at=599.0) == []
    (event,) = evictions.requests_due(state, at=600.0)
    state.handle(event, at=600.0)
    assert state.workers == 2 and not state.short.any and state.node(WORKERS[1]).incarnation == 1
    exit_unplaced(state, WORKERS[1], at=900.0)
    assert state.short.tries == 2 and state.short.again_at == 900.0 + 2 * 300.0
    (event,) = evictions.requests_due(state, at=1500.0)
    state.handle(event, at=1500.0)
    state.handle(events.RoleJoined(WORKERS[1], 2), at=1501.0)
    assert evictions.requests_due(state, at=9999.0) == []


def test_last_worker_is_waited_for_without_counting_a_failure():
    state = job(workers=1)
    exit_unplaced(state, WORKERS[0])
    node = state.node(WORKERS[0])
    assert (node.state, node.incarnation, node.faults.crashes) == (NodeState.EXPECTED, 1, 0)
    assert state.workers == 1 and "has no node" in state.decision.why


def test_unplaceable_required_role_asks_for_fewer_planned_cores():
    shape = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
    bounds = ShapeBounds(least=shape, most=shape, quota=ResourceBudget(cpu=64.0, memory=2**40))
    state = job(workers=1, worker_cpu=3.0, server_cpu=3.0, planning=PlanRules(bounds=bounds))
    sizes = []
    for at in (300.0, 600.0, 900.0):
        exit_unplaced(state, WORKERS[0], at=at)
        sizes.append(state.node(WORKERS[0]).cpu)
    assert sizes == [1.5, 1.0, 1.0]
    state = job(workers=1, worker_cpu=3.0)
    exit_unplaced(state, WORKERS[0])
    assert state.node(WORKERS[0]).cpu == 3.0


def test_slots_are_placed_over_the_present_servers():
    state = job(workers=1, servers=3)
    begin(state, WORKERS[:1], [SERVERS[0], SERVERS[2]])
    assert state.phase is JobPhase.STARTING
    done = exit_unplaced(state, SERVERS[1])
    assert actions.PlaceSlots(("host:0", "", "host:2")) in done
    assert (state.phase, state.servers_wanted) == (JobPhase.RUNNING, 2)
    (event,) = evictions.requests_due(state, at=600.0)
    state.handle(event, at=600.0)
    assert SERVERS[3] in [each.role for each in state.wanted()]  # a rank is one server for the whole of a job


def test_unplaced_server_with_slots_is_waited_for():
    state = job(workers=1, servers=2)
    begin(state, WORKERS[:1], SERVERS[:2])
    state.handle(events.CheckpointSaved(1), at=2.0)
    lost = RoleExit(role=SERVERS[1], pid=1, signal="SIGKILL", evicted=True)
    state.handle(events.RoleExited(lost), at=3.0)
    exit_unplaced(state, SERVERS[1])
    assert state.servers_wanted == 2 and state.node(SERVERS[1]).incarnation == 2
    assert state.phase is JobPhase.RUNNING and state.healing


def test_unplaced_additional_server_is_dropped():
    state = job(workers=1, servers=1)
    begin(state, WORKERS[:1], SERVERS[:1])
    state.handle(events.ServersScaled(2, "more"), at=2.0)
    exit_unplaced(state, SERVERS[1])
    assert state.servers_wanted == 1 and state.short.servers == 1


def test_unplaced_data_workers_are_dropped_one_by_one():
    state = job(workers=1)
    begin(state, WORKERS[:1], SERVERS[:1])
    state.handle(events.DataWorkersScaled(2, 1.0, "tuned"), at=2.0)
    exit_unplaced(state, Role(RoleKind.DATA_WORKER, 0))
    assert state.feeding.wanted == 1 and not state.feeding.given_up
    (event,) = evictions.requests_due(state, at=9999.0)
    assert event == events.DataWorkersScaled(2, 1.0, event.why)


def test_plan_does_not_immediately_request_unplaceable_roles():
    least = Shape(workers=2, servers=1, worker_cpu=1.0, server_cpu=1.0)
    most = Shape(workers=8, servers=4, worker_cpu=1.0, server_cpu=1.0)
    bounds = ShapeBounds(least=least, most=most, quota=ResourceBudget(cpu=64.0, memory=2**40))
    state = job(workers=3, worker_cpu=1.0, server_cpu=1.0, planning=PlanRules(bounds=bounds))
    begin(state, WORKERS[:1], SERVERS[:1])
    exit_unplaced(state, WORKERS[1])
    exit_unplaced(state, WORKERS[2])
    allowed = plan.bounds_of(state)
    assert (allowed.least.workers, allowed.most.workers, allowed.most.servers) == (1, 1, 4)


def test_unplaced_report_is_ignored_for_a_joined_role_or_a_draining_job():
    state = job(workers=2)
    begin(state, WORKERS[:2], SERVERS[:1])
    assert exit_unplaced(state, WORKERS[1]) == []
    state = job(workers=2)
    begin(state, WORKERS[:1], SERVERS[:1])
    state.handle(events.StopRequested("Ctrl-C"), at=2.0)
    assert exit_unplaced(state, WORKERS[1]) == [] and state.phase is JobPhase.DRAINING


def test_gang_starts_when_all_joined_or_are_known_to_be_unplaceable():
    state = job(workers=3, gang=True)
    begin(state, WORKERS[:1], SERVERS[:1])
    assert state.phase is JobPhase.STARTING
    state.handle(events.RoleJoined(WORKERS[1], pid=1), at=2.0)
    assert state.phase is JobPhase.STARTING
    exit_unplaced(state, WORKERS[2])
    assert state.phase is JobPhase.RUNNING and state.workers == 2


def test_server_being_replaced_gives_its_slots_to_peers_once_it_is_evicted():
    state = training()
    state.handle(events.ServerReplaced(1, "its machine is slow"), at=0.5)
    assert nodes.staying_servers(state.nodes) == (0, 1)
    event = events.EvictionNoticed(SERVER, 0, WHY)
    assert evictions.changes_anything(state, event)
    assert notice_eviction(state, SERVER) == ([], False)
    assert nodes.staying_servers(state.nodes) == (0,) and state.node(SERVER).state is NodeState.JOINED
    assert not evictions.changes_anything(state, event), "its peers take its slots already"
    assert evictions.changes_anything(state, events.EvictionNoticed(SERVER, 0, WHY, empty=True))


@pytest.mark.parametrize("role", [(Role(RoleKind.WORKER, 9), 0), (WORKER, 1)], ids=["unknown", "another incarnation"])
def test_notice_about_no_present_process_need_not_be_journaled(role):
    assert not evictions.changes_anything(training(), events.EvictionNoticed(*role, WHY))


def test_missing_worker_drops_the_plan_and_leaves_at_least_one_wanted():
    state = job(workers=2)
    begin(state, WORKERS[:1], SERVERS[:1])
    shape = Shape(workers=2, servers=1, worker_cpu=1.0, server_cpu=1.0)
    state.handle(events.PlanTaken(shape, PlanningStage.ADJUSTING, "faster"), at=2.0)
    state.workers = 1  # a plan wants one, and the other has not left yet
    exit_unplaced(state, WORKERS[1])
    assert (state.workers, state.planned.target, state.short.workers) == (1, None, 1)


def test_job_waits_for_its_only_server_and_counts_each_that_is_missing():
    assert exit_unplaced(job(servers=1), SERVERS[0])[-1].what.startswith("relaunch server-0")
    state = job(servers=3)
    begin(state, (), SERVERS[:1])
    exit_unplaced(state, SERVERS[2])
    assert (state.short.servers, state.servers_wanted) == (1, 2)
