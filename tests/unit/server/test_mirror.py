"""Two servers mirror each other's files over real sockets: either folder may be lost."""

import contextlib
import shutil

import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import upload
from springtide.domain.model.checkpoints import Buddy
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import SaveOrder
from springtide.server import checkpoints, recovery
from springtide.server import mirror as mirrors
from tests.unit.checkpoint import stores

SECRET = b"of this job"


class Role:
    """A server that owns the slots of one parity."""

    def __init__(self, rank):
        self.store, self.hurried = stores.store(), False
        self.owns = lambda slot: slot % 2 == rank
        stores.train(self.store, range(rank, 500, 2))


class Pair:
    """Two servers of one job with separate folders that save like their processes."""

    def __init__(self, folder):
        self.folder, self.manifest = folder, None
        self.roles = [Role(0), Role(1)]
        self.taking = [mirrors.MirrorServer(folder / f"server-{rank}", SECRET, "127.0.0.1") for rank in (0, 1)]
        self.savers = [self.saver(rank) for rank in (0, 1)]

    def saver(self, rank, secret=SECRET):
        life = f"server-{rank}.0"
        mirror = mirrors.Mirror(self.folder, f"server-{rank}", life, secret, run=stores.RUN)
        return checkpoints.SlotSaver(
            self.roles[rank], self.folder, life, run=stores.RUN, mirror=mirror, rest=lambda _: None
        )

    def save(self, number, *, buddies=None):
        """Save a checkpoint; return the servers' reports."""
        base = self.manifest.number if self.manifest else 0
        named = [Buddy(f"server-{1 - rank}", self.taking[1 - rank].address) for rank in (0, 1)]
        orders = [SaveOrder(1, number, base, buddy=buddy) for buddy in (named if buddies is None else buddies)]
        said = [saver.save(order) for saver, order in zip(self.savers, orders, strict=True)]
        self.manifest = stores.publish(self.folder, number, [one.written for one in said], previous=self.manifest)
        return said

    def restored(self, number):
        """A store with all restored slots, and the files read from mirrors."""
        store = stores._native.Store(slots=stores.SLOTS, seed=5)
        spared = recovery.restore(store, str(self.folder), number, range(stores.SLOTS))
        return stores.contents(store), spared

    def contents(self):
        """All rows of both."""
        rows, applied = {}, [None] * stores.SLOTS
        for rank, role in enumerate(self.roles):
            some, seen = stores.contents(role.store)
            rows |= some
            applied[rank::2] = seen[rank::2]
        return rows, applied


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors, "CONNECT_S", 60.0)
    made = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        for taking in made.taking:
            stack.callback(taking.close)
        yield made


def clear_foreign_slots(pair):
    """Keep only the rows of slots each server owns, like a client's."""
    for rank, role in enumerate(pair.roles):
        for slot in range(stores.SLOTS):
            if slot % 2 != rank:
                role.store.clear_slot(slot)


@pytest.mark.parametrize("lost", ["server-0", "server-1"])
def test_either_folder_may_be_lost_because_increments_are_mirrored(pair, lost):
    clear_foreign_slots(pair)
    assert all(not said.unmirrored for said in pair.save(1))
    for role in pair.roles:
        stores.train(role.store, range(0, 500, 7))
    clear_foreign_slots(pair)
    pair.save(2)
    now = pair.contents()
    assert pair.manifest.mirrored and pair.restored(2) == (now, {})
    shutil.rmtree(pair.folder / lost)
    contents, spared = pair.restored(2)
    assert contents == now
    assert {name.partition("/")[0] for name in spared} == {lost} and len(spared) == 2
    assert checkpoint_io.latest(str(pair.folder)).manifest.number == 2, "nothing is missing that was not kept twice"


def test_second_part_of_a_checkpoint_is_mirrored(pair):
    clear_foreign_slots(pair)
    orders = [
        SaveOrder(1, 1, part=part, slots=tuple(range(stores.SLOTS)), buddy=Buddy("server-1", pair.taking[1].address))
        for part in (0, 1)
    ]
    said = [pair.savers[0].save(order) for order in orders]
    assert not any(one.unmirrored for one in said)
    files = ("server-0.0+1-000001.run1.seg", "server-0.0-000001.run1.seg")
    assert sorted(said[1].written.mirrored) == sorted(path.name for path in (pair.folder / "server-1").iterdir())
    assert tuple(sorted(said[1].written.mirrored)) == files


