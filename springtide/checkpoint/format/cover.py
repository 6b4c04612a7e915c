"""Pure. Combines the images that servers wrote for one checkpoint, and finds missing slots.

In: the last complete manifest, and each server's `Written`. Out: files and chains of the next manifest, or the missing
slots. An increment counts only if the named manifest has an image of the slot by the same incarnation of the server.
Next: `master.checkpoint.round` publishes the manifest.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide.checkpoint.format.manifest import Chain, File, Manifest, SlotSegment, bare, folder_of
from springtide.domain.model.checkpoints import SlotExtent, Written


class Covered(NamedTuple):
    """Files and chains of a manifest. The manifest is complete if `missing` is empty."""

    files: tuple[File, ...]
    chains: tuple[Chain, ...]
    missing: tuple[int, ...]
    apart: dict[str, str] = {}  # noqa: RUF012
    """Folders of servers with their own disks, each with its machine."""


def cover(
    slots: int, previous: Manifest | None, written: Sequence[Written], owners: Mapping[int, str] | None = None
) -> Covered:
    """Combine the images of all slots. If two servers wrote a slot that moved, the image of its owner counts."""
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
        chains.append((*before, SlotSegment(file, piece.offset, piece.length, piece.checksum, not piece.since)))
    missing = tuple(slot for slot in range(slots) if slot not in images)
    copies = {name: f"{report.buddy}/{name}" for report in written if report.buddy for name in report.mirrored}
    listed = tuple(msgspec.structs.replace(file, mirror=copies.get(bare(file.name), "")) for file in files.listed)
    nodes = [(folder_of(report.file), report.node) for report in written] + [
        (report.buddy, report.buddy_node) for report in written
    ]
    used = {folder_of(name) for file in listed for name in (file.name, file.mirror)}
    return Covered(listed, tuple(chains), missing, {folder: node for folder, node in nodes if node and folder in used})


def fits(previous: Manifest | None, life: str, piece: SlotExtent) -> bool:
    """Return True if an image is full, or follows the slot's last image by the same incarnation of the server."""
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
