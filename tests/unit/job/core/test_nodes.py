"""One role of a job: its states, its history, and which servers may get slots."""

import pytest

from springtide.domain.core.roles import Role, RoleKind
from springtide.job.core import nodes
from springtide.job.core.nodes import MAX_HISTORY, IllegalMove, NodeState, RoleNode

WORKER = Role(RoleKind.WORKER, 0)


def server(rank, **more):
    return RoleNode(role=Role(RoleKind.SERVER, rank), **{"state": NodeState.JOINED, "address": f"host:{rank}"} | more)


def by_name(*members):
    return {str(node.role): node for node in members}


def test_next_incarnation_forgets_the_address_error_and_departure_of_the_last():
    node = RoleNode(role=WORKER, state=NodeState.JOINED, address="host:1")
    node.faults.said, node.faults.trace = "ValueError", "line 3"
    node.departure.finished = node.departure.removed = True
    node.move(NodeState.EXPECTED, at=7.0, why="killed")
    assert (node.incarnation, node.since, node.heard_at, node.address) == (1, 7.0, 7.0, "")
    assert (node.faults.said, node.faults.trace) == ("", "")
    assert not node.departure.finished and not node.departure.removed


def test_draining_and_finished_roles_record_how_they_leave():
    node = RoleNode(role=WORKER, state=NodeState.JOINED)
    node.move(NodeState.DRAINING, at=3.0, why="fewer")
    assert node.departure.removed and node.departure.drain_since == 3.0 and not node.departure.finished
    node.move(NodeState.FINISHED, at=4.0, why="drained")
    assert (node.departure.finished, node.departure.drain_since, node.heard_at) == (True, 3.0, 4.0)
    assert (node.incarnation, node.since) == (0, 0.0)


def test_history_keeps_the_most_recent_moves():
    node = RoleNode(role=WORKER)
    for at in range(MAX_HISTORY + 2):
        node.move(NodeState.EXPECTED, at=at, why="again")
    assert len(node.history) == MAX_HISTORY
    assert (node.history[0], node.history[-1]) == ("2.0s expected->expected: again", "51.0s expected->expected: again")
    with pytest.raises(IllegalMove, match=r"worker-0: expected -> finished is not legal \(done\); history: 2\.0s"):
        node.move(NodeState.FINISHED, at=60, why="done")


def test_only_ready_servers_that_stay_may_get_slots():
    slow, leaving, lost = server(1), server(2, state=NodeState.DRAINING), server(3, address="")
    slow.departure.shunned = True
    roles = by_name(server(5), slow, leaving, lost, server(4, coming=True), server(0))
    assert nodes.staying_servers(roles) == (0, 5)
    assert not nodes.all_servers_ready(roles), "server-3 has slots and is not ready"
    lost.address = "host:3"
    assert nodes.all_servers_ready(roles)


def test_members_of_a_group_are_lost_with_their_process():
    workers = [
        RoleNode(role=Role(RoleKind.WORKER, rank), state=state, incarnation=life)
        for rank, (state, life) in enumerate(
            [(NodeState.JOINED, 0), (NodeState.DRAINING, 2), (NodeState.JOINED, 1), (NodeState.EXPECTED, 0)]
        )
    ]
    lost = nodes.lost_members(by_name(*workers), {0: 0, 1: 2, 2: 0, 3: 0})
    assert [node.role.rank for node in lost] == [2, 3]
