"""Journaled entries survive any end of the master."""

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from springtide import errors
from springtide.master.core import journal as journals
from springtide.master.core.journal import Journal, Superseded
from springtide.telemetry.host import disks
from tests.full_disks import no_file_longer_than


@pytest.fixture(autouse=True, params=["ext4", "nfs4"])
def kind(request, monkeypatch):
    """The kind of file system that the journal takes its folder for."""
    monkeypatch.setattr(disks, "kind_of", lambda _: request.param)
    return request.param


def in_loop(test):
    """Run an async test."""
    asyncio.run(test())


def test_journal_returns_entries_after_the_snapshot_in_order(tmp_path):
    async def test():
        journal = Journal(tmp_path / "journal.db", term=1, now=100.0)
        for number in range(5):
            journal.append(bytes([number]))
        assert not journal.idle
        await journal.committed()
        assert journal.idle
        journal.save(b"the first five")
        journal.append(b"\x07")
        journal.close()  # writes what waits
        again = Journal(tmp_path / "journal.db", term=2, now=500.0)
        assert again.read() == (b"the first five", [b"\x07"])
        assert again.began == 100.0
        again.append(b"\x08")
        again.close()
        last = Journal(tmp_path / "journal.db", term=7, now=500.0)
        assert last.read() == (b"the first five", [b"\x07", b"\x08"])
        last.close()

    in_loop(test)


def test_entries_of_one_loop_turn_share_a_transaction(tmp_path):
    async def test():
        journal = Journal(tmp_path / "journal.db", term=1, now=0.0)

        async def one(number):
            journal.append(bytes([number]))
            await journal.committed()

        await asyncio.gather(*(one(number) for number in range(20)))
        assert journal.since_snapshot == 20
        assert journal._file.execute("select count(*) from turns").fetchone() == (1,)
        assert journal.read()[1] == [bytes([number]) for number in range(20)]
        journal.close()

    in_loop(test)


@pytest.mark.parametrize("kind", ["ext4"], indirect=True)
def test_tidying_in_a_thread_keeps_entries_and_shrinks_the_wal(tmp_path):
    async def test():
        path = tmp_path / "journal.db"
        journal = Journal(path, term=1, now=0.0)
        for turn in range(50):
            journal.append(msgspec.msgpack.encode("x" * 4000))
            await journal.committed()
            if turn % 10 == 9:
                await asyncio.to_thread(journal.tidy)
        assert len(journal.read()[1]) == 50
        assert (tmp_path / "journal.db-wal").stat().st_size < 50 * 4000
        journal.close()

    in_loop(test)


def test_superseded_master_can_neither_open_nor_write_the_journal(tmp_path):
    async def test():
        old = Journal(tmp_path / "journal.db", term=1, now=0.0)
        new = Journal(tmp_path / "journal.db", term=2, now=0.0)
        with pytest.raises(Superseded, match="belongs to master number 2, which"):
            Journal(tmp_path / "journal.db", term=2, now=0.0)
        old.append(b"\x01")
        with pytest.raises(Superseded, match="master number 2 has taken over from number 1"):
            await old.committed()
        with pytest.raises(Superseded):
            old.append(b"\x02")
        assert new.read() == (None, [])
        old.close()
        new.close()

    in_loop(test)


def test_journal_of_another_format_is_refused_and_left_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "journal.db"
    monkeypatch.setattr(journals, "FORMAT", 1)
    Journal(path, term=1, now=0.0).close()
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(errors.OtherVersion, match=r"has format 1, from another version .* this one reads 6"):
            Journal(path, term=2, now=0.0)


def test_unwritable_journal_path_is_named(tmp_path):
    with pytest.raises(errors.BadInput, match=r"cannot write .*nowhere/journal.db: No such file or directory"):
        Journal(tmp_path / "nowhere" / "journal.db", term=1, now=0.0)


WRITER = """
import asyncio, msgspec, pathlib, sys
from springtide.master.core.journal import Journal
from springtide.telemetry.host import disks

disks.kind_of = lambda _: sys.argv[3]

async def write():
    journal = Journal(pathlib.Path(sys.argv[1]), term=int(sys.argv[2]), now=0.0)
    number = len(journal.read()[1])
    while True:
        journal.append(msgspec.msgpack.encode(number))
        await journal.committed()
        print(number, flush=True)  # the promise
        number += 1

asyncio.run(write())
"""


