"""Saved states at a URL: one data file and one manifest each; only what has a manifest exists. Free of torch.

In: an image file (checkpoint/checkpointer/state_memory.py) and a URL of fsspec's. Out: states published, listed,
opened, thinned out. The manifest comes last: a save that was cut off is seen by nobody, and the next saver clears it
away. The bytes go through checkpoint/format/storage.py.
"""

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from springtide.checkpoint.checkpointer import state_head
from springtide.checkpoint.format.storage import Remote

NAME = re.compile(r"(?P<stem>(?P<sequence>\d{8,})-step(?P<step>-?\d+))\.(?P<ending>json|state)(?P<part>\.part)?")


class Manifest(msgspec.Struct, frozen=True):
    """What is known of one saved state."""

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
        """The name of its files, without their endings."""
        return stem(self.sequence, self.step)


def stem(sequence: int, step: int) -> str:
    """Names sort in the order of saves."""
    return f"{sequence:08d}-step{step}"


class Storage:
    """One URL."""

    def __init__(self, url: str) -> None:
        self.place = Remote(url)
        self.url = url

    @property
    def identity(self) -> str:
        """The same for every way to write this place."""
        return os.path.abspath(self.place.local_root) if self.place.local_root else self.url

    def publish(self, image: pathlib.Path, head: state_head.Head) -> Manifest:
        """Write an image, then its manifest."""
        name = stem(head.sequence, head.step)
        crc = self.place.put(image, f"{name}.state", head.image_bytes)
        manifest = Manifest(state_head.VERSION, head.sequence, head.step, head.image_bytes, crc, time.time())
        self.place.write(f"{name}.json", msgspec.json.encode(manifest))
        return manifest

    def manifests(self) -> list[Manifest]:
        """What was published, newest first, but for saves whose manifest is `damaged`."""
        found = [one for _, one in self._read() if one is not None]
        return sorted(found, key=lambda one: -one.sequence)

    def damaged(self) -> list[tuple[int, int]]:
        """Sequence and step, by their names, of saves whose manifest is none: there is no telling what they hold."""
        return [(int(known["sequence"]), int(known["step"])) for known, one in self._read() if one is None]

    def _read(self) -> Iterator[tuple[re.Match[str], Manifest | None]]:
        for name in self.place.names():
            if (known := NAME.fullmatch(name)) and known["ending"] == "json" and not known["part"]:
                with contextlib.suppress(OSError):  # it was thinned out meanwhile
                    content = self.place.read(name)
                    try:
                        yield known, msgspec.json.decode(content, type=Manifest)
                    except msgspec.DecodeError:
                        yield known, None

    def open(self, manifest: Manifest) -> BinaryIO:
        """The image, to be read."""
        return self.place.open(f"{manifest.stem}.state")

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest so many, manifests first."""
        for manifest in self.manifests()[count:]:
            for ending in ("json", "state"):
                self.place.remove(f"{manifest.stem}.{ending}")

    def clear_leftovers(self) -> None:
        """Remove what a killed saver left half-written. Only for the one who holds the lock."""
        names = set(self.place.names())
        for name in names:
            known = NAME.fullmatch(name)
            if known and (known["part"] or (known["ending"] == "state" and f"{known['stem']}.json" not in names)):
                self.place.remove(name)