def test_damaged_image_is_read_from_its_mirror(pair):
    clear_foreign_slots(pair)
    pair.save(1)
    path = pair.folder / "server-0" / "server-0.0-000001.run1.seg"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    contents, spared = pair.restored(1)
    assert (
        contents == pair.contents() and "its checksum does not match" in spared["server-0/server-0.0-000001.run1.seg"]
    )


def test_buddy_with_a_lost_folder_gets_all_files_of_the_chain(pair):
    clear_foreign_slots(pair)
    pair.save(1)
    shutil.rmtree(pair.folder / "server-1")
    pair.savers[1] = pair.saver(1)
    pair.save(2)
    names = sorted(path.name for path in (pair.folder / "server-1").iterdir())
    assert names == ["server-0.0-000001.run1.seg", "server-0.0-000002.run1.seg", "server-1.0-000002.run1.seg"]
    shutil.rmtree(pair.folder / "server-0")
    assert pair.restored(2)[0] == pair.contents()


def test_missing_buddy_leaves_the_checkpoint_unmirrored_with_a_reason(pair, monkeypatch):
    clear_foreign_slots(pair)
    with monkeypatch.context() as hasty:
        hasty.setattr(mirrors, "CONNECT_S", 0.5)
        first, second = pair.save(1, buddies=[None, Buddy("server-0", "127.0.0.1:1")])
    assert first.unmirrored == "no other server can store a copy"
    assert second.unmirrored == "server-0 cannot be reached at 127.0.0.1:1"
    assert not pair.manifest.mirrored and pair.restored(1) == (pair.contents(), {})
    assert not any(said.unmirrored for said in pair.save(2)), "the next one has it"
    assert pair.manifest.mirrored and {file.mirror.partition("/")[0] for file in pair.manifest.files} == {
        "server-0",
        "server-1",
    }


def test_stranger_leaves_no_file_at_a_server(pair):
    pair.savers[0] = pair.saver(0, secret=b"of another job")
    first, _ = pair.save(1)
    assert "server-1" in first.unmirrored
    assert not (pair.folder / "server-1" / "server-0.0-000001.run1.seg").exists()


def test_files_no_checkpoint_needs_are_removed_from_both_folders(pair):
    clear_foreign_slots(pair)
    for number in (1, 2, 3):
        for role in pair.roles:
            stores.train(role.store, range(500))
        clear_foreign_slots(pair)
        pair.save(number)
    keep = [pair.manifest]
    needed = {name for file in pair.manifest.files for name in (file.name, file.mirror)}
    (pair.folder / "server-0" / "server-1.0-000002.run1.part").write_bytes(b"half a copy")
    checkpoint_io.drop_unneeded(FolderStore(pair.folder), keep)
    assert set(FolderStore(pair.folder).names()) == needed | {pair.manifest.name}


def test_upload_has_each_file_once_though_a_folder_was_lost(pair, tmp_path):
    clear_foreign_slots(pair)
    pair.save(1)
    shutil.rmtree(pair.folder / "server-1")
    there = f"file://{tmp_path}/copy"
    assert upload.upload(pair.folder, there, 1, stores.CLAIM, keep=2).files == 2
    found = checkpoint_io.latest(there)
    assert found.manifest.number == 1 and not found.troubles
    assert [file.name for file in found.manifest.files] == ["server-0.0-000001.run1.seg", "server-1.0-000001.run1.seg"]


def test_server_refuses_requests_for_the_master(pair):
    link = mirrors.channel.MasterChannel(
        mirrors.channel.ReconnectingConnection(pair.taking[0].address, SECRET), connect_timeout_s=60.0
    )
    try:
        with pytest.raises(errors.BadInput, match="to the master"):
            link.ask(messages.StatusRequest())
    finally:
        link.close()
