"""Transfers segment files between servers. `SegmentCopies` receives and serves files, and `ScatteredStore` reads them.

A received file gets its name after its size and checksum match. `ScatteredStore` is a `FileStore` that reads a file
from this disk if present, and otherwise from the file's server.
"""

import contextlib
import os
import pathlib
import re
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator

from springtide import errors
from springtide.checkpoint.format.checkpoint_io import leave_room
from springtide.checkpoint.format.manifest import bare, folder_of, name_of, number_in
from springtide.checkpoint.format.storage import FolderStore
from springtide.rpc.messages import checkpoints
from springtide.rpc.messages.types import FilePart, Reply, Request
from springtide.rpc.transport import channel

PART_BYTES = 4 << 20
NAME = re.compile(r"server-\d+\.\d+(\+\d+)?-\d{6,}\.[0-9a-z]+\.seg")


def parts(path: pathlib.Path) -> Iterator[FilePart]:
    """Yield a file in parts, from start to end. The last part may have no bytes."""
    with open(path, "rb", buffering=0) as file:
        size, offset, checksum = os.fstat(file.fileno()).st_size, 0, 0
        while True:
            content = file.read(min(PART_BYTES, size - offset)) or b""
            checksum = zlib.crc32(content, checksum)
            last = offset + len(content) >= size or not content
            yield FilePart(path.name, offset, content, last, checksum)
            if last:
                return
            offset += len(content)


