"""Exports checkpoints for serving, once or continuously. An export is full, or has only the changes since an earlier
export.

In: a checkpoint, a URL, and for a delta the number of its base export. Out: an export at the URL (`export_folder`). The
exporter holds only one slot, the dense tensors and some buffers in memory, however large the model is.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from springtide import _native, errors
from springtide.checkpoint.format import checkpoint_io, group_model
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import FileStore, FolderStore, UrlStore
from springtide.domain.model.tables import DenseOutline, Outline, TableOutline, TableSpec
from springtide.embedding.lookup.table_client import native_spec
from springtide.export import export_folder, table_files
from springtide.export.export_folder import ChecksummedFile, ExportCard, TableFile
from springtide.export.table_files import Format, Keys, Rows, Spool, TableSpool
from springtide.export.untrained_rows import UntrainedRows

log = logging.getLogger(__name__)
# number of exports between two full exports. With more deltas an export would be slow to read, because a delta needs
# all exports back to the last full export.
WHOLE_EVERY = 12
# number of full exports to keep, because a reader that has just found the previous full export must still be able to
# read its files
KEPT_WHOLE = 2
Found = dict[int, tuple[Keys, Rows]]
"""Sorted keys and rows, by table."""
NOWHERE = -1
"""Empty index, for a table that the base export lacks."""


def outline_of(place: FileStore, manifest: Manifest) -> Outline:
    if not manifest.outline:
        raise errors.BadInput(f"checkpoint {manifest.number} in {place.where} has no outline of its model")
    return msgspec.msgpack.decode(manifest.outline, type=Outline)


def specs_of(place: FileStore, manifest: Manifest, outline: Outline) -> list[TableSpec]:
    known = {spec.name: spec for spec in manifest.tables}
    for part in outline.tables:
        if part.name not in known:
            raise errors.BadInput(f"checkpoint {manifest.number} in {place.where} lacks the table {part.name!r}")
    return [known[part.name] for part in outline.tables]


class SlotRows:
    """Reads slots from a store, and holds one slot at a time."""

    def __init__(self, place: FileStore, manifest: Manifest) -> None:
        self._place, self._manifest = place, manifest
        self._store = _native.Store(slots=manifest.slots, seed=manifest.seed)
        for spec in manifest.tables:
            self._store.declare(native_spec(spec))

    def read(self, slot: int) -> Found:
        for image in checkpoint_io.images(self._place, self._manifest, slot):
            self._store.import_slot(image)
        found = {spec.id: self._scan(spec, slot) for spec in self._manifest.tables}
        self._store.clear_slot(slot)
        return found

    def _scan(self, spec: TableSpec, slot: int) -> tuple[Keys, Rows]:
        keys, rows = self._store.scan(spec.id, slot)
        order = np.argsort(keys, kind="stable")
        return keys[order], rows.reshape(-1, spec.dim)[order]


class DenseParts:
    """Dense tensors assembled from chunks found in slots. In a bsp group, one table has all dense tensors."""

    def __init__(self, outline: Outline, manifest: Manifest) -> None:
        self._outline = outline
        self._group = {spec.name: spec.id for spec in manifest.tables}.get(group_model.TABLE, NOWHERE)
        tables = [part.table for part in outline.dense] + ([self._group] if outline.group else [])
        self._parts: dict[int, list[tuple[Keys, Rows]]] = {table: [] for table in tables}

    def add(self, found: Found) -> None:
        for table, parts in self._parts.items():
            if table in found and len(found[table][0]):
                parts.append(found[table])

    def tensors(self) -> dict[str, torch.Tensor]:
        joined = {
            table: (np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts]))
            for table, parts in self._parts.items()
            if parts
        }
        nothing = np.empty(0, dtype=np.int64), np.empty((0, 1), dtype=np.float32)
        found = {part.name: _tensor(part, *joined.get(part.table, nothing)) for part in self._outline.dense}
        if self._outline.group:
            found |= _of_group(self._outline.group, *joined.get(self._group, nothing))
        return found


def _of_group(names: tuple[str, ...], keys: Keys, rows: Rows) -> dict[str, torch.Tensor]:
    """Decode the dense model of a bsp group. Ignore surplus rows, which an earlier and longer model left."""
    order = np.argsort(keys)
    count = group_model.rows_after(rows[order[0]]) if len(keys) and keys[order[0]] == 0 else None
    if count is None or (keys[order[: 1 + count]] != np.arange(min(1 + count, len(keys)))).any():
        raise errors.BadInput("the checkpoint lacks dense parameters of its bsp group")
    saved = group_model.decode(group_model.body_of(rows[order[: 1 + count]]))
    if len(saved.dense) != len(names):
        raise errors.BadInput(f"the bsp group saved {len(saved.dense)} dense tensors, its model has {len(names)}")
    return {
        name: group_model.shaped(*saved_tensor) for name, saved_tensor in zip(names, saved.dense, strict=True) if name
    }


def _tensor(part: DenseOutline, keys: Keys, rows: Rows) -> torch.Tensor:
    order = np.argsort(keys)
    wanted = np.arange(part.first, part.first + part.chunks)
    at = np.searchsorted(keys, wanted, sorter=order)
    if len(keys) == 0 or (keys[order[np.minimum(at, len(keys) - 1)]] != wanted).any():
        raise errors.BadInput(f"the checkpoint lacks a part of the dense tensor {part.name!r}")
    flat = torch.from_numpy(rows[order[at]].reshape(-1).copy())
    count = int(np.prod(part.shape, dtype=np.int64))
    return flat[:count].reshape(part.shape).to(getattr(torch, part.dtype))


def why_not_on(url: str, base: ExportCard, manifest: Manifest, tables: list[TableSpec]) -> str:
    """Return the reason why no delta can be built on `base`; empty if a delta is possible."""
    if base.index_crc is None or export_folder.place_for(url, base.number).size(table_files.NAME) is None:
        return "it has no index, because another export already continues it, or an earlier version made it"
    if base.slots != manifest.slots or [(table.outline.name, table.dim) for table in base.tables] != [
        (spec.name, spec.dim) for spec in tables
    ]:
        return "it has other tables"
    return "" if export_folder.is_whole(url, base) else "one of its files is torn or missing"


def make(
    place: FileStore,
    manifest: Manifest,
    url: str,
    *,
    format: Format,
    since: int | None = None,
    progress: Callable[[int], None] = lambda slot: None,
) -> ExportCard:
    """Export this checkpoint, and call `progress` for each slot. Raises `UnusableBase` if no delta on `since` is
    possible."""
    table_files.check(format)
    if since is not None and since >= manifest.number:
        raise table_files.UnusableBase(
            f"--since {since}: the checkpoint is {manifest.number}, so nothing can have changed since. "
            "Wait for a newer checkpoint, or leave out --since"
        )
    outline = outline_of(place, manifest)
    specs = specs_of(place, manifest, outline)
    base = None if since is None else export_folder.read_card(url, since)
    if base is not None and (why := why_not_on(url, base, manifest, specs)):
        raise table_files.UnusableBase(
            f"export {since} at {url} cannot be the base of a delta: {why}. Export everything, without --since"
        )
    there = export_folder.place_for(url, manifest.number)
    # delete the card first: while an existing export is written again, readers must not find it
    there.remove(export_folder.CARD)
    with contextlib.ExitStack() as stack:
        spool = Spool(stack.enter_context(table_files.spool_folder(there)))
        tables = [TableSpool(spool, str(i), spec.dim) for i, spec in enumerate(specs)]
        dense = DenseParts(outline, manifest)
        with there.create(table_files.NAME) as file:
            out, old = ChecksummedFile(file), None
            if base is not None and base.index_crc is not None:
                parts = manifest.slots * len(specs)
                old = table_files.IndexReader(
                    export_folder.place_for(url, base.number), parts=parts, crc=base.index_crc
                )
            _sort_out(SlotRows(place, manifest), manifest.slots, specs, tables, dense, old, out, progress)
        written = tuple(
            _write(there, i, part, spec, manifest.seed, table, format)
            for i, (part, spec, table) in enumerate(zip(outline.tables, specs, tables, strict=True))
        )
    card = ExportCard(
        job=manifest.job,
        number=manifest.number,
        since=since,
        samples=manifest.progress.samples_before + manifest.progress.samples,
        step=manifest.progress.step,
        made_at=time.time(),
        format=format,
        tables=written,
        dense_crc=export_folder.write_dense(there, dense.tensors()),
        left_out=outline.in_workers,
        slots=manifest.slots,
        index_crc=out.crc,
    )
    export_folder.publish(there, card)
    return card


def _sort_out(
    slot_rows: SlotRows,
    slots: int,
    specs: list[TableSpec],
    tables: list[TableSpool],
    dense: DenseParts,
    old: table_files.IndexReader | None,
    out: ChecksummedFile,
    progress: Callable[[int], None],
) -> None:
    """Read each slot once. Spool new and changed rows, and write all keys and checksums of rows to the index."""
    counts: list[int] = []
    nothing = np.empty(0, dtype=np.int64)
    for slot in range(slots):
        found = slot_rows.read(slot)
        for spec, table in zip(specs, tables, strict=True):
            keys, rows = found[spec.id]
            sums = table_files.sums_of(rows)
            out.write(keys.tobytes())
            out.write(sums.tobytes())
            counts.append(len(keys))
            if old is None:
                table.add(keys, rows, nothing)
            else:
                differs, removed = table_files.between(*old.next(), keys, sums)
                table.add(keys[differs], rows[differs], removed)
        dense.add(found)
        progress(slot)
    out.write(np.array(counts, dtype=np.uint32).tobytes())
    if old is not None:
        old.close()


def _write(
    there: FolderStore | UrlStore,
    at: int,
    part: TableOutline,
    spec: TableSpec,
    seed: int,
    table: TableSpool,
    format: Format,
) -> TableFile:
    file = f"table-{at}.{format}"
    with there.create(file) as written:
        out: Any = ChecksummedFile(written)
        table_files.pack(format, table, out)
    table.drop()
    return TableFile(
        outline=part,
        dtype=spec.dtype,
        dim=spec.dim,
        file=file,
        keys=table.rows,
        removed=table.removed,
        crc=out.crc,
        bytes=out.size,
        untrained=UntrainedRows(table=spec.id, seed=seed, init=spec.init),
    )


@dataclass(frozen=True, slots=True)
class DeltaBase:
    """A moment in a job's training: the number of an "export", a "step", a number of "samples", or "last"."""

    unit: str
    count: int


