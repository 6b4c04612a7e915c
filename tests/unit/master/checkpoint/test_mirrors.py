"""Whose files are kept by whom: the next server in the ring, and nobody for oneself."""

from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.model.checkpoints import Buddy, CheckpointRules, buddy_of
from springtide.master.checkpoint.mirrors import MirrorDirectory
from springtide.rpc.messages import messages

ORDER = messages.SaveOrder(1, 5)


def server(rank):
    return Role(RoleKind.SERVER, rank)


def says(address, node=""):
    return messages.SaveRequest(takes_copies_at=address, node=node)


@given(st.sets(st.integers(0, 50), min_size=2))
def test_each_server_has_another_and_each_keeps_the_files_of_one(ranks):
    buddies = {rank: buddy_of(rank, dict.fromkeys(ranks, "")) for rank in ranks}
    assert set(buddies.values()) == ranks and all(rank != buddy for rank, buddy in buddies.items())


def test_one_alone_has_none():
    assert buddy_of(0, {0: ""}) is None and buddy_of(0, {}) is None


def test_an_order_names_where_the_buddys_present_life_listens():
    buddies = MirrorDirectory(CheckpointRules(every_s=1.0, mirror=True))
    lives = {0: "server-0.0", 1: "server-1.1", 4: "server-4.0"}
    for rank, life, port in ((0, 0, 10), (1, 0, 11), (4, 0, 14)):
        buddies.listens(server(rank), life, says(f"host:{port}"))
    assert not buddies.known(lives)
    assert buddies.named(ORDER, server(0), lives).buddy == Buddy("server-4", "host:14"), "an earlier life is no buddy"
    buddies.listens(server(1), 1, says("host:21"))
    assert buddies.known(lives)
    named = {rank: buddies.named(ORDER, server(rank), lives).buddy for rank in lives}
    assert named == {0: Buddy("server-1", "host:21"), 1: Buddy("server-4", "host:14"), 4: Buddy("server-0", "host:10")}
    assert buddies.named(ORDER, server(0), {0: "server-0.0"}).buddy is None


def test_without_a_mirror_nobody_is_named_or_waited_for():
    buddies = MirrorDirectory(CheckpointRules(every_s=1.0))
    assert buddies.known({0: "server-0.0", 1: "server-1.0"})
    assert buddies.named(ORDER, server(0), {0: "server-0.0", 1: "server-1.0"}) is ORDER
