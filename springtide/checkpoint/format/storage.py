"""Reads and writes checkpoint files in a local folder, or at any URL that fsspec knows (file://, memory://, s3://).

In: a user's path or URL. Out: a `FileStore` that reads and writes files by name. A write is as atomic as the store
allows: a folder renames files, and an object store shows only complete objects. Only this module uses fsspec.
"""

import contextlib
import functools
import os
import pathlib
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

from springtide import errors

CHUNK = 8 << 20
BLOCK = 1 << 20
"""Smallest read from a store, in bytes. A request takes tens of milliseconds, and a slot often has only a few KB, so
larger reads save requests."""
BLOCKS = 32
"""Number of blocks in the cache. A restore reads slots in order, each from several files: one file for every checkpoint
that has an image of the slot.
"""
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"})
"""Stores without folders. Creating a folder in such a store may create a bucket, which needs permissions and may be
unwanted."""


class FileStore(Protocol):
    """Named files at one location."""

    @property
    def where(self) -> str:
        """Return the location as a user would write it."""

    def names(self) -> list[str]:
        """Return the file names; none if the location does not exist."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if the file does not exist."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a range of a file, up to its end by default. The result is shorter if the file ends."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, which gets its name only when it is complete."""

    def remove(self, name: str) -> None:
        """Delete a file; harmless if it does not exist."""