def parse_since(text: str) -> DeltaBase:
    """Parse `7` (an export), `last`, `step:12000` or `samples:1_000_000`."""
    if text.strip() == "last":
        return DeltaBase("last", 0)
    found = re.fullmatch(r"(?:(step|samples):)?(\d[\d_]*)", text.strip())
    if found is None:
        raise errors.BadInput(
            f"--since {text}: expected the number of an export, such as 7, or a point: last, samples:1000000, step:500"
        )
    return DeltaBase(found[1] or "export", int(found[2].replace("_", "")))


def base_of(since: DeltaBase, cards: Sequence[ExportCard], *, before: int) -> int:
    """Return the newest export up to that moment, if it is older than checkpoint `before`. Raise MissingFile if there
    is no such export.
    """
    known = [card for card in cards if card.number < before]
    if since.unit == "step" and known and not any(card.step for card in known):
        raise errors.BadInput(
            f"--since step:{since.count}: these exports have no step, because workers of an async job do not share "
            "one. Use samples:N"
        )
    last = since.unit == "last"
    reached = [card for card in known if last or _reached(card, since.unit) <= since.count]
    if reached:
        return max(reached, key=lambda card: card.number).number
    if last:
        raise errors.MissingFile(f"--since last: no export is older than checkpoint {before}. Export without --since")
    there = ", ".join(f"{card.number} ({since.unit} {_reached(card, since.unit)})" for card in known) or "none"
    raise errors.MissingFile(
        f"--since {since.unit}:{since.count}: no export is that old; exports: {there}. Export without --since"
    )


