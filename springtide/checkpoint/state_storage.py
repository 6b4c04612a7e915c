"""Saved states at a URL: one data file and one manifest each; only what has a manifest exists. Free of torch.

In: an image file (checkpoint/state_memory.py) and a URL of fsspec's. Out: states published, listed, opened, thinned
out. The manifest comes last, under another name first where files can be renamed: a save that was cut off is seen by
nobody, and the next saver clears it away.
"""

import contextlib
import os
import pathlib
import re
import time
import zlib
from typing import Any, BinaryIO, cast

import fsspec
import msgspec

from springtide import errors
from springtide.checkpoint import state_head

CHUNK = 8 << 20
NAME = re.compile(r"(\d{8,}-step-?\d+)\.(json|state)(\.part)?")


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
        self.url = url
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise errors.BadInput(f"cannot save to {url!r}: {error}") from None
        protocols = (self.fs.protocol,) if isinstance(self.fs.protocol, str) else self.fs.protocol
        self.is_local = "file" in protocols
        self.in_this_process = "memory" in protocols

    def make(self) -> None:
        """The folder, or a clear error."""
        try:
            self.fs.makedirs(self.root, exist_ok=True)
        except OSError as error:
            raise errors.BadInput(f"cannot save to {self.url!r}: {error}. Choose a folder you may write to.") from None

    def publish(self, image: pathlib.Path, head: state_head.Head) -> Manifest:
        """Write an image, then its manifest."""
        name = stem(head.sequence, head.step)
        crc = 0
        with open(image, "rb") as source, self.fs.open(self.path(f"{name}.state"), "wb") as target:
            left = head.image_bytes
            while left:
                chunk = source.read(min(CHUNK, left))
                if not chunk:
                    raise errors.BadInput(f"{image} ends {left} bytes early")
                crc = zlib.crc32(chunk, crc)
                target.write(chunk)
                left -= len(chunk)
            self._settle(target)
        manifest = Manifest(state_head.VERSION, head.sequence, head.step, head.image_bytes, crc, time.time())
        self._publish_text(self.path(f"{name}.json"), msgspec.json.encode(manifest))
        return manifest

    def manifests(self) -> list[Manifest]:
        """What was published, newest first. A manifest that cannot be read is as good as none."""
        found = []
        for name in self._names():
            if (known := NAME.fullmatch(name)) and known[2] == "json" and not known[3]:
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    found.append(msgspec.json.decode(self.fs.cat_file(self.path(name)), type=Manifest))
        return sorted(found, key=lambda one: -one.sequence)

    def open(self, manifest: Manifest) -> BinaryIO:
        """The image, to be read."""
        return cast(BinaryIO, self.fs.open(self.path(f"{manifest.stem}.state"), "rb"))

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest so many, manifests first."""
        for manifest in self.manifests()[count:]:
            for ending in ("json", "state"):
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm_file(self.path(f"{manifest.stem}.{ending}"))

    def clear_leftovers(self) -> None:
        """Remove what a killed saver left half-written. Only for the one who holds the lock."""
        names = set(self._names())
        for name in names:
            known = NAME.fullmatch(name)
            if known and (known[3] or (known[2] == "state" and f"{known[1]}.json" not in names)):
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm_file(self.path(name))

    def path(self, name: str) -> str:
        """Where a file of this name lies."""
        return f"{self.root.rstrip('/')}/{name}"

    def _publish_text(self, path: str, text: bytes) -> None:
        if not self.is_local:
            self.fs.pipe_file(path, text)  # object stores show an object whole or not at all
            return
        with self.fs.open(f"{path}.part", "wb") as file:
            file.write(text)
            self._settle(file)
        os.replace(f"{path}.part", path)
        folder = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _settle(self, file: Any) -> None:
        if self.is_local:
            file.flush()
            os.fsync(file.fileno())

    def _names(self) -> list[str]:
        self.fs.invalidate_cache()
        try:
            return [str(entry).rstrip("/").rpartition("/")[2] for entry in self.fs.ls(self.root, detail=False)]
        except FileNotFoundError:
            return []
