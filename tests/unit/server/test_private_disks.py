"""Servers with private disks: a restored one reads missing files from the others over real sockets."""

import contextlib
import shutil

import pytest

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer import file_transfer, upload
from springtide.checkpoint.transfer.claims import CheckpointDisk
from springtide.domain.model.checkpoints import Buddy
from springtide.rpc.messages.checkpoints import FileHolders, FileHoldersRequest, FileRun, SaveOrder
from springtide.rpc.messages.types import RestoreOrder
from springtide.server import checkpoints, recovery
from springtide.server import mirror as mirroring
from springtide.server.recovery import RestoredFrom
from tests.unit.checkpoint import stores

SECRET = b"of this job"
OWN = tuple(range(1, stores.SLOTS, 2))  # slots of server-1


class Role:
    """A server that owns the slots of one parity."""

    def __init__(self, rank):
        self.store, self.hurried = stores.store(), False
        self.owns = lambda slot: slot % 2 == rank
        stores.train(self.store, range(500), batch=(0, 1, 0, 4))


class Hosts:
    """Two servers on two machines, and a master that has the manifests."""

    def __init__(self, folder, *, mirror):
        self.master = FolderStore(folder / "master")
        self.disks = [CheckpointDisk(folder / f"host-{rank}", f"node-{rank}") for rank in (0, 1)]
        self.roles, self.manifest, self.awaited = [Role(0), Role(1)], None, ()
        self.taking = [
            mirroring.MirrorServer(disk.folder / f"server-{rank}", SECRET, "127.0.0.1")
            for rank, disk in enumerate(self.disks)
        ]
        self.addresses = {f"server-{rank}": taking.address for rank, taking in enumerate(self.taking)}
        self.savers = [self.saver(rank, mirror=mirror) for rank in (0, 1)]

    def saver(self, rank, *, mirror):
        disk, life = self.disks[rank], f"server-{rank}.0"
        kept = mirroring.Mirror(disk.folder, f"server-{rank}", life, SECRET, run=stores.RUN) if mirror else None
        return checkpoints.SlotSaver(
            self.roles[rank], disk.folder, life, run=stores.RUN, node=disk.node, mirror=kept, rest=lambda _: None
        )

    def save(self, number, needed=None):
        base = self.manifest.number if self.manifest else 0
        written = []
        for rank in (0, 1):
            other = f"server-{1 - rank}"
            buddy = Buddy(other, self.addresses[other], f"node-{1 - rank}")
            kept = tuple(f"server-{rank}.0-{n:06d}.run1.seg" for rank in (0, 1) for n in range(number))
            order = SaveOrder(1, number, base, buddy=buddy, needed=kept if needed is None else needed)
            written.append(self.savers[rank].save(order).written)
        self.manifest = stores.publish(self.master.path, number, written, previous=self.manifest)

    def ask(self, request):
        """The master."""
        if isinstance(request, FileHoldersRequest):
            return FileHolders(tuple(checkpoint_io.numbers(self.master)), self.addresses, self.awaited)
        size = self.master.size(request.name)
        if size is None:
            return FileRun(-1)
        return FileRun(size, self.master.read(request.name, request.offset, min(request.length, 100)))

    def bring_back(self, number, *, host, fallback=""):
        """Restore server-1 on some host: the source of its slots, and their contents."""
        place = file_transfer.ScatteredStore("the job's folder", host, self.ask, SECRET)
        with contextlib.closing(place):
            store = stores._native.Store(slots=stores.SLOTS, seed=5)
            source = recovery.bring_back(
                store, RestoreOrder("the job's folder", number, OWN, stores.LINEAGE, fallback), place
            )
        return source, part(store)


def part(store):
    return [
        sorted((key, tuple(row)) for key, row in zip(*map(list, store.scan(stores.TABLE.id, slot)), strict=True))
        for slot in OWN
    ], [store.applied(slot) for slot in OWN]


@pytest.fixture
def hosts(request, tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "CONNECT_S", 60.0)
    made = Hosts(tmp_path, mirror=getattr(request, "param", True))
    with contextlib.ExitStack() as stack:
        for taking in made.taking:
            stack.callback(taking.close)
        yield made


