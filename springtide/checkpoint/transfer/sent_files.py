"""Which files this run has sent to a URL, so that only these are not sent again.

In: the folder with the files, and the place at the URL. Out: `uploads.json` in that folder: for each file its size and
what the store called its version right after it was sent. A file of the same name and size that another has put there,
or that was changed since, has another version and is sent again. Without the record all files are.
"""

import pathlib
from collections.abc import Collection

import msgspec

from springtide import private_files
from springtide.checkpoint.format.storage import Folder, Remote

NAME = "uploads.json"


class _Record(msgspec.Struct):
    url: str
    """It may have a password: only the owner can read the file."""
    files: dict[str, tuple[int, str]]
    """By name: bytes, and the store's version."""


class SentFiles:
    """What was sent from one folder to one URL. One process at a time uses it."""

    def __init__(self, folder: pathlib.Path, there: Remote) -> None:
        self._folder, self._there = Folder(folder), there
        self._present = set(there.names())
        self._record = self._read()
        self.files = self.bytes = 0
        """What this process has sent."""

    def send(self, source: pathlib.Path, name: str, size: int) -> None:
        """See that the first `size` bytes of this file are at the URL under that name."""
        known = self._record.files.get(name)
        if known is not None and name in self._present and known == (size, self._there.version(name)):
            return
        self._there.put(source, name, size)
        self._record.files[name] = (size, self._there.version(name))
        self._write()
        self.files, self.bytes = self.files + 1, self.bytes + size

    def forget_others(self, needed: Collection[str]) -> None:
        """Keep the record of these files only."""
        self._record.files = {name: known for name, known in self._record.files.items() if name in needed}
        self._write()

    def _read(self) -> _Record:
        try:
            record = msgspec.json.decode(self._folder.read(NAME), type=_Record)
        except (OSError, msgspec.MsgspecError):
            return _Record(self._there.where, {})
        return record if record.url == self._there.where else _Record(self._there.where, {})

    def _write(self) -> None:
        private_files.replace(self._folder.path / NAME, msgspec.json.encode(self._record))
