"""What servers with disks of their own copy to storage and serve, and what becomes of it when a server is lost."""

import asyncio

import pytest

from springtide import errors
from springtide.checkpoint.format.manifest import File, Manifest
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.model.checkpoints import CheckpointRules, buddy_of
from springtide.master.checkpoint import server_disks
from springtide.master.checkpoint.server_disks import (
    CopyFailed,
    CopyTotals,
    FileDirectory,
    MirrorDirectory,
    ServerCopies,
)
from springtide.master.core.context import ChangeSignal
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import (
    CopyOrder,
    CopyReport,
    CopyRequest,
    FileHolders,
    FileHoldersRequest,
    FileRun,
    ReadFile,
    SaveOrder,
    SaveRequest,
)

FIRST, SECOND = File("server-0/a.seg", "server-0.0", 10, "server-1/a.seg"), File("server-1/b.seg", "server-1.0", 20)
MANIFEST = Manifest(
    job="job",
    run="run1",
    number=1,
    begun_at=0.0,
    completed_at=1.0,
    slots=1,
    seed=0,
    files=(FIRST, SECOND),
    apart={"server-0": "n0", "server-1": "n1"},
)
SERVERS = [Role(RoleKind.SERVER, rank) for rank in range(3)]


class Copying:
    """Orders to copy the files of a checkpoint, which is under way."""

    def __init__(self, *, term=1):
        self.copies = ServerCopies("s3://there", ChangeSignal(), term=term)

    async def begin(self):
        self.task = asyncio.create_task(self.copies.through(MANIFEST))
        await asyncio.sleep(0)

    async def order(self, server, after=0):
        return await asyncio.wait_for(self.copies.order_for(server, CopyRequest(after)), 60)

    async def result(self):
        return await asyncio.wait_for(self.task, 60)


def copying(test, **options):
    async def run():
        made = Copying(**options)
        await made.begin()
        await test(made)

    asyncio.run(run())


def test_each_server_copies_its_own_files_and_the_counts_are_summed():
    async def test(made):
        first, second = [await made.order(server) for server in ("server-0", "server-1")]
        assert first == CopyOrder((1 << 32) + 1, "s3://there", (("server-0/a.seg", 10),))
        assert second == CopyOrder((1 << 32) + 2, "s3://there", (("server-1/b.seg", 20),))
        assert await made.order("server-0") == first, "a reply that was lost is repeated"
        made.copies.on_report("server-0", CopyReport(second.id, files=9))
        made.copies.on_report("server-7", CopyReport(first.id, files=9))
        made.copies.on_report("server-0", CopyReport(first.id, files=1, bytes=10))
        made.copies.on_report("server-0", CopyReport(first.id, files=1, bytes=10))
        made.copies.on_report("server-1", CopyReport(second.id, files=1, bytes=20))
        assert await made.result() == CopyTotals(2, 30)

    copying(test)


def test_orders_of_two_masters_have_different_numbers():
    async def test(made):
        assert (await made.order("server-0")).id == (2 << 32) + 1

    copying(test, term=2)


def test_server_waits_for_an_order_that_it_does_not_know(monkeypatch):
    async def test(made):
        first = await made.order("server-0")
        waiting = asyncio.create_task(made.order("server-0", after=first.id))
        made.copies.on_report("server-1", CopyReport((await made.order("server-1")).id, files=1, bytes=20))
        made.copies.on_report("server-0", CopyReport(first.id, lacks=("server-0/a.seg",)))
        await asyncio.sleep(0)
        assert not waiting.done(), "its buddy copies the file"
        assert (await made.order("server-1")).files == (("server-1/a.seg", 10), ("server-1/b.seg", 20))
        monkeypatch.setattr(server_disks, "HOLD_S", 0.0)
        assert isinstance(await made.order("server-0", after=first.id), messages.WaitReply)
        waiting.cancel()
        made.copies.on_report("server-1", CopyReport((await made.order("server-1")).id, files=1, bytes=10))
        assert await made.result() == CopyTotals(2, 30)

    copying(test)


def test_files_of_a_lost_server_are_copied_from_its_buddy():
    async def test(made):
        second = await made.order("server-1")
        made.copies.poll({"server-0", "server-1"})
        made.copies.poll({"server-1"})
        made.copies.on_report("server-1", CopyReport(second.id, files=1, bytes=20))
        await asyncio.sleep(0)
        again = await made.order("server-1", after=second.id)
        assert again.files == (("server-1/a.seg", 10), ("server-1/b.seg", 20))
        made.copies.on_report("server-1", CopyReport(again.id, files=1, bytes=10))
        assert await made.result() == CopyTotals(2, 30)

    copying(test)


def test_last_server_that_is_lost_ends_the_wait():
    async def test(made):
        made.copies.on_report("server-0", CopyReport((await made.order("server-0")).id, files=1))
        for _ in range(9):
            await asyncio.sleep(0)  # the task waits for the other server
        made.copies.poll({"server-0"})
        with pytest.raises(CopyFailed, match=r"server-1/b\.seg: no server has these files any more"):
            await made.result()

    copying(test)


