"""Pure. Puts together what servers have written for one checkpoint: is every slot covered, and by which images?

In: the last complete manifest, and each server's `Written`. Out: files and chains of the next manifest, or the slots
that are missing. An increment counts only after an image of the same server life in the manifest that it names.
Next: `master.checkpoint.round` publishes it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide.checkpoint.format.manifest import Chain, File, Manifest, Segment, bare, folder_of
from springtide.domain.model.checkpoints import SlotExtent, Written


class Covered(NamedTuple):
    """Files and chains of a manifest; with `missing` slots they are not one yet."""

    files: tuple[File, ...]
    chains: tuple[Chain, ...]
    missing: tuple[int, ...]
    apart: dict[str, str] = {}  # noqa: RUF012
    """Folders of servers with disks of their own, and their machines."""


def cover(
    slots: int, previous: Manifest | None, written: Sequence[Written], owners: Mapping[int, str] | None = None
) -> Covered:
    """The chains of all slots. Where two servers have one (it moved meanwhile), that of its owner counts."""
    found: dict[int, tuple[Written, SlotExtent]] = {}
    for one in written:
        for piece in one.pieces:
            if fits(previous, one.life, piece) and (
                piece.slot not in found or (owners or {}).get(piece.slot) == one.life
            ):
                found[piece.slot] = one, piece
    files = Files()
    chains: list[Chain] = []
    for slot in range(slots):
        if slot not in found:
            chains.append(())
            continue
        one, piece = found[slot]
        before: tuple[Segment, ...] = ()
        if piece.since:
            assert previous is not None
            before = tuple(
                msgspec.structs.replace(segment, file=files.place(previous.files[segment.file]))
                for segment in previous.chains[slot]
            )
        file = files.place(File(one.file, one.life, one.size))
        chains.append((*before, Segment(file, piece.offset, piece.length, piece.checksum, not piece.since)))
    missing = tuple(slot for slot in range(slots) if slot not in found)
    copies = {name: f"{one.buddy}/{name}" for one in written if one.buddy for name in one.mirrored}
    listed = tuple(msgspec.structs.replace(file, mirror=copies.get(bare(file.name), "")) for file in files.listed)
    nodes = [(folder_of(one.file), one.node) for one in written] + [(one.buddy, one.buddy_node) for one in written]
    used = {folder_of(name) for file in listed for name in (file.name, file.mirror)}
    return Covered(listed, tuple(chains), missing, {folder: node for folder, node in nodes if node and folder in used})


def fits(previous: Manifest | None, life: str, piece: SlotExtent) -> bool:
    """Whether an image stands alone, or follows the last one of its slot and was written by the same server life."""
    if not piece.since:
        return True
    if previous is None or previous.number != piece.since:
        return False
    return previous.files[previous.chains[piece.slot][-1].file].life == life


class Files:
    """The files of a manifest, each once."""

    def __init__(self) -> None:
        self.listed: list[File] = []
        self._places: dict[str, int] = {}

    def place(self, file: File) -> int:
        """Its number."""
        if file.name not in self._places:
            self._places[file.name] = len(self.listed)
            self.listed.append(file)
        return self._places[file.name]
