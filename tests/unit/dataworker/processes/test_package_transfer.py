"""Transfer of a package from a trainer through the master to a data worker without a shared disk."""

import asyncio
import os

import pytest

from springtide import errors
from springtide.checkpoint.transfer import file_transfer
from springtide.dataworker.processes import job_package, package_transfer
from springtide.master.data import shared_values
from springtide.master.data.shared_values import PackageStore
from springtide.rpc.messages.data_workers import PackageAsk, PackageWritten
from springtide.rpc.messages.types import FilePart

SECRET = b"a job's own secret"


def write_package(folder, *, arrays=b"", code=b"code"):
    """Write a package's files as plain bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / package_transfer.ARRAYS).write_bytes(arrays)
    (folder / package_transfer.CODE).write_bytes(code)
    (folder / package_transfer.CONTENTS).write_bytes(b"s" * package_transfer.SEAL_BYTES + b"listed" + code[:4])
    return package_transfer.sealed_in(folder)


class FakeMaster:
    """A master's package store that records requests."""

    def __init__(self, folder):
        self.keeping, self.asked = PackageStore(folder), []

    def __call__(self, request):
        self.asked.append(type(request).__name__)
        return asyncio.run(self.keeping.answer(request))


def test_package_reaches_a_host_without_a_shared_disk_through_the_master(tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "PART_BYTES", 1000)
    monkeypatch.setattr(shared_values, "PART_BYTES", 700)
    arrays = os.urandom(3500)
    sealed = write_package(tmp_path / "trainer", arrays=arrays)
    wire = FakeMaster(tmp_path / "master")
    package_transfer.send(wire, tmp_path / "trainer", sealed)
    with package_transfer.at_hand(wire, str(tmp_path / "nowhere"), sealed) as folder:
        assert (folder / package_transfer.ARRAYS).read_bytes() == arrays
        assert package_transfer.sealed_in(folder) == sealed
    assert not folder.exists(), "what was mapped from it stays, the files do not"
    assert wire.asked.count("FilePart") == 4 + 1 + 1 and wire.asked.count("PackageAsk") == 5 + 1 + 1


def test_package_on_a_shared_disk_is_not_sent(tmp_path):
    sealed = write_package(tmp_path / "run" / "package")
    wire = FakeMaster(tmp_path / "run" / "package")
    package_transfer.send(wire, tmp_path / "run" / "package", sealed)
    with package_transfer.at_hand(wire, str(tmp_path / "run" / "package"), sealed) as folder:
        assert folder == tmp_path / "run" / "package"
    assert wire.asked == ["PackageWritten"]


def test_another_package_at_the_same_path_is_not_used(tmp_path):
    old = write_package(tmp_path / "trainer", code=b"old!")
    wire = FakeMaster(tmp_path / "master")
    package_transfer.send(wire, tmp_path / "trainer", old)
    new = write_package(tmp_path / "trainer", code=b"new!")
    with (
        pytest.raises(errors.MissingFile, match="does not have that data package"),
        package_transfer.at_hand(wire, "/none", new),
    ):
        pass
    package_transfer.send(wire, tmp_path / "trainer", new)
    with package_transfer.at_hand(wire, str(tmp_path / "nowhere"), new) as folder:
        assert (folder / package_transfer.CODE).read_bytes() == b"new!"


def test_package_altered_in_transfer_is_refused(tmp_path):
    sealed = write_package(tmp_path / "trainer")
    wire = FakeMaster(tmp_path / "master")

    def garbling(request):
        if isinstance(request, FilePart) and request.name == package_transfer.CODE:
            request = FilePart(request.name, 0, b"evil", True, request.checksum)
        return wire(request)

    with pytest.raises(errors.BadInput, match="its checksum differs"):
        package_transfer.send(garbling, tmp_path / "trainer", sealed)


def test_package_over_the_transfer_limit_is_refused_unless_the_disk_is_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(package_transfer, "MOST_BYTES", 1000)
    sealed = write_package(tmp_path / "trainer", arrays=bytes(2000))
    package_transfer.send(FakeMaster(tmp_path / "trainer"), tmp_path / "trainer", sealed)
    with pytest.raises(errors.BadInput, match="keep samples in files"):
        package_transfer.send(FakeMaster(tmp_path / "master"), tmp_path / "trainer", sealed)


def test_replacement_master_gets_the_package_from_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "PART_BYTES", 1000)
    arrays = os.urandom(3500)
    sealed = write_package(tmp_path / "trainer", arrays=arrays)
    wire = FakeMaster(tmp_path / "master")

    def losing(request):
        if len(wire.asked) == 3:
            wire.keeping = PackageStore(tmp_path / "master")  # of the next master, which knows of nothing
        return wire(request)

    package_transfer.send(losing, tmp_path / "trainer", sealed)
    assert (tmp_path / "master" / package_transfer.ARRAYS).read_bytes() == arrays
    assert package_transfer.sealed_in(tmp_path / "master") == sealed


def test_file_names_foreign_to_a_package_are_refused(tmp_path):
    wire = FakeMaster(tmp_path)
    for request in (FilePart("../secret", 0, b"", True), PackageAsk("", "../secret")):
        with pytest.raises(errors.BadInput, match=r"not a file of a data package|is not the name of a file"):
            wire(request)


def test_package_over_the_transfer_limit_is_refused_by_the_master_with_advice(tmp_path):
    with pytest.raises(errors.BadInput, match=r"takes 9\.0 GB in memory.*numpy\.memmap"):
        FakeMaster(tmp_path)(PackageWritten("seal", ((package_transfer.ARRAYS, 9 << 30),)))


def test_unwritable_package_folder_is_replaced_by_a_temporary_one(tmp_path):
    (tmp_path / "file").write_text("")
    with package_transfer.writable(str(tmp_path / "file" / "package")) as folder:
        assert folder.is_dir() and tmp_path not in folder.parents
    assert not folder.exists()
    with package_transfer.writable(str(tmp_path / "package")) as folder:
        assert folder == tmp_path / "package"


def test_seal_is_checked_again_after_a_transfer(tmp_path):
    sealed = write_package(tmp_path / "trainer")
    wire = FakeMaster(tmp_path / "master")
    package_transfer.send(wire, tmp_path / "trainer", sealed)
    with (
        package_transfer.at_hand(wire, "/none", sealed) as folder,
        pytest.raises(errors.BadInput, match="seal does not match"),
    ):
        job_package.load(folder, secret=SECRET)
