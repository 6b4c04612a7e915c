"""Pure. The manifest of a checkpoint: the files and bytes of each slot, and the ledger as it was before the copy.

`cover` combines the images that servers wrote (`Written`) with the last manifest, and finds slots without an image. The
manifest file gets its final name last, so a checkpoint exists completely or not at all.
"""

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide import errors
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.data.samples import EpochPlace
from springtide.domain.model.checkpoints import SlotExtent, Written
from springtide.domain.model.tables import TableSpec

FORMAT = 5
"""Version of the format. Increase the version when a field or a slot image changes meaning. Springtide rejects
manifests of a different version.
"""

_HEAD = struct.Struct("<8sIIQ")  # magic, format, checksum of the body, length of the body
_MAGIC = b"ST-CKPT\n"
_NAME = re.compile(r"manifest-(\d{6,})\.ckpt")


class File(msgspec.Struct, frozen=True, array_like=True):
    """A segment file beside the manifest, or in a folder beside the manifest."""

    name: str
    life: str
    """Server and incarnation that wrote the file, such as server-0.1. Only this incarnation may add increments."""
    size: int
    mirror: str = ""
    """Name of a second copy in the folder of another server; empty if there is none."""


class SlotSegment(msgspec.Struct, frozen=True, array_like=True):
    """The image of one slot."""

    file: int
    """Index into the manifest's files."""
    offset: int
    length: int
    checksum: int
    """Checksum of the image, over everything after its header."""
    full: bool
    """True for a full image. An increment is applied over the image before it."""
    identities: tuple[int, int] = (0, 0)
    """Offset and length of the end of the image. Several images of the file may share this end."""


Chain = tuple[SlotSegment, ...]
"""A full image and its increments, in the order of import."""


class SavedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the job when the checkpoint began."""

    samples: int = 0
    """Number of trained samples in the ledger."""
    samples_before: int = 0
    """Number of samples trained by earlier runs whose model this run took over to train on new data."""
    step: int = 0
    """Step of a bsp group; all state in the checkpoint is from after this step."""
    era: int = 0
    """Number of ledger rollbacks before the checkpoint."""
    ledger: bytes = b""
    """A `data.ledger.passes.JobProgress` as msgpack, from before the first slot was copied."""


class ScriptStates(msgspec.Struct, frozen=True, kw_only=True):
    """State of the users' scripts when the checkpoint began."""

    claims: tuple[str, ...] = ()
    """Finished tasks that a job does only once, such as initializing the weights of a table."""
    objects: dict[int, dict[str, bytes]] = {}
    """States of registered objects, by rank and name."""
    places: dict[int, EpochPlace] = {}
    """The place in each rank's script at which its states were saved."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint."""

    job: str
    run: str
    """Identity of the run that made the checkpoint. A different run restores this checkpoint only if that run resumes
    from it.
    """
    number: int
    begun_at: float
    """When the ledger was recorded, in seconds since 1970; slots were copied after that."""
    completed_at: float
    slots: int
    seed: int
    progress: SavedProgress = SavedProgress()
    scripts: ScriptStates = ScriptStates()
    tables: tuple[TableSpec, ...] = ()
    outline: bytes = b""
    """Description of the model that uses these tables: a `domain.model.outline.Outline` as msgpack; empty until a
    worker has sent one.
    """
    files: tuple[File, ...] = ()
    chains: tuple[Chain, ...] = ()
    """Chain of images of each slot, by slot."""
    apart: dict[str, str] = {}
    """Folders on servers' own disks, such as server-0, each with the name of its machine."""

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def full(self) -> bool:
        """Return True if every slot has a single full image."""
        return all(len(chain) == 1 for chain in self.chains)

    @property
    def mirrored(self) -> bool:
        return all(file.mirror for file in self.files)

    @property
    def outlasts_a_host(self) -> bool:
        """Return True if a copy of every file survives the loss of any single machine."""
        nodes = [(self.apart.get(folder_of(file.name), ""), file.mirror) for file in self.files]
        return all(not node or (mirror and self.apart.get(folder_of(mirror), "") != node) for node, mirror in nodes)

    @property
    def bytes_written(self) -> int:
        return sum(file.size for file in self.files if number_in(file.name) == self.number)


def name_of(number: int) -> str:
    return f"manifest-{number:06d}.ckpt"


def number_of(name: str) -> int | None:
    """Return the checkpoint number in a manifest's file name; None for other files."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def segment_name(life: str, number: int, run: str) -> str:
    """Return the name of the segment file that one server incarnation writes for one checkpoint, unique across runs."""
    return f"{life}-{number:06d}.{run}.seg"


def without_mirrors(manifest: Manifest) -> Manifest:
    """Return the manifest of an uploaded copy of the checkpoint, which has each file once, all in one folder."""
    files = tuple(File(bare(file.name), file.life, file.size) for file in manifest.files)
    return msgspec.structs.replace(manifest, files=files, apart={})


def bare(name: str) -> str:
    return name.rpartition("/")[2]


def folder_of(name: str) -> str:
    """Return the server's folder in a file name; empty if the file is beside the manifest."""
    return name.rpartition("/")[0]