class SegmentCopies:
    """Files that one server stores for other servers. One thread adds files, and another thread may call `sweep`."""

    def __init__(self, folder: pathlib.Path, names: "re.Pattern[str]" = NAME) -> None:
        self._folder, self._names = folder, names
        self._coming: dict[str, tuple[int, int]] = {}
        """Bytes and checksum received so far, by file name."""
        self._claimed: set[str] = set()
        """Files that other servers have announced since the last sweep, for a checkpoint that is not complete yet."""
        self._lock = threading.Lock()

    def lacks(self, files: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Return the files without a copy of the right size. All listed files survive the next sweep."""
        paths = [(name, self._path(name), size) for name, size in files]
        with self._lock:
            self._claimed |= {name for name, _, _ in paths}
            return tuple(name for name, path, size in paths if self._size(path) != size)

    def sweep(self, needed: Collection[str], upto: int) -> list[str]:
        """Remove segment files that no checkpoint up to `upto` needs. Return their names.

        Do not delete files that other servers have announced for the next checkpoint, because those servers may already
        be writing to them.
        """
        gone: list[str] = []
        with self._lock, contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            stays, self._claimed = {*needed, *self._claimed}, set()
            for entry in entries:
                whole = entry.name.removesuffix(".part").removesuffix(".seg") + ".seg"
                if self._names.fullmatch(whole) and whole not in stays and (number_in(whole) or 0) <= upto:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                        gone.append(entry.name)
        return gone

    def take(self, part: FilePart) -> None:
        """Write a part of a file. The last part gives the file its name. Raise BadInput if the part does not continue
        the file."""
        name, path = part.name, self._path(part.name)
        at, checksum = self._coming.pop(name, (0, 0)) if part.offset else (0, 0)
        if part.offset != at:
            raise errors.BadInput(f"got a part of {name} at byte {part.offset}, expected byte {at}")
        unfinished = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "r+b" if part.offset else "wb") as file:
                file.seek(part.offset)
                file.write(part.content)
                leave_room(file.fileno())
            checksum = zlib.crc32(part.content, checksum)
            if not part.last:
                self._coming[name] = (at + len(part.content), checksum)
                return
            if checksum != part.checksum:
                unfinished.unlink()
                raise errors.BadInput(f"{name} arrived damaged: its checksum differs from the sender's")
            unfinished.rename(path)
        except OSError as error:
            raise errors.DiskFull(f"cannot write to {self._folder}: {error.strerror or error}") from error

    def run(self, name: str, offset: int, length: int) -> tuple[int, bytes]:
        """Return the size of a file (-1 if it does not exist), and a range of its bytes."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                return os.fstat(file.fileno()).st_size, os.pread(file.fileno(), min(length, PART_BYTES), offset)
        except FileNotFoundError:
            return -1, b""
        except OSError as error:
            raise errors.BadInput(f"{name} cannot be read: {error.strerror or error}") from error

    def _path(self, name: str) -> pathlib.Path:
        if not self._names.fullmatch(name):
            kind = "a segment file of a server" if self._names is NAME else "a file of this folder"
            raise errors.BadInput(f"{name!r} is not the name of {kind}")
        return self._folder / name

    @staticmethod
    def _size(path: pathlib.Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None


CONNECT_S = 5.0
PATIENCE_S = 60.0  # seconds to wait for a server that has not yet told the master where it serves files
AGAIN_S = 0.1

Ask = Callable[[Request], Reply]


class ScatteredStore:
    """A read-only `FileStore`. The caller must close the store. Not thread-safe."""

    def __init__(self, where: str, own: pathlib.Path, ask: Ask, secret: bytes, *, certificates: str = "") -> None:
        self._where, self._own, self._ask = where, FolderStore(own), ask
        self._secret, self._certificates = secret, certificates
        self._links: dict[str, channel.MasterChannel | None] = {}
        """Connections by server; None for a server that cannot be reached or serves no files."""
        self._silent: set[str] = set()
        """Servers that serve no files, because their folders are shared or the servers are gone."""

    @property
    def where(self) -> str:
        return self._where

    def names(self) -> list[str]:
        return [name_of(number) for number in self._holders().numbers]

    def size(self, name: str) -> int | None:
        if (here := self._own.size(name)) is not None:
            return here
        try:
            found = self._run(name, 0, 0).size
        except OSError:
            return None
        return found if found >= 0 else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if self._own.size(name) is not None:
            return self._own.read(name, offset, length)
        runs: list[bytes] = []
        while length is None or length > 0:
            run = self._run(name, offset, PART_BYTES if length is None else min(PART_BYTES, length))
            if run.size < 0:
                raise FileNotFoundError(2, os.strerror(2), name)
            if not run.content:
                break
            runs.append(run.content)
            offset, length = offset + len(run.content), None if length is None else length - len(run.content)
        return b"".join(runs)

    def write(self, name: str, content: bytes) -> None:
        raise errors.BadInput(f"{name} is on a server's own disk: only that server may write it")

    def remove(self, name: str) -> None:
        raise errors.BadInput(f"{name} is on a server's own disk: only that server may remove it")

    def close(self) -> None:
        for link in self._links.values():
            if link is not None:
                link.close()
        self._links = {}

    def _run(self, name: str, offset: int, length: int) -> checkpoints.FileRun:
        server = folder_of(name)
        request = checkpoints.ReadFile(bare(name), offset, length)
        if not server:
            answer = self._ask(request)
        else:
            link = self._link(server)
            try:
                answer = link.ask(request)
            except errors.MasterUnreachable as error:  # `MasterChannel` raises this error for any unreachable peer
                self._links[server] = None
                link.close()
                raise OSError(f"{server} was lost while it sent {bare(name)}") from error
        assert isinstance(answer, checkpoints.FileRun)
        return answer

    def _link(self, server: str) -> channel.MasterChannel:
        if server not in self._links:
            self._links[server] = None
            if address := self._address(server):
                with contextlib.suppress(errors.MasterUnreachable):
                    connection = channel.ReconnectingConnection(
                        address, self._secret, certificates=self._certificates, role="server"
                    )
                    self._links[server] = channel.MasterChannel(connection, connect_timeout_s=CONNECT_S)
            else:
                self._silent.add(server)
        link = self._links[server]
        if link is None and server in self._silent:
            raise OSError(f"the file is missing on this disk, and {server} serves no files")
        if link is None:
            raise OSError(f"the files of {server} are on its own disk, and {server} cannot be reached")
        return link

    def _address(self, server: str) -> str:
        """Return the address at which a server serves files. The call waits until the address is known, because a new
        master may not have it yet.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            holders = self._holders()
            if server not in holders.awaited or time.monotonic() > deadline:
                return holders.addresses.get(server, "")
            time.sleep(AGAIN_S)

    def _holders(self) -> checkpoints.FileHolders:
        answer = self._ask(checkpoints.FileHoldersRequest())
        assert isinstance(answer, checkpoints.FileHolders)
        return answer
