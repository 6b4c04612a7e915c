"""Exports a job's checkpoints continuously: deltas, with a full export now and then.

In: the place of a job's checkpoints. Out: exports at a URL (export_folder.py). Readers see only complete exports. Old
exports are deleted; the last two full exports and all deltas on them stay readable.
"""

import logging
from collections.abc import Callable, Sequence

from springtide import errors
from springtide.checkpoint.format import reader
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import FileStore
from springtide.export import export_folder, exporter, row_index
from springtide.export.export_folder import ExportCard
from springtide.export.table_file import Format

log = logging.getLogger(__name__)
WHOLE_EVERY = 12  # a reader of a delta must read all exports back to the last full one
KEPT_WHOLE = 2  # a reader that has just found the previous full export must still be able to read it


def builds_on(cards: Sequence[ExportCard]) -> int | None:
    """Return the export that the next one builds on, None for a full one. `cards`: oldest first."""
    for since, card in enumerate(reversed(cards), start=1):
        if card.since is None:
            return cards[-1].number if since < WHOLE_EVERY else None
    return None


def outdated(cards: Sequence[ExportCard]) -> list[int]:
    """Return the exports that no reader needs. `cards`: oldest first."""
    whole = [place for place, card in enumerate(cards) if card.since is None]
    return [card.number for card in cards[: whole[-KEPT_WHOLE]]] if len(whole) > KEPT_WHOLE else []


class ContinuousExport:
    """Exports of one job at one URL. A new process continues with the existing exports."""

    def __init__(
        self, place: FileStore, url: str, *, format: Format = "safetensors", copies: FileStore | None = None
    ) -> None:
        """Open the exports at `url`. `copies` is a second place for checkpoints that are on the servers' disks."""
        self._place, self._url, self._format, self._copies = place, url, format, copies
        self._tidy = False

    def due_s(self, every_s: float, *, now: float) -> float:
        """Return the seconds until the next export is due, counted from the newest export."""
        newest = export_folder.numbers(self._url)[:1]
        return (
            min(every_s, max(0.0, export_folder.read_card(self._url, newest[0]).made_at + every_s - now))
            if newest
            else 0.0
        )

    def once(self, progress: Callable[[int], None] = lambda slot: None) -> ExportCard | None:
        """Export the newest checkpoint; None if there is none or it is exported already."""
        found = self._newest()
        if found.manifest is None:
            if found.troubles:
                raise errors.BadInput("; ".join(found.troubles))
            return None
        manifest, cards = (
            found.manifest,
            [export_folder.read_card(self._url, one) for one in export_folder.numbers(self._url)[::-1]],
        )
        for card in cards[-1:]:
            if card.job != manifest.job or card.number > manifest.number:
                raise errors.BadInput(
                    f"{self._url} has export {card.number} of job {card.job!r}, which is not one of job "
                    f"{manifest.job!r} up to {manifest.number}; choose another place"
                )
            if card.number == manifest.number:
                return None
        if not self._tidy:  # remove once what a killed process left; later leftovers are our own
            for number in export_folder.halves(self._url):
                export_folder.remove(self._url, number)
            self._tidy = True
        card = self._make(found.place, manifest, builds_on(cards), progress)
        if card.since is not None:  # only the newer index is needed
            export_folder.place_for(self._url, card.since).remove(row_index.NAME)
        for number in outdated([*cards, card]):
            export_folder.remove(self._url, number)
        return card

    def _make(
        self, place: FileStore, manifest: Manifest, since: int | None, progress: Callable[[int], None]
    ) -> ExportCard:
        try:
            return exporter.make(place, manifest, self._url, format=self._format, since=since, progress=progress)
        except row_index.UnusableBase as error:
            log.warning("the next export is whole: %s", error)
        return exporter.make(place, manifest, self._url, format=self._format, progress=progress)

    def _newest(self) -> reader.FoundCheckpoint:
        found = [reader.latest(place, ()) for place in (self._place, self._copies) if place is not None]
        return max(found, key=lambda one: one.manifest.number if one.manifest is not None else -1)
