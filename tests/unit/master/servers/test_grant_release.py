"""The master watches what servers do with what they were granted."""

from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.job.core.job_core import RoleSize
from springtide.job.core.nodes import RoleNode
from springtide.master.servers.grant_release import GrantRelease
from springtide.planning.guards.hot_servers import CALM_S

GIB = 2**30
USUAL = RoleSize(cpu=1.0, memory=GIB)
ROLE = Role(RoleKind.SERVER, 0)


def server(cpu: float = 4.0, memory: int = 2 * GIB) -> RoleNode:
    node = RoleNode(role=ROLE, since=0.0, heard_at=0.0)
    node.cpu, node.memory = cpu, memory
    return node


def watch(
    node: RoleNode, *, cpu: float, memory: int, seconds: float, easing: GrantRelease | None = None, since: float = 0.0
):
    """What is decided first while it uses so much."""
    easing = easing or GrantRelease()
    for second in range(int(seconds) + 1):
        at = since + second
        usage = {ROLE: RoleUsage(role=ROLE, cpu_s=cpu * at, memory=memory)}
        if (event := easing.look([node], usage, USUAL, at)) is not None:
            return event
    return None


def test_cpu_and_memory_that_were_not_needed_go_back():
    event = watch(server(), cpu=0.4, memory=GIB // 2, seconds=CALM_S)

    assert event is not None and (event.rank, event.cpu, event.memory) == (0, 1.0, GIB)
    assert "used 0.4 CPUs and 0.5 GiB at most" in event.why


def test_memory_that_is_needed_stays_while_cpu_goes_back():
    event = watch(server(), cpu=0.4, memory=2 * GIB - 1, seconds=CALM_S)

    assert event is not None and (event.cpu, event.memory) == (1.0, None)


def test_a_server_with_a_new_grant_is_watched_from_the_beginning():
    node, easing = server(), GrantRelease()
    assert watch(node, cpu=0.4, memory=0, seconds=CALM_S - 10, easing=easing) is None
    node.cpu = 6.0
    assert watch(node, cpu=0.4, memory=0, seconds=CALM_S - 10, easing=easing, since=CALM_S - 9) is None


def test_servers_that_have_what_all_have_are_left_alone():
    assert watch(server(cpu=1.0, memory=GIB), cpu=0.0, memory=0, seconds=2 * CALM_S) is None
