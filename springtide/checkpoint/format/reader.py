"""Finds checkpoints, and reads slots out of them.

In: a folder or URL. Out: the newest manifest that is whole, with a word on each newer one that is not, and the images
of a slot in the order of import. Next: `server.restore` imports them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from springtide import _native, errors
from springtide.checkpoint.format.manifest import File, Manifest, Segment, decode, folder_of, name_of, number_of
from springtide.checkpoint.format.storage import Place, place_of
from springtide.domain.model.checkpoints import Lineage


class Damaged(errors.BadInput):
    """Bytes of a checkpoint are not those that were written."""


class Found(NamedTuple):
    """What `latest` has found."""

    manifest: Manifest | None
    """None: there is no checkpoint that could be used."""
    place: Place
    troubles: tuple[str, ...] = ()
    """Why newer ones are not used, each in a sentence."""


def latest(
    where: str | Place, slots: Iterable[int] | None = None, *, before: int | None = None, lineage: Lineage | None = None
) -> Found:  # fmt: skip
    """The newest checkpoint that is whole, else the one before; with `before`, of those before that one, with
    `lineage`, of these runs only.

    The bytes of `slots` are read and compared with their sums: all slots unless some are named. With none of them only
    manifests and sizes of files are looked at, which notices a torn file, but not one with other bytes in it.
    """
    place = place_of(where) if isinstance(where, str) else where
    chosen = None if slots is None else tuple(slots)
    troubles: list[str] = []
    for number in numbers(place):
        if before is not None and number >= before:
            continue
        try:
            manifest = read(place, number, chosen or None, lineage=lineage)
            verify(place, manifest, range(manifest.slots) if chosen is None else chosen)
            return Found(manifest, place, tuple(troubles))
        except (errors.BadInput, OSError) as error:
            troubles.append(f"checkpoint {number} in {place.where} cannot be used: {error}")
    return Found(None, place, tuple(troubles))


def numbers(place: Place) -> list[int]:
    """The checkpoints that have a manifest, the newest first."""
    return sorted((number for name in place.names() if (number := number_of(name)) is not None), reverse=True)


def manifest_of(place: Place, number: int, lineage: Lineage | None = None) -> Manifest:
    """The manifest of that checkpoint, whatever is left of its files; BadInput where it is none of these runs'."""
    manifest = decode(place.read(name_of(number)))
    refusal = lineage.refusal(manifest.run, manifest.number, manifest.job) if lineage is not None else ""
    if refusal:
        raise errors.BadInput(refusal)
    return manifest


def read(
    where: str | Place, number: int, slots: Iterable[int] | None = None, *, lineage: Lineage | None = None
) -> Manifest:  # fmt: skip
    """The manifest of that checkpoint, if its files are there in full, or those of some slots; BadInput says what is
    missing, or that it is none of these runs'.
    """
    place = place_of(where) if isinstance(where, str) else where
    manifest = manifest_of(place, number, lineage)
    wanted = range(manifest.slots) if slots is None else slots
    for file in sorted({segment.file for slot in wanted for segment in manifest.chains[slot]}):
        whole_copy(place, manifest.files[file])
    return manifest


def known(where: str | Place, number: int, *, lineage: Lineage | None = None) -> Manifest:
    """The manifest of that checkpoint, if those of its files are there in full that lie beside it, not on disks of
    servers.
    """
    place = place_of(where) if isinstance(where, str) else where
    manifest = manifest_of(place, number, lineage)
    for file in manifest.files:
        if not manifest.apart.keys() & {folder_of(file.name), folder_of(file.mirror)}:
            whole_copy(place, file)
    return manifest


def whole_copy(place: Place, file: File) -> str:
    """The name of a file, or of its mirror where that alone is there in full; BadInput says what is missing."""
    troubles = []
    for name in filter(None, (file.name, file.mirror)):
        size = place.size(name)
        if size is not None and size >= file.size:
            return name
        troubles.append(f"{name} is missing" if size is None else f"{name} is torn: {size} of {file.size} bytes")
    raise errors.BadInput(", and ".join(troubles))


def verify(place: Place, manifest: Manifest, slots: Iterable[int]) -> None:
    """Compare the bytes of these slots with their sums; BadInput names the first that does not fit."""
    for slot in slots:
        for _ in images(place, manifest, slot):
            pass


def images(place: Place, manifest: Manifest, slot: int, spared: dict[str, str] | None = None) -> Iterator[bytes]:
    """The slot's images in the order of import: a full one, then what changed. Each is whole, or BadInput.

    What is missing, torn or damaged is read from its mirror, where there is one; `spared` gets the names of such files,
    and what is wrong with them.
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


def check_image(file: str, slot: int, segment: Segment, image: bytes) -> None:
    """Refuse bytes that are not the image which the manifest means."""
    where = f"the image of slot {slot} at {segment.offset} of {file}"
    if len(image) != segment.length:
        raise Damaged(f"{where} is torn: {len(image)} of {segment.length} bytes")
    content = np.frombuffer(image, dtype=np.uint8)
    if not _native.is_whole_image(content):
        raise Damaged(f"{where} is damaged: its checksum does not fit")
    try:
        facts = _native.image_facts(content)
    except errors.BadInput as error:  # of another version, or what says so was hit
        raise Damaged(f"{where}: {error}") from error
    if facts != (slot, segment.full, segment.checksum):
        raise Damaged(f"{where} is another one than was written there")


def _image(place: Place, file: str, slot: int, segment: Segment) -> bytes:
    image = place.read(file, segment.offset, segment.length)
    check_image(file, slot, segment, image)
    return image
