"""Finds checkpoints and reads slots from them.

In: a folder or URL. Out: the newest complete manifest, with the reason why each newer one was skipped; the images of a
slot in the order of import. Next: `server.restore` imports them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from springtide import _native, errors
from springtide.checkpoint.format.manifest import File, Manifest, SlotSegment, decode, folder_of, name_of, number_of
from springtide.checkpoint.format.storage import FileStore, open_store
from springtide.domain.model.checkpoints import Lineage


class DamagedImage(errors.BadInput):
    """The bytes of a checkpoint differ from the bytes that were written."""


class FoundCheckpoint(NamedTuple):
    """Result of `latest`."""

    manifest: Manifest | None
    """Newest usable manifest; None if there is none."""
    place: FileStore
    troubles: tuple[str, ...] = ()
    """Why each newer checkpoint was skipped, one sentence each."""


def latest(
    where: str | FileStore,
    slots: Iterable[int] | None = None,
    *,
    before: int | None = None,
    lineage: Lineage | None = None,
) -> FoundCheckpoint:
    """Return the newest complete checkpoint. `before` limits its number, and `lineage` limits the runs.

    The bytes of `slots` (all by default) are compared with their checksums. Without slots, only manifests and file
    sizes are checked, which finds a torn file but not changed bytes.
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
        except (errors.BadInput, OSError) as error:
            troubles.append(f"checkpoint {number} in {place.where} cannot be used: {error}")
    return FoundCheckpoint(None, place, tuple(troubles))


def numbers(place: FileStore) -> list[int]:
    """Return the numbers of checkpoints with a manifest, newest first."""
    return sorted((number for name in place.names() if (number := number_of(name)) is not None), reverse=True)


def manifest_of(place: FileStore, number: int, lineage: Lineage | None = None) -> Manifest:
    """Return a checkpoint's manifest without checking its files. Raise BadInput if `lineage` excludes its run."""
    manifest = decode(place.read(name_of(number)))
    refusal = lineage.refusal(manifest.run, manifest.number, manifest.job) if lineage is not None else ""
    if refusal:
        raise errors.BadInput(refusal)
    return manifest


def read(
    where: str | FileStore, number: int, slots: Iterable[int] | None = None, *, lineage: Lineage | None = None
) -> Manifest:
    """Return a checkpoint's manifest, after checking the files of `slots` (all by default). BadInput names what is
    missing.
    """
    place = open_store(where) if isinstance(where, str) else where
    manifest = manifest_of(place, number, lineage)
    wanted = range(manifest.slots) if slots is None else slots
    for file in sorted({segment.file for slot in wanted for segment in manifest.chains[slot]}):
        whole_copy(place, manifest.files[file])
    return manifest


def known(where: str | FileStore, number: int, *, lineage: Lineage | None = None) -> Manifest:
    """Return a checkpoint's manifest, after checking the files beside it. Files on servers' own disks are
    not checked.
    """
    place = open_store(where) if isinstance(where, str) else where
    manifest = manifest_of(place, number, lineage)
    for file in manifest.files:
        if not manifest.apart.keys() & {folder_of(file.name), folder_of(file.mirror)}:
            whole_copy(place, file)
    return manifest


def whole_copy(place: FileStore, file: File) -> str:
    """Return the name of a complete file or of its mirror. BadInput says what is missing."""
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
    """Yield a slot's images in the order of import: a full image, then increments. A damaged image raises BadInput.

    Missing, torn or damaged images are read from their mirror, if there is one. `spared` collects the names and faults
    of such files.
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
    """Reject bytes that are not the image that the manifest describes."""
    where = f"the image of slot {slot} at {segment.offset} of {file}"
    if len(image) != segment.length:
        raise DamagedImage(f"{where} is torn: {len(image)} of {segment.length} bytes")
    content = np.frombuffer(image, dtype=np.uint8)
    if not _native.is_whole_image(content):
        raise DamagedImage(f"{where} is damaged: its checksum does not fit")
    try:
        facts = _native.image_facts(content)
    except errors.BadInput as error:  # another version, or a damaged version field
        raise DamagedImage(f"{where}: {error}") from error
    if facts != (slot, segment.full, segment.checksum):
        raise DamagedImage(f"{where} is another one than was written there")


def _image(place: FileStore, file: str, slot: int, segment: SlotSegment) -> bytes:
    image = place.read(file, segment.offset, segment.length)
    check_image(file, slot, segment, image)
    return image
