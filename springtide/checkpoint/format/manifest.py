"""Pure. What a checkpoint is: which bytes of which files are each slot, and the ledger as it was before the copying.

In: `checkpoint.format.cover` makes one of the servers' words. Out: bytes with a checksum of their own, and back. The
file that holds them is renamed into place last, so a checkpoint is there whole or not at all. Next:
`checkpoint.format.reader`.
"""

import re
import struct
import zlib

import msgspec

from springtide import errors
from springtide.domain.data.epochs import EpochPlace
from springtide.domain.model.tables import TableSpec

FORMAT = 3
"""Raised when a field or a slot image changes its meaning. A manifest of another version is refused with both numbers.
"""

_HEAD = struct.Struct("<8sIIQ")  # magic, format, checksum of the body, its length
_MAGIC = b"ST-CKPT\n"
_NAME = re.compile(r"manifest-(\d{6,})\.ckpt")


class File(msgspec.Struct, frozen=True, array_like=True):
    """A segment file beside the manifest, or in a folder beside it."""

    name: str
    life: str
    """The server that wrote it, and which of its lives: server-0.1. Only that one may go on with increments."""
    size: int
    mirror: str = ""
    """A second copy of it, in the folder of another server; empty: there is none."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """One image of one slot."""

    file: int
    """Which of the manifest's files."""
    offset: int
    length: int
    checksum: int
    """As the image itself has it: of all that follows its header."""
    full: bool
    """Whether it stands alone; else it is laid over the one before it."""


Chain = tuple[Segment, ...]
"""A full image and what changed after it, in the order of import."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete checkpoint."""

    job: str
    run: str
    """Identity of the run that made it. Another run does not restore it, unless it goes on from it."""
    number: int
    begun_at: float
    """Time of day at which the ledger was noted; the slots were copied after that."""
    completed_at: float
    slots: int
    seed: int
    samples: int = 0
    """Trained by then, says the ledger."""
    step: int = 0
    """Of a bsp group: everything in it is as it was after this step."""
    era: int = 0
    """Of the ledger when it was noted: how often it had gone back by then."""
    tables: tuple[TableSpec, ...] = ()
    ledger: bytes = b""
    """A `data.ledger.passes.JobProgress` as msgpack: what was acknowledged by all before the first slot was copied."""
    claims: tuple[str, ...] = ()
    """What is done once in a job, and was done: tables have their first weights."""
    objects: dict[int, dict[str, bytes]] = {}
    """States of the user's own objects, by rank and name, as the workers had told them when it began."""
    places: dict[int, EpochPlace] = {}
    """Where in its script each rank was when these states were taken."""
    outline: bytes = b""
    """A `domain.model.outline.Outline` as msgpack: what model the tables are of; empty until a worker has told it."""
    files: tuple[File, ...] = ()
    chains: tuple[Chain, ...] = ()
    """By slot."""
    apart: dict[str, str] = {}
    """Folders of servers, such as server-0, that lie on disks of their own, and the machine of each. The others lie
    beside the manifest."""

    @property
    def name(self) -> str:
        """Of its file."""
        return name_of(self.number)

    @property
    def full(self) -> bool:
        """Whether every slot is one image."""
        return all(len(chain) == 1 for chain in self.chains)

    @property
    def mirrored(self) -> bool:
        """Whether there are two copies of every file."""
        return all(file.mirror for file in self.files)

    @property
    def outlasts_a_host(self) -> bool:
        """Whether the loss of any one machine leaves a copy of every file."""
        return all(self._outlasts(file) for file in self.files)

    def _outlasts(self, file: File) -> bool:
        node = self.apart.get(folder_of(file.name), "")
        return not node or (bool(file.mirror) and self.apart.get(folder_of(file.mirror), "") != node)

    @property
    def bytes_written(self) -> int:
        """What this checkpoint itself wrote."""
        return sum(file.size for file in self.files if number_in(file.name) == self.number)


def name_of(number: int) -> str:
    """The file name of a checkpoint's manifest."""
    return f"manifest-{number:06d}.ckpt"


def number_of(name: str) -> int | None:
    """The checkpoint that a manifest's file name stands for; None: it is no manifest."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def segment_name(life: str, number: int, run: str) -> str:
    """The file of the images that one server life writes for one checkpoint. No two runs have a name in common."""
    return f"{life}-{number:06d}.{run}.seg"


def without_mirrors(manifest: Manifest) -> Manifest:
    """The same checkpoint, with each file once and all in one folder: as a copy elsewhere has it."""
    files = tuple(File(bare(file.name), file.life, file.size) for file in manifest.files)
    return msgspec.structs.replace(manifest, files=files, apart={})


def bare(name: str) -> str:
    """A file's name without the folder of the server that has it."""
    return name.rpartition("/")[2]


def folder_of(name: str) -> str:
    """The folder of the server that has a file; empty: it lies beside the manifest."""
    return name.rpartition("/")[0]


def number_in(name: str) -> int | None:
    """The checkpoint for which a segment file was written; None: it is none."""
    found = re.fullmatch(r".+-(\d{6,})\.[0-9a-z]+\.seg", name)
    return int(found[1]) if found else None


def encode(manifest: Manifest) -> bytes:
    """A manifest as a file's content."""
    body = msgspec.msgpack.encode(manifest)
    return _HEAD.pack(_MAGIC, FORMAT, zlib.crc32(body), len(body)) + body


def decode(content: bytes) -> Manifest:
    """A manifest from a file's content; BadInput says what is wrong with it."""
    if len(content) < _HEAD.size:
        raise errors.BadInput(f"the manifest is cut short: {len(content)} bytes")
    magic, version, checksum, length = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise errors.BadInput("the file is not a manifest of a checkpoint")
    if version != FORMAT:
        raise errors.BadInput(
            f"the manifest has format {version}, from another version of Springtide; this one reads {FORMAT}: use the "
            "version that made it"
        )
    body = content[_HEAD.size :]
    if len(body) != length:
        raise errors.BadInput(f"the manifest is cut short: {len(body)} of {length} bytes")
    if zlib.crc32(body) != checksum:
        raise errors.BadInput("the manifest is damaged: its checksum does not fit")
    try:
        manifest = msgspec.msgpack.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise errors.BadInput(f"the manifest cannot be read: {error}") from error
    check(manifest)
    return manifest


def check(manifest: Manifest) -> None:
    """Refuse what no restore could follow."""
    if len(manifest.chains) != manifest.slots:
        raise errors.BadInput(f"the manifest has {len(manifest.chains)} chains for {manifest.slots} slots")
    for slot, chain in enumerate(manifest.chains):
        if not chain or not chain[0].full or any(segment.full for segment in chain[1:]):
            raise errors.BadInput(f"the manifest's chain of slot {slot} is not one full image with increments after it")
        for segment in chain:
            if not 0 <= segment.file < len(manifest.files):
                raise errors.BadInput(f"the manifest's chain of slot {slot} names a file that it does not list")
            if segment.offset < 0 or segment.offset + segment.length > manifest.files[segment.file].size:
                raise errors.BadInput(f"the manifest's chain of slot {slot} reaches beyond its file")