@pytest.mark.process
def test_committed_entries_survive_kill_9_at_any_moment(tmp_path, rng, kind):
    path, promised = tmp_path / "journal.db", -1
    for term in range(1, 6):
        command = [sys.executable, "-c", WRITER, str(path), str(term), kind]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})
        for _ in range(int(rng.integers(1, 200))):
            promised = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")[:-1]
        promised = int(rest[-1]) if rest else promised
        writer.wait()
        writer.stdout.close()
    last = Journal(path, term=99, now=0.0)
    found = [msgspec.msgpack.decode(entry) for entry in last.read()[1]]
    last.close()
    assert found == list(range(len(found)))
    assert promised < len(found)


def test_initial_spec_is_kept_by_later_masters(tmp_path):
    first = Journal(tmp_path / "journal.db", term=1, now=0.0)
    assert first.begun_with(b"one") == b"one"
    first.close()
    again = Journal(tmp_path / "journal.db", term=2, now=0.0)
    assert again.begun_with(b"two") == b"one"
    again.close()


def test_full_disk_delays_entries_without_loss_or_reordering(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "AGAIN_S", 0.01)

    async def test():
        path = tmp_path / "journal.db"
        journal = Journal(path, term=1, now=0.0, patience_s=600.0)
        journal.append(b"\x00")
        await journal.committed()
        assert await journal.flushed_or_full() and not journal.stuck
        with no_file_longer_than(0):
            journal.append(b"\x01")
            waits = asyncio.create_task(journal.committed())
            assert not await journal.flushed_or_full(), "whoever cannot wait is told"
            assert f"cannot write {path} since 0 s" in journal.stuck
            journal.append(b"\x02")
            assert not await journal.flushed_or_full() and not journal.idle and not waits.done()
        await waits
        assert await journal.flushed_or_full() and not journal.stuck and journal.idle
        journal.append(b"\x03")
        journal.close()
        again = Journal(path, term=2, now=0.0)
        assert again.read()[1] == [b"\x00", b"\x01", b"\x02", b"\x03"]
        again.close()

    in_loop(test)


def test_journal_fails_when_the_disk_stays_full_past_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "AGAIN_S", 0.01)

    async def test():
        journal = Journal(tmp_path / "journal.db", term=1, now=0.0, patience_s=0.05)
        with no_file_longer_than(0):
            journal.append(b"\x01")
            with pytest.raises(errors.SpringtideError, match=r"The master retried for 0[.]05 s"):
                await journal.committed()
        assert not journal.stuck
        for late in (lambda: journal.append(b"\x02"), journal.flushed_or_full):
            with pytest.raises(errors.SpringtideError, match="The master retried for"):
                if (waits := late()) is not None:
                    await waits
        journal.close()

    in_loop(test)


def test_superseded_master_does_not_wait_for_its_disk(tmp_path):
    async def test():
        old = Journal(tmp_path / "journal.db", term=1, now=0.0, patience_s=600.0)
        new = Journal(tmp_path / "journal.db", term=2, now=0.0)
        old.append(b"\x01")
        with pytest.raises(Superseded):
            await old.committed()
        old.close()
        new.close()

    in_loop(test)


def test_journal_on_a_network_file_system_uses_no_shared_memory(tmp_path, kind):
    async def test():
        journal = Journal(tmp_path / "journal.db", term=1, now=0.0)
        journal.append(b"\x01")
        await journal.committed()
        journal.tidy()
        shared = {"journal.db-shm", "journal.db-wal"} & {path.name for path in tmp_path.iterdir()}
        assert bool(shared) == (kind == "ext4")
        journal.close()

    in_loop(test)


def test_journal_moved_to_a_network_file_system_is_continued(tmp_path, monkeypatch):
    async def test():
        for term, each in enumerate(("ext4", "nfs4", "ext4"), start=1):
            monkeypatch.setattr(disks, "kind_of", lambda _, each=each: each)
            journal = Journal(tmp_path / "journal.db", term=term, now=0.0)
            assert len(journal.read()[1]) == term - 1
            journal.append(b"\x01")
            journal.close()

    in_loop(test)
