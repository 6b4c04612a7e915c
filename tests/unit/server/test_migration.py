"""Slot migration between servers through their Python shells."""

import threading

import numpy as np
import pytest

from springtide import errors
from springtide.domain.core.roles import Placement
from springtide.domain.model.tables import OptimSpec, TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.rpc.messages.types import SlotGoal, SlotParcel, SlotsMoved
from springtide.server import migration, slot_loads
from springtide.server.server import HandedOver, ServerRole
from springtide.server.slot_loads import SlotCount

SECRET = b"secret"
SLOTS = 64
OWNERS = Placement(epoch=1, servers=1, server_of_slot=(0,) * SLOTS)


@pytest.fixture
def two():
    roles = [ServerRole(index=index, slots=SLOTS, seed=1, workers=1, secret=SECRET) for index in (0, 1)]
    for role in roles:
        role.start()
        role.set_owners(1, OWNERS.server_of_slot)
    yield roles
    while roles:
        roles.pop().stop(0)


@pytest.mark.parametrize(("source", "target"), [(True, True), (True, False), (False, True)])
def test_images_stay_within_the_host_unless_one_side_shares_no_memory(source, target):
    roles = [
        ServerRole(index=index, slots=SLOTS, seed=1, workers=1, secret=SECRET, shared_memory=shared)
        for index, shared in enumerate((source, target))
    ]
    try:
        for role in roles:
            role.start()
            role.set_owners(1, OWNERS.server_of_slot)
        handed = roles[0].hand_over(range(SLOTS), 1, roles[1].address)
        assert len(handed.moved) == SLOTS and handed.local == (source and target)
        assert ("on this host" in str(handed)) == handed.local
    finally:
        while roles:
            roles.pop().stop(0)


def connect(role, **options):
    host, _, port = role.address.rpartition(":")
    return TableClient.connect([(host, int(port))], secret=SECRET, placement=OWNERS.server_of_slot, epoch=1, **options)


@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_rows_are_bit_identical_after_an_idle_move(two, optimizer, shared_memory):
    client = connect(two[0], shared_memory=shared_memory)
    client.declare([TableSpec(id=0, name="items", dim=5, optim=OptimSpec(kind=optimizer))])
    keys = np.arange(2000, dtype=np.int64)
    rng = np.random.default_rng(3)

    def train():
        part = client.dense(0, keys, 5)
        client.pull([part])
        part.wait()
        part.grads()[:] = rng.normal(size=len(keys) * 5)
        client.push([part], step=1, hyper=[(0, 0.1, 0.0, 1)]).wait()

    train()
    before = client.read("items", keys)
    handed = two[0].hand_over(range(SLOTS), 1, two[1].address)
    assert sorted(handed.moved) == list(range(SLOTS)) and not handed.why
    assert np.array_equal(client.read("items", keys), before)
    assert two[0].owned() == () and len(two[1].owned()) == SLOTS
    rng = np.random.default_rng(4)
    train()  # optimizer state has gone along: the same step elsewhere gives the same rows
    after = client.read("items", keys)
    assert two[1].hand_over(range(SLOTS), 0, two[0].address).moved
    assert np.array_equal(client.read("items", keys), after) and not np.array_equal(before, after)
    assert np.array_equal(client.scan("items")[1], after)


def test_goal_is_worked_off_once_and_reported(two):
    told: list[SlotsMoved] = []
    done = threading.Event()

    def tell(moved):
        told.append(moved)
        if sum(len(each.slots) for each in told) == 10:
            done.set()

    connect(two[0]).declare([TableSpec(id=0, name="items", dim=5)])
    handing = migration.SlotHandover(two[0], tell)
    parcel = SlotParcel(1, two[1].address, tuple(range(10)))
    goal = SlotGoal(OWNERS, (two[0].address, two[1].address), (parcel,))
    for _ in range(3):
        handing.follow(goal)
    assert done.wait(20)
    handing.stop()
    assert [each.server for each in told] == [1] and sorted(two[1].owned()) == list(range(10))
    assert not two[0].owns(3) and two[1].owns(3)