def number_in(name: str) -> int | None:
    found = re.fullmatch(r".+-(\d{6,})\.[0-9a-z]+\.seg", name)
    return int(found[1]) if found else None


def encode(manifest: Manifest) -> bytes:
    body = msgspec.msgpack.encode(manifest)
    return _HEAD.pack(_MAGIC, FORMAT, zlib.crc32(body), len(body)) + body


def decode(content: bytes, what: str = "the manifest") -> Manifest:
    if len(content) < _HEAD.size:
        raise errors.BadInput(f"the manifest is cut short: {len(content)} bytes")
    magic, version, checksum, length = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise errors.BadInput("the file is not a manifest of a checkpoint")
    if version != FORMAT:
        raise errors.OtherVersion(what, version, FORMAT)
    body = content[_HEAD.size :]
    if len(body) != length:
        raise errors.BadInput(f"the manifest is cut short: {len(body)} of {length} bytes")
    if zlib.crc32(body) != checksum:
        raise errors.BadInput("the manifest is damaged: its checksum does not match")
    try:
        manifest = msgspec.msgpack.decode(body, type=Manifest)
    except UNDECODABLE as error:
        raise errors.BadInput(f"the manifest cannot be read: {error}") from error
    check(manifest)
    return manifest


def check(manifest: Manifest) -> None:
    if len(manifest.chains) != manifest.slots:
        raise errors.BadInput(f"the manifest has {len(manifest.chains)} chains for {manifest.slots} slots")
    for slot, chain in enumerate(manifest.chains):
        if not chain or not chain[0].full or any(segment.full for segment in chain[1:]):
            raise errors.BadInput(f"the manifest's chain of slot {slot} is not one full image with increments after it")
        for segment in chain:
            if not 0 <= segment.file < len(manifest.files):
                raise errors.BadInput(f"the manifest's chain of slot {slot} names a file that it does not list")
            ends = [(segment.offset, segment.length), segment.identities]
            if any(min(end) < 0 or sum(end) > manifest.files[segment.file].size for end in ends):
                raise errors.BadInput(f"the manifest's chain of slot {slot} reaches beyond its file")


class Covered(NamedTuple):
    """Files of a manifest, and for each slot the chain of images from which the slot is restored. The manifest is
    complete if `missing` is empty.
    """

    files: tuple[File, ...]
    chains: tuple[Chain, ...]
    missing: tuple[int, ...]
    apart: dict[str, str] = {}  # noqa: RUF012
    """Folders of servers with their own disks, each with its machine's name."""


def cover(
    slots: int, previous: Manifest | None, written: Sequence[Written], owners: Mapping[int, str] | None = None
) -> Covered:
    """Combine the images of all slots. If a slot moved and two servers wrote it, the image of the slot's owner
    counts."""
    images: dict[int, tuple[Written, SlotExtent]] = {}
    for report in written:
        for piece in report.pieces:
            if fits(previous, report.life, piece) and (
                piece.slot not in images or (owners or {}).get(piece.slot) == report.life
            ):
                images[piece.slot] = report, piece
    files = CoverFiles()
    chains: list[Chain] = []
    for slot in range(slots):
        if slot not in images:
            chains.append(())
            continue
        report, piece = images[slot]
        before: tuple[SlotSegment, ...] = ()
        if piece.since:
            assert previous is not None
            before = tuple(
                msgspec.structs.replace(segment, file=files.place(previous.files[segment.file]))
                for segment in previous.chains[slot]
            )
        file = files.place(File(report.file, report.life, report.size))
        full = not piece.since
        image = SlotSegment(file, piece.offset, piece.length, piece.checksum, full, piece.identities)
        chains.append((*before, image))
    missing = tuple(slot for slot in range(slots) if slot not in images)
    copies = {name: f"{report.buddy}/{name}" for report in written if report.buddy for name in report.mirrored}
    listed = tuple(msgspec.structs.replace(file, mirror=copies.get(bare(file.name), "")) for file in files.listed)
    nodes = [(folder_of(report.file), report.node) for report in written] + [
        (report.buddy, report.buddy_node) for report in written
    ]
    used = {folder_of(name) for file in listed for name in (file.name, file.mirror)}
    return Covered(listed, tuple(chains), missing, {folder: node for folder, node in nodes if node and folder in used})


def fits(previous: Manifest | None, life: str, piece: SlotExtent) -> bool:
    """Return True if the image is full, or if it builds on the slot's last image and the same server incarnation wrote
    both images.
    """
    if not piece.since:
        return True
    if previous is None or previous.number != piece.since:
        return False
    return previous.files[previous.chains[piece.slot][-1].file].life == life


class CoverFiles:
    """The files of a manifest, without duplicates."""

    def __init__(self) -> None:
        self.listed: list[File] = []
        self._places: dict[str, int] = {}

    def place(self, file: File) -> int:
        if file.name not in self._places:
            self._places[file.name] = len(self.listed)
            self.listed.append(file)
        return self._places[file.name]
