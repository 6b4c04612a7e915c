"""Stores saved states at a URL, each as a data file and a manifest. Free of torch.

In: an image file (state_memory.py) and an fsspec URL. Out: states are published, listed, opened and deleted. A save
exists only with its manifest, which is written last. So nobody sees an interrupted save, and the next saver removes its
leftovers. checkpoint/format/storage.py moves the bytes.
"""

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from springtide.checkpoint.checkpointer import state_folder
from springtide.checkpoint.format.storage import UrlStore

NAME = re.compile(r"(?P<stem>(?P<sequence>\d{8,})-step(?P<step>-?\d+))\.(?P<ending>json|state)(?P<part>\.part)?")


class StateManifest(msgspec.Struct, frozen=True):
    """Facts about one saved state."""

    format: int
    sequence: int
    step: int
    bytes: int
    crc: int
    """CRC-32 of the whole image."""
    saved_at: float
    """Seconds since 1970."""

    @property
    def stem(self) -> str:
        return stem(self.sequence, self.step)


def stem(sequence: int, step: int) -> str:
    """Return the file stem of a save. Stems sort in the order of saves."""
    return f"{sequence:08d}-step{step}"


class StateStore:
    """Saved states at one URL."""

    def __init__(self, url: str) -> None:
        self.place = UrlStore(url)
        self.url = url

    @property
    def identity(self) -> str:
        """Return one identity for every spelling of this URL."""
        return os.path.abspath(self.place.local_root) if self.place.local_root else self.url

    def publish(self, image: pathlib.Path, head: state_folder.ImageHead) -> StateManifest:
        name = stem(head.sequence, head.step)
        crc = self.place.put(image, f"{name}.state", head.image_bytes)
        manifest = StateManifest(state_folder.VERSION, head.sequence, head.step, head.image_bytes, crc, time.time())
        self.place.write(f"{name}.json", msgspec.json.encode(manifest))
        return manifest

    def manifests(self) -> list[StateManifest]:
        """Return published saves, newest first, without `damaged` saves."""
        manifests = [manifest for _, manifest in self._read() if manifest is not None]
        return sorted(manifests, key=lambda manifest: -manifest.sequence)

    def damaged(self) -> list[tuple[int, int]]:
        """Return sequence and step, from the file names, of saves with an unreadable manifest."""
        return [(int(known["sequence"]), int(known["step"])) for known, manifest in self._read() if manifest is None]

    def _read(self) -> Iterator[tuple[re.Match[str], StateManifest | None]]:
        for name in self.place.names():
            if (known := NAME.fullmatch(name)) and known["ending"] == "json" and not known["part"]:
                with contextlib.suppress(OSError):  # deleted in the meantime
                    content = self.place.read(name)
                    try:
                        yield known, msgspec.json.decode(content, type=StateManifest)
                    except msgspec.DecodeError:
                        yield known, None

    def open(self, manifest: StateManifest) -> BinaryIO:
        return self.place.open(f"{manifest.stem}.state")

    def keep_newest(self, count: int) -> None:
        for manifest in self.manifests()[count:]:
            for ending in ("json", "state"):
                self.place.remove(f"{manifest.stem}.{ending}")

    def clear_leftovers(self) -> None:
        """Remove partial files of a killed saver. Only the holder of the lock may call it."""
        names = set(self.place.names())
        for name in names:
            known = NAME.fullmatch(name)
            if known and (known["part"] or (known["ending"] == "state" and f"{known['stem']}.json" not in names)):
                self.place.remove(name)