def test_urgent_handover_reports_slots_only_after_they_left(two, monkeypatch):
    monkeypatch.setattr(migration, "step_back", lambda: None)  # it would be for good
    told, done = [], threading.Event()

    def tell(moved):
        told.append((handing.hurried, len(moved.slots)))
        done.set()

    connect(two[0]).declare([TableSpec(id=0, name="items", dim=5)])
    handing = migration.SlotHandover(two[0], tell)
    parcel = SlotParcel(1, two[1].address, tuple(range(SLOTS)))
    assert not handing.hurried
    handing.follow(SlotGoal(OWNERS, (two[0].address, two[1].address), (parcel,), hurry=True))
    assert done.wait(20)
    handing.stop()
    assert told == [(True, SLOTS)] and not handing.hurried


def test_draining_server_refuses_slots_and_says_so(two):
    connect(two[0]).declare([TableSpec(id=0, name="items", dim=5)])
    handing = migration.SlotHandover(two[1], lambda moved: None)
    assert not handing.holding.closed
    handing.follow(SlotGoal(OWNERS, (two[0].address, two[1].address), leave=True))
    assert handing.holding.closed
    handing.stop()
    assert "draining" in two[0].hand_over([1], 1, two[1].address).why and two[0].owns(1)


class ServerInDoubt:
    """A server that closed two slots for server-1 and got no reply."""

    index, leaves = 0, False

    def __init__(self):
        self.in_doubt, self.done = {3: 1, 4: 1}, threading.Semaphore(0)
        self.did = []

    def __getattr__(self, name):
        def note(*given, **more):
            self.did.append((name, given[0]))
            self.done.release()
            return HandedOver(moved=(), server=1, bytes=0, seconds=0.0, longest_freeze_s=0.0)

        return note


@pytest.mark.parametrize(
    ("owner", "address", "did"),
    [(0, "there:1", "hand_over"), (1, "there:1", "release"), (2, "there:1", "release"), (0, "", "take_back")],
    ids=["it is asked again", "it is the other's", "the other has given it on", "the other has left"],
)
def test_slot_of_unknown_fate_is_kept_or_released(owner, address, did):
    role = ServerInDoubt()
    handing = migration.SlotHandover(role, lambda moved: None)
    placed = Placement(epoch=7, servers=3, server_of_slot=(owner,) * SLOTS)
    handing.follow(SlotGoal(placed, ("here:1", address, "third:1")))
    assert all(role.done.acquire(timeout=20) for _ in range(3))
    handing.stop()
    assert [name for name, _ in role.did[:3]] == ["learn", did, did]


def test_overtaken_reply_is_ignored():
    def goal(epoch, call=0):
        return SlotGoal(Placement(epoch=epoch, servers=1, server_of_slot=(0,) * SLOTS), ("here:1",), call=call)

    assert migration.overtaken(goal(3), goal(4)) and migration.overtaken(goal(4, 7), goal(4, 8))
    assert not migration.overtaken(goal(4), goal(4)) and not migration.overtaken(goal(5, 7), goal(4, 7))
    assert not migration.overtaken(goal(4, 0), goal(4, 8))  # of a master that has called nobody yet


def test_unreachable_target_leaves_slots_in_place(two):
    connect(two[0]).declare([TableSpec(id=0, name="items", dim=5)])
    handed = two[0].hand_over([1, 2], 5, "127.0.0.1:1", timeout_s=0.3)
    assert not handed.moved and "server 5" in handed.why and len(two[0].owned()) == SLOTS


def test_slot_loads_survive_packing():
    counts = [SlotCount(3, 100, 7), SlotCount(9, 0, 2**40)]
    assert slot_loads.unpack(slot_loads.pack(counts), 16) == counts
    assert slot_loads.unpack(slot_loads.pack([]), 16) == []
    with pytest.raises(errors.BadInput, match=r"outside 0\.\.7"):
        slot_loads.unpack(slot_loads.pack(counts), 8)
    with pytest.raises(errors.BadInput, match="7 bytes"):
        slot_loads.unpack(b"1234567", 8)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_already_connected_incarnation_is_kept_when_named(two, shared_memory):
    client = connect(two[0], shared_memory=shared_memory, reconnect_s=2.0)
    client.declare([TableSpec(id=0, name="items", dim=5, optim=OptimSpec(kind="sgd"))])
    client.readdress([two[0].address], [1])
    assert client.read("items", np.arange(3, dtype=np.int64)).shape == (3, 5)