class FolderStore:
    """A folder of this machine."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    @property
    def where(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        """Return the files in the folder and its subfolders, such as `server-0/…` for a server's own files."""
        try:
            with os.scandir(self.path) as entries:
                found = list(entries)
        except FileNotFoundError:
            return []
        inside = [f"{entry.name}/{name}" for entry in found if entry.is_dir() for name in _files_in(entry.path)]
        return [*(entry.name for entry in found if entry.is_file()), *inside]

    def size(self, name: str) -> int | None:
        try:
            return os.stat(os.path.join(self.path, name)).st_size
        except FileNotFoundError:
            return None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with open(os.path.join(self.path, name), "rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    def write(self, name: str, content: bytes) -> None:
        with self.create(name) as file:
            file.write(content)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file. The file gets its name when it is complete. After a failure, the file is removed."""
        make_folder(self.path)
        path = os.path.join(self.path, name)
        unfinished = f"{path}.part"
        try:
            with open(unfinished, "wb") as file:
                yield file
            os.rename(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def create_new(self, name: str, content: bytes) -> bool:
        """Write a small file unless the name already exists. Return True if the file was written."""
        make_folder(self.path)
        return _create_new(self.path / name, content)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class UrlStore:
    """A URL or path through fsspec. Local files are on disk when a call returns."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise errors.MissingExtra(f"{url} ({error})", "s3") from error
        except ValueError as error:
            raise errors.BadInput(f"{url}: {error}") from error
        self._url = url.rstrip("/")
        given = self._files.protocol
        protocols = (given,) if isinstance(given, str) else given
        self._renames = "file" in protocols or "sftp" in protocols
        self._has_folders = not OBJECT_STORES.intersection(protocols)
        self.local_root = str(self._root) if "file" in protocols else ""
        """Local folder of the store; empty for a remote store."""
        self.in_this_process = "memory" in protocols
        """True if only this process can see the store."""
        self._block = functools.lru_cache(maxsize=BLOCKS)(self._fetch)

    @property
    def where(self) -> str:
        return self._url

    def make(self) -> None:
        try:
            self._make_folder()
        except OSError as error:
            raise errors.BadInput(f"cannot save to {self._url!r}: {error}. Choose a folder you may write to.") from None

    def names(self) -> list[str]:
        return self._listed("file")

    def folders(self) -> list[str]:
        return self._listed("directory")

    def size(self, name: str) -> int | None:
        try:
            with self._store_errors():
                return cast(int, self._files.size(self._path(name)))
        except FileNotFoundError:
            return None

    def version(self, name: str) -> str:
        """Return the store's version of a file, which changes with every write."""
        with self._store_errors():
            return str(self._files.checksum(self._path(name)))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a range of a file. Small reads from a store fetch whole blocks, which are cached."""
        if length is None or length >= BLOCK or self.local_root or self.in_this_process:
            return self._fetch(name, offset, length)
        first, content = offset // BLOCK * BLOCK, b""
        for start in range(first, offset + length, BLOCK):
            block = self._block(name, start, BLOCK)
            content += block
            if len(block) < BLOCK:  # a short block means that the file ends here
                break
        return content[offset - first : offset - first + length]

    def _fetch(self, name: str, offset: int, length: int | None) -> bytes:
        with self._store_errors():
            end = None if length is None else offset + length
            content: bytes = self._files.cat_file(self._path(name), start=offset, end=end)
        return content

    def open(self, name: str) -> BinaryIO:
        with self._store_errors():
            return cast(BinaryIO, self._files.open(self._path(name), "rb"))

    def write(self, name: str, content: bytes) -> None:
        self._block.cache_clear()
        if not self._renames:
            with self._store_errors(to_write=True):
                self._make_folder()
                self._files.pipe_file(self._path(name), content)  # object stores show only complete objects
            return
        with self.create(name) as file:
            file.write(content)

    def create_new(self, name: str, content: bytes) -> bool:
        """Write a small file unless the name already exists. Return True if the file was written.

        On stores without exclusive creation, two simultaneous calls may both succeed. A careful caller reads the file
        back.
        """
        self._block.cache_clear()
        with self._store_errors(to_write=True):
            self._make_folder()
            if self.local_root:
                return _create_new(pathlib.Path(self.local_root) / name, content)
            if self.size(name) is not None:
                return False
            try:
                self._files.pipe_file(self._path(name), content, mode="create")
            except TypeError:  # the store's library has no exclusive mode
                self._files.pipe_file(self._path(name), content)
            except Exception:  # stores raise different errors for an existing name
                if self.size(name) is None:
                    raise
                return False
        return True

    def put(self, source: pathlib.Path, name: str, length: int | None = None) -> int:
        """Upload the first `length` bytes of a local file, or all of it. Return the CRC-32 of the sent bytes."""
        checksum = 0
        with open(source, "rb") as file, self.create(name) as target:
            left = os.fstat(file.fileno()).st_size if length is None else length
            while left:
                chunk = file.read(min(CHUNK, left))
                if not chunk:
                    raise errors.BadInput(f"{source} ends {left} bytes early")
                checksum = zlib.crc32(chunk, checksum)
                target.write(chunk)
                left -= len(chunk)
                ANSWERS.note()
        return checksum

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file for sequential writing. If the store can rename, the file gets its name when it is complete.

        A failed file is removed, because a partial file must not fill the disk.
        """
        self._block.cache_clear()
        # an object store shows only complete objects, so the unfinished object already has its final path
        unfinished = self._path(f"{name}.part" if self._renames else name)
        try:
            with self._store_errors(to_write=True):
                self._make_folder()
                with self._files.open(unfinished, "wb") as file:
                    yield cast(BinaryIO, file)
                    if self.local_root:
                        file.flush()
                        os.fsync(file.fileno())
                if self.local_root:
                    os.replace(unfinished, self._path(name))
                    self._sync_folder()
                elif self._renames:
                    self._files.mv(unfinished, self._path(name))
        except BaseException:
            with contextlib.suppress(Exception):  # a store that has just failed may fail again during cleanup
                self._files.rm_file(unfinished)
            raise

    def remove(self, name: str) -> None:
        self._block.cache_clear()
        with contextlib.suppress(FileNotFoundError), self._store_errors():
            self._files.rm_file(self._path(name))

    @contextlib.contextmanager
    def _store_errors(self, *, to_write: bool = False) -> Iterator[None]:
        """Convert a library's errors to StoreFailed. A missing file stays FileNotFoundError, except when writing."""
        try:
            yield
            ANSWERS.note()
        except errors.SpringtideError:
            raise
        except Exception as error:
            foreign = type(error).__module__ != "builtins"
            missing = isinstance(error, FileNotFoundError) and not to_write
            if self.local_root or missing or not (foreign or isinstance(error, OSError)):
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise errors.StoreFailed(
                f"{self._url}: {reason}. Check the bucket, the credentials and the endpoint: docs/how-to/storage.md"
            ) from error

    def _make_folder(self) -> None:
        if self._has_folders:
            self._files.makedirs(self._root, exist_ok=True)

    def _listed(self, kind: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            with self._store_errors():
                entries: list[dict[str, Any]] = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == kind]

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _sync_folder(self) -> None:
        folder = os.open(self.local_root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _create_new(path: pathlib.Path, content: bytes) -> bool:
    """Create a local file exclusively, which network file systems guarantee too."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(file, content)
        os.fsync(file)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return True


def make_folder(path: pathlib.Path) -> None:
    if not os.path.isdir(path):  # `mkdir` of a folder that exists takes 20 times as long
        path.mkdir(parents=True, exist_ok=True)


def _files_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except FileNotFoundError:  # removed in the meantime
        return []


def open_store(where: str) -> FileStore:
    """Return the store for a path or URL. For a run's folder, use its checkpoints."""
    if "://" in where:
        return UrlStore(where)
    path = pathlib.Path(where).expanduser()
    return FolderStore(path / "checkpoints" if (path / "checkpoints").is_dir() else path)


SILENCE_S = 600.0
"""Longest time without an answer, in seconds. An upload gets an answer after each 8 MiB; the longest normal wait is for
a whole file on a slow disk."""
LOOK_S = 10.0


class StoreAnswers:
    """Time when a store last answered this process. The check of a silent store depends on this time, not on file
    sizes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def note(self) -> None:
        self._last = self._clock()

    def trouble(self) -> str:
        """Return the reason to give up on the store, or an empty string if the store answered recently."""
        if self._clock() - self._last <= SILENCE_S:
            return ""
        return f"the store has not responded for {SILENCE_S:g} s; check that it can be reached"


ANSWERS = StoreAnswers()


def end_when_silent(line: Callable[[str], str]) -> None:
    """Watch the answers in a thread. After a long silence, print `line(reason)` and end the process, even if it
    hangs."""

    def watch() -> None:
        while not (why := ANSWERS.trouble()):
            time.sleep(LOOK_S)
        print(line(why), flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