def _reached(card: ExportCard, unit: str) -> int:
    return card.step if unit == "step" else card.samples


def builds_on(cards: Sequence[ExportCard]) -> int | None:
    """Return the export on which the next export builds; None if the next export must be full. `cards`: oldest
    first.
    """
    for since, card in enumerate(reversed(cards), start=1):
        if card.since is None:
            return cards[-1].number if since < WHOLE_EVERY else None
    return None


def outdated(cards: Sequence[ExportCard]) -> list[int]:
    """Return the exports that no reader needs. `cards`: oldest first."""
    whole = [place for place, card in enumerate(cards) if card.since is None]
    return [card.number for card in cards[: whole[-KEPT_WHOLE]]] if len(whole) > KEPT_WHOLE else []


class ContinuousExport:
    """The exports of one job at one URL. A new process continues with the existing exports."""

    def __init__(
        self, place: FileStore, url: str, *, format: Format = "safetensors", copies: FileStore | None = None
    ) -> None:
        """Open the exports at `url`. `copies` is a second location of the checkpoints, for a job whose servers have
        their own disks.
        """
        self._place, self._url, self._format, self._copies = place, url, format, copies
        self._tidy = False

    def due_s(self, every_s: float, *, now: float) -> float:
        """Return the seconds until the next export is due, counted from the newest export."""
        numbers = export_folder.numbers(self._url)
        if not numbers:
            return 0.0
        return min(every_s, max(0.0, export_folder.read_card(self._url, numbers[0]).made_at + every_s - now))

    def once(self, progress: Callable[[int], None] = lambda slot: None) -> ExportCard | None:
        """Export the newest checkpoint. Return None if there is no checkpoint, or if the newest checkpoint is already
        exported.
        """
        found = self._newest()
        if found.manifest is None:
            if found.troubles:
                raise errors.BadInput("; ".join(found.troubles))
            return None
        manifest = found.manifest
        cards = [export_folder.read_card(self._url, number) for number in export_folder.numbers(self._url)[::-1]]
        for card in cards[-1:]:
            if card.job != manifest.job or card.number > manifest.number:
                raise errors.BadInput(
                    f"{self._url} has export {card.number} of job {card.job!r}; expected exports of job "
                    f"{manifest.job!r} up to {manifest.number}. Choose another place"
                )
            if card.number == manifest.number:
                return None
        # remove leftovers of a killed process only once, because later leftovers belong to this process
        if not self._tidy:
            for number in export_folder.halves(self._url):
                export_folder.remove(self._url, number)
            self._tidy = True
        card = self._make(found.place, manifest, builds_on(cards), progress)
        # delete the index of the older export, because the next delta needs only the newer index
        if card.since is not None:
            export_folder.place_for(self._url, card.since).remove(table_files.NAME)
        for number in outdated([*cards, card]):
            export_folder.remove(self._url, number)
        return card

    def _make(
        self, place: FileStore, manifest: Manifest, since: int | None, progress: Callable[[int], None]
    ) -> ExportCard:
        try:
            return make(place, manifest, self._url, format=self._format, since=since, progress=progress)
        except table_files.UnusableBase as error:
            log.warning("the next export is full: %s", error)
        return make(place, manifest, self._url, format=self._format, progress=progress)

    def _newest(self) -> checkpoint_io.FoundCheckpoint:
        found = [checkpoint_io.latest(place, ()) for place in (self._place, self._copies) if place is not None]
        return max(found, key=lambda candidate: candidate.manifest.number if candidate.manifest is not None else -1)
