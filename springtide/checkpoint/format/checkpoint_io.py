"""Writes segment files, publishes manifests, finds checkpoints and reads slots from them.

A segment file gets its name when it is complete. Writers do not wait for the disk, because pages in the kernel's cache
survive the end of the process. After a crash of the machine, checksums reveal a torn file.
"""

import errno
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np

from springtide import _native, errors
from springtide.checkpoint.format.manifest import (
    File,
    Manifest,
    SlotSegment,
    decode,
    encode,
    folder_of,
    name_of,
    number_in,
    number_of,
    segment_name,
)
from springtide.checkpoint.format.storage import FileStore, make_folder, open_store
from springtide.domain.core.resources import show_memory
from springtide.domain.model.checkpoints import Lineage, SlotExtent, Written


class DamagedImage(errors.BadInput):
    """The bytes of a checkpoint differ from the bytes that were written."""


class FoundCheckpoint(NamedTuple):
    """Result of `latest`."""

    manifest: Manifest | None
    """Newest usable manifest; None if there is no checkpoint."""
    place: FileStore
    troubles: tuple[str, ...] = ()
    """Reasons for skipping newer checkpoints, one sentence for each checkpoint."""


def latest(
    where: str | FileStore,
    slots: Iterable[int] | None = None,
    *,
    before: int | None = None,
    lineage: Lineage | None = None,
) -> FoundCheckpoint:
    """Return the newest complete checkpoint. `before` limits the checkpoint's number, and `lineage` limits the runs
    that it may come from.

    Compare the bytes of `slots` (all slots by default) with their checksums. Without slots, check only manifests and
    file sizes, which finds a torn file but not changed bytes. Raise OtherVersion at a checkpoint of another version of
    Springtide, because an older checkpoint would lose training.
    """
    place = open_store(where) if isinstance(where, str) else where
    chosen = None if slots is None else tuple(slots)
    troubles: list[str] = []
    for number in numbers(place):
        if before is not None and number >= before:
            continue
        try:
            manifest = read(place, number, chosen or None, lineage=lineage)
            verify(place, manifest, range(manifest.slots) if chosen is None else chosen)
            return FoundCheckpoint(manifest, place, tuple(troubles))
        except errors.OtherVersion:
            raise
        except (errors.BadInput, OSError) as error:
            troubles.append(f"checkpoint {number} in {place.where} cannot be used: {error}")
    return FoundCheckpoint(None, place, tuple(troubles))


def numbers(place: FileStore) -> list[int]:
    """Return the numbers of checkpoints with a manifest, newest first."""
    return sorted((number for name in place.names() if (number := number_of(name)) is not None), reverse=True)


def manifest_of(place: FileStore, number: int, lineage: Lineage | None = None) -> Manifest:
    """Return a checkpoint's manifest without checking its files. Raise BadInput if `lineage` excludes the checkpoint's
    run."""
    try:
        content = place.read(name_of(number))
    except FileNotFoundError:
        raise errors.MissingFile(
            f"checkpoint {number} is no longer in {place.where}: someone has deleted it. "
            "`springtide checkpoints` shows those that are left; resume from one of them"
        ) from None
    manifest = decode(content, f"checkpoint {number} in {place.where}")
    refusal = lineage.refusal(manifest.run, manifest.number, manifest.job) if lineage is not None else ""
    if refusal:
        raise errors.BadInput(refusal)
    return manifest


def read(
    where: str | FileStore, number: int, slots: Iterable[int] | None = None, *, lineage: Lineage | None = None
) -> Manifest:
    """Return a manifest, after checking the files of `slots` (all by default). BadInput names the missing or damaged
    file."""
    place = open_store(where) if isinstance(where, str) else where
    manifest = manifest_of(place, number, lineage)
    wanted = range(manifest.slots) if slots is None else slots
    for file in sorted({segment.file for slot in wanted for segment in manifest.chains[slot]}):
        whole_copy(place, manifest.files[file])
    return manifest


def known(where: str | FileStore, number: int, *, lineage: Lineage | None = None) -> Manifest:
    """Return a manifest, after checking the files beside it. Files on servers' own disks are not checked."""
    place = open_store(where) if isinstance(where, str) else where
    manifest = manifest_of(place, number, lineage)
    for file in manifest.files:
        if not manifest.apart.keys() & {folder_of(file.name), folder_of(file.mirror)}:
            whole_copy(place, file)
    return manifest


def whole_copy(place: FileStore, file: File) -> str:
    """Return the name of a complete file or of its mirror. BadInput describes the missing part."""
    troubles = []
    for name in filter(None, (file.name, file.mirror)):
        size = place.size(name)
        if size is not None and size >= file.size:
            return name
        troubles.append(f"{name} is missing" if size is None else f"{name} is torn: {size} of {file.size} bytes")
    raise errors.BadInput(", and ".join(troubles))


def verify(place: FileStore, manifest: Manifest, slots: Iterable[int]) -> None:
    """Compare the bytes of these slots with their checksums. BadInput names the first mismatch."""
    for slot in slots:
        for _ in images(place, manifest, slot):
            pass


def images(place: FileStore, manifest: Manifest, slot: int, spared: dict[str, str] | None = None) -> Iterator[bytes]:
    """Yield a slot's images in the order of import: first the full image, then the increments. A damaged image raises
    BadInput.

    If an image is missing, torn or damaged, read the image's mirror copy, if there is one. `spared` collects the names
    and faults of such files.
    """
    for segment in manifest.chains[slot]:
        file = manifest.files[segment.file]
        try:
            image = _image(place, file.name, slot, segment)
        except (errors.BadInput, OSError) as error:
            if not file.mirror:
                raise
            if spared is not None:
                spared.setdefault(file.name, str(error))
            image = _image(place, file.mirror, slot, segment)
        yield image