def test_restored_server_reads_its_own_disk_and_moved_slots_from_others(hosts):
    hosts.save(1)
    manifest = hosts.manifest
    assert manifest.apart == {"server-0": "node-0", "server-1": "node-1"} and manifest.outlasts_a_host
    source, found = hosts.bring_back(1, host=hosts.disks[1].folder)
    assert source == RestoredFrom("the job's folder", 1) and found == part(hosts.roles[1].store)


def test_restored_server_on_another_host_reads_its_buddys_chain(hosts, tmp_path):
    hosts.save(1)
    stores.train(hosts.roles[1].store, range(300, 900), batch=(0, 2, 0, 4))
    hosts.save(2)
    shutil.rmtree(hosts.disks[1].folder)
    source, found = hosts.bring_back(2, host=tmp_path / "another")
    assert source.number == 2 and found == part(hosts.roles[1].store)
    assert source.spared and all("was read from its mirror" in each for each in source.spared)


@pytest.mark.parametrize("hosts", [False], indirect=True)
def test_unmirrored_server_restores_from_storage_or_says_what_is_missing(hosts, tmp_path):
    hosts.save(1)
    assert not hosts.manifest.outlasts_a_host
    whole = stores.store()
    stores.train(whole, range(200))
    stores.publish(tmp_path / "url", 7, stores.save(whole, tmp_path / "url", 7, life="server-9.0"))
    hosts.addresses = {}
    source, found = hosts.bring_back(1, host=tmp_path / "another", fallback=f"file://{tmp_path}/url")
    assert (source.where, source.number) == (f"file://{tmp_path}/url", 7) and found == part(whole)
    assert "checkpoint 1 in the job's folder cannot be used" in source.unusable[0]
    with pytest.raises(errors.JobFailed, match=r"server-1.0-000001.run1.seg is missing.* a mirror, or"):
        hosts.bring_back(1, host=tmp_path / "another")


def test_server_that_has_not_announced_its_address_is_waited_for(hosts, tmp_path, monkeypatch):
    hosts.save(1)
    shutil.rmtree(hosts.disks[1].folder)
    told, hosts.addresses, hosts.awaited = hosts.addresses, {"server-1": hosts.addresses["server-1"]}, ("server-0",)

    def say(_):
        hosts.addresses, hosts.awaited = told, ()

    monkeypatch.setattr(file_transfer.time, "sleep", say)
    source, found = hosts.bring_back(1, host=tmp_path / "another")
    assert source.number == 1 and found == part(hosts.roles[1].store)


def test_final_checkpoint_is_collected_in_the_masters_folder(hosts):
    hosts.save(1)
    shutil.rmtree(hosts.disks[1].folder / "server-1")
    master = hosts.master.path
    with contextlib.closing(file_transfer.ScatteredStore(str(master), master, hosts.ask, SECRET)) as place:
        done = upload.gather(master, 1, stores.CLAIM, place)
        assert (done.files, done.error) == (2, "") and upload.gather(master, 1, stores.CLAIM, place).files == 0
    found = checkpoint_io.latest(str(master))
    assert found.manifest.number == 1 and not found.manifest.apart and not found.troubles
    store = stores._native.Store(slots=stores.SLOTS, seed=5)
    recovery.bring_back(store, RestoreOrder(str(master), 1, OWN, stores.LINEAGE))
    assert part(store) == part(hosts.roles[1].store)


def test_server_sweeps_unneeded_files_from_its_disk(hosts):
    for number in (1, 2, 3):
        for role in hosts.roles:
            stores.train(role.store, range(900), value=float(number))
        hosts.save(number, needed=("server-1.0-000001.run1.seg",) if number == 3 else None)
    left = sorted(path.name for path in (hosts.disks[1].folder / "server-1").iterdir())
    assert left == ["server-0.0-000003.run1.seg", "server-1.0-000001.run1.seg", "server-1.0-000003.run1.seg"]