def test_copy_that_fails_ends_all_orders_of_its_checkpoint_only(monkeypatch):
    async def test(made):
        first, second = [await made.order(server) for server in ("server-0", "server-1")]
        made.copies.on_report("server-0", CopyReport(first.id, files=1, bytes=10, lacks=("server-0/a.seg",)))
        made.copies.on_report("server-1", CopyReport(second.id, files=1, bytes=20, error="AccessDenied"))
        with pytest.raises(CopyFailed, match="server-1: AccessDenied"):
            await made.result()
        await made.begin()
        assert (await made.order("server-0")).files == (("server-0/a.seg", 10),)
        for server in ("server-0", "server-1"):
            made.copies.on_report(server, CopyReport((await made.order(server)).id, files=1, bytes=1))
        assert await made.result() == CopyTotals(2, 2)

    copying(test)


def test_servers_that_have_not_failed_get_no_order_after_another_failed(monkeypatch):
    monkeypatch.setattr(server_disks, "HOLD_S", 0.0)

    async def test(made):
        made.copies.on_report("server-0", CopyReport((await made.order("server-0")).id, error="disk"))
        with pytest.raises(CopyFailed, match="server-0: disk"):
            await made.result()
        assert isinstance(await made.order("server-1"), messages.WaitReply)

    copying(test)


# ---- which server has what ----


def test_holders_are_servers_that_spoke_and_have_their_own_disks():
    buddies = MirrorDirectory(CheckpointRules(every_s=1.0))
    buddies.on_listening(SERVERS[0], 0, SaveRequest(takes_copies_at="old:1", node="n0"))
    buddies.on_listening(SERVERS[0], 1, SaveRequest(takes_copies_at="host:1", node="n0"))
    buddies.on_listening(SERVERS[1], 0, SaveRequest(takes_copies_at="host:2"))
    buddies.on_listening(SERVERS[2], 0, SaveRequest(takes_copies_at="host:3", node="n2"))
    lives = {0: "server-0.1", 1: "server-1.0", 2: "server-2.1"}
    assert buddies.holders(lives, [3, 2]) == FileHolders((3, 2), {"server-0": "host:1"}, ("server-2",))
    assert buddies.nodes(lives) == {"server-0": "n0"}
    assert not buddies.spoken(lives) and not buddies.known(lives)
    buddies.on_listening(SERVERS[2], 1, SaveRequest())
    assert buddies.spoken(lives) and buddies.known(lives)
    assert buddies.holders(lives, ()) == FileHolders((), {"server-0": "host:1"}, ())


def test_server_with_its_own_disk_is_told_which_of_its_files_stay():
    buddies, order = MirrorDirectory(CheckpointRules(every_s=1.0, url="s3://there")), SaveOrder(1, 5)
    lives = {0: "server-0.0", 1: "server-1.0"}
    buddies.on_listening(SERVERS[0], 0, SaveRequest())
    buddies.on_listening(SERVERS[1], 0, SaveRequest(node="n1"))
    assert buddies.named(order, SERVERS[0], lives, [MANIFEST]) is order
    named = buddies.named(order, SERVERS[1], lives, [MANIFEST])
    assert named.needed == ("a.seg", "b.seg") and named.buddy is None


def test_buddy_is_a_server_that_takes_copies_and_preferably_on_another_machine():
    buddies, order = MirrorDirectory(CheckpointRules(every_s=1.0)), SaveOrder(1, 5)
    lives = {0: "server-0.0", 1: "server-1.0", 2: "server-2.0"}
    for rank, (address, node) in enumerate([("host:0", "n0"), ("", "n1"), ("host:2", "n2")]):
        buddies.on_listening(SERVERS[rank], 0, SaveRequest(takes_copies_at=address, node=node))
    assert [buddies.named(order, role, lives).buddy.server for role in SERVERS] == ["server-2", "server-2", "server-0"]
    assert buddy_of(0, {0: "a", 1: "a", 2: "b", 3: "b"}) == 2 and buddy_of(3, {0: "a", 1: "b", 3: "b"}) == 0
    assert buddy_of(1, {0: "a", 1: "a"}) == 0


@pytest.mark.parametrize("length", [0, 3])
def test_master_serves_manifests_and_segments(tmp_path, length):
    (tmp_path / MANIFEST.name).write_bytes(b"manifest")
    (tmp_path / "server-0.0-000001.run1.seg").write_bytes(b"segment of a server")

    async def run():
        lives = {0: "server-0.0"}
        buddies, copies = MirrorDirectory(CheckpointRules()), Copying().copies
        files = FileDirectory(FolderStore(tmp_path), buddies, copies, lives=lambda: lives)

        async def read(name, offset=0):
            return await files.answer(SERVERS[0], ReadFile(name, offset, length))

        assert await read(MANIFEST.name, 2) == FileRun(8, b"manifest"[2 : 2 + length])
        assert await read("server-0.0-000001.run1.seg", 2) == FileRun(19, b"segment"[2 : 2 + length])
        assert await read("manifest-000009.ckpt") == FileRun(-1, b"")
        assert await files.answer(SERVERS[0], FileHoldersRequest()) == FileHolders((1,), {}, ("server-0",))
        assert isinstance(await files.answer(SERVERS[0], CopyReport(3)), messages.Ok)
        with pytest.raises(errors.BadInput, match="a server may not send SaveRequest"):
            await files.answer(SERVERS[0], SaveRequest())

    asyncio.run(run())


def test_server_that_asks_early_gets_its_order_when_the_copy_begins(monkeypatch):
    monkeypatch.setattr(server_disks, "HOLD_S", 3600.0)

    async def run():
        made = Copying()
        waiting = asyncio.create_task(made.order("server-0"))
        await asyncio.sleep(0)
        await made.begin()
        assert (await waiting).files == (("server-0/a.seg", 10),)
        made.task.cancel()

    asyncio.run(run())