def check_image(file: str, slot: int, segment: SlotSegment, image: bytes) -> None:
    where = f"the image of slot {slot} at {segment.offset} of {file}"
    length = segment.length + segment.identities[1]
    if len(image) != length:
        raise DamagedImage(f"{where} is torn: {len(image)} of {length} bytes")
    content = np.frombuffer(image, dtype=np.uint8)
    if not _native.is_whole_image(content):
        raise DamagedImage(f"{where} is damaged: its checksum does not match")
    try:
        facts = _native.image_facts(content)
    except errors.BadInput as error:  # the image has an unknown version, or its version field is damaged
        raise DamagedImage(f"{where}: {error}") from error
    if facts != (slot, segment.full, segment.checksum):
        raise DamagedImage(f"{where} is not the written image")


def _image(place: FileStore, file: str, slot: int, segment: SlotSegment) -> bytes:
    image = place.read(file, segment.offset, segment.length)
    if segment.identities[1]:
        image += place.read(file, *segment.identities)
    check_image(file, slot, segment, image)
    return image


def publish(place: FileStore, manifest: Manifest) -> None:
    place.write(manifest.name, encode(manifest))


def drop_unneeded(place: FileStore, kept: Collection[Manifest], *, given_up: int = 0, only_run: str = "") -> list[str]:
    """Remove older manifests, then files that no kept manifest names. Return the removed names.

    Files newer than the newest manifest in `kept` stay, because a server is still writing these files. Files up to the
    abandoned checkpoint with the number `given_up` are removed. If another run now owns the folder, `only_run` is the
    id of this run, and the function removes only segment files of this run.
    """
    newest = max([given_up, *(manifest.number for manifest in kept)])
    files = [file for manifest in kept for file in manifest.files]
    needed = {file.name for file in files} | {file.mirror for file in files} | {manifest.name for manifest in kept}
    names = [name for name in place.names() if name not in needed]
    gone = [name for name in names if (_number(name) or newest + 1) <= newest and (not only_run or only_run in name)]
    gone.sort(key=lambda name: number_of(name) is None)
    for name in gone:
        place.remove(name)
    return gone


def _number(name: str) -> int | None:
    """Return the checkpoint number of a file, complete or partial; None if the file is not a checkpoint file."""
    whole = name.removesuffix(".part")
    if (number := number_of(whole)) is not None:
        return number
    return number_in(whole.removesuffix(".seg") + ".seg") if whole != name or name.endswith(".seg") else None


# bytes per piece. Copying or writing a piece takes half a millisecond, and a pull or push waits at most that long.
PIECE_BYTES = 1 << 19
LEFT_FREE, OF_DISK = 64 << 20, 0.01  # space that checkpoints leave free: this many bytes, or this share of a small disk


class SegmentWriter:
    """A segment file being written. `close` gives the file its name; an exception removes the file."""

    def __init__(
        self, folder: pathlib.Path, life: str, number: int, part: int = 0, *, run: str, home: str = ""
    ) -> None:
        """`part` is the number of files that this server has already written for this checkpoint. `home` is the
        subfolder for the server's files."""
        self.life, self.number = life, number
        self._home, folder = home, folder / home
        self.path = folder / segment_name(f"{life}+{part}" if part else life, number, run)
        self._unfinished = self.path.with_suffix(".part")
        make_folder(folder)
        self._file = os.open(self._unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._open = True
        self.size = 0
        self._pieces: dict[int, SlotExtent] = {}
        self._identities: dict[tuple[int, int], int] = {}
        """Offset of each set of identities in the file, by the set's number of bytes and checksum."""

    def append(
        self, slot: int, copy: _native.SlotCopy, *, since: int = 0, pace: AbstractContextManager[None] | None = None
    ) -> SlotExtent:
        """Append the copy of a slot, in pieces. Between two pieces, `pace` may sleep. `since` is the number of the
        checkpoint on which an increment builds."""
        at, written = self.size, False
        while not written:
            with pace or nullcontext():
                written = copy.write_on(self._file, at, PIECE_BYTES)
        self.size += copy.size
        identities = copy.identities
        if identities not in self._identities:
            copy.write_identities(self._file, self.size)
            self._identities[identities] = self.size
            self.size += identities[0]
        extent = self._identities[identities], identities[0]
        piece = SlotExtent(slot, at, copy.size, copy.checksum, 0 if copy.full else since, extent)
        self._pieces[slot] = piece
        leave_room(self._file)
        return piece

    def take_back(self, slot: int) -> None:
        self._pieces.pop(slot, None)

    def close(self) -> Written:
        """Close the file, give it its name, and return the position of each image."""
        os.close(self._file)
        self._open = False
        self._unfinished.rename(self.path)
        file = f"{self._home}/{self.path.name}" if self._home else self.path.name
        return Written(self.life, file, self.size, tuple(self._pieces.values()))

    def discard(self) -> None:
        """Remove an unfinished file. Harmless after `close`."""
        if self._open:
            os.close(self._file)
            self._open = False
            self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> "SegmentWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def leave_room(file: int) -> None:
    """Raise a disk-full error before the disk is full, because the job's journal may be on the same disk. A job fails
    without its journal, but continues without a checkpoint.
    """
    disk = os.fstatvfs(file)
    left = min(LEFT_FREE, OF_DISK * disk.f_blocks * disk.f_frsize)
    if disk.f_bavail * disk.f_frsize < left:
        why = f"{os.strerror(errno.ENOSPC)} but {show_memory(int(left))}, which are reserved for the job's journal"
        raise OSError(errno.ENOSPC, why)
