"""Makes one export of a checkpoint, slot by slot: full, or the changes since an earlier export.

In: a checkpoint, a URL, and for a delta the card of the base. Out: an export at the URL. Memory holds one slot, the
dense tensors and some buffers, for any size of model. Rows wait on the local disk until their number is known
(`export.row_spool`). Next: `export.continuous` makes repeated exports, `cli.job.export` a single one.
"""

import contextlib
import time
from collections.abc import Callable

import numpy as np

from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import FileStore, FolderStore, UrlStore
from springtide.domain.model.tables import TableOutline, TableSpec
from springtide.export import delta, export_folder, row_index, scratch_folder, table_file
from springtide.export.export_folder import ExportCard, TableFile
from springtide.export.row_spool import Spool, TableSpool
from springtide.export.slot_rows import DenseParts, SlotRows, outline_of, specs_of
from springtide.export.table_file import Format


def why_not_on(url: str, base: ExportCard, manifest: Manifest, tables: list[TableSpec]) -> str:
    """Return why no delta can be built on `base`; empty if one can."""
    if base.index_crc is None or export_folder.place_for(url, base.number).size(row_index.NAME) is None:
        return "it has no index: another export was built on it, or an earlier version made it"
    if base.slots != manifest.slots or [(one.outline.name, one.dim) for one in base.tables] != [
        (spec.name, spec.dim) for spec in tables
    ]:
        return "its tables are others"
    return "" if export_folder.is_whole(url, base) else "a file of it is torn or missing"


def make(
    place: FileStore,
    manifest: Manifest,
    url: str,
    *,
    format: Format,
    since: int | None = None,
    progress: Callable[[int], None] = lambda slot: None,
) -> ExportCard:
    """Export this checkpoint; call `progress` per slot. Raises `UnusableBase` if no delta on `since` is possible."""
    table_file.check(format)
    if since is not None and since >= manifest.number:
        raise row_index.UnusableBase(
            f"--since {since}: the checkpoint is {manifest.number}, so nothing can have changed since. "
            "Wait for a newer one, or leave out --since"
        )
    outline = outline_of(place, manifest)
    specs = specs_of(place, manifest, outline)
    base = None if since is None else export_folder.read_card(url, since)
    if base is not None and (why := why_not_on(url, base, manifest, specs)):
        raise row_index.UnusableBase(
            f"export {since} at {url} cannot be built on: {why}. Make a whole one, without --since"
        )
    there = export_folder.place_for(url, manifest.number)
    # without its card, an export that is made again stays invisible until it is complete
    there.remove(export_folder.CARD)
    with contextlib.ExitStack() as stack:
        spool = Spool(stack.enter_context(scratch_folder.folder_for(there)))
        tables = [TableSpool(spool, str(i), spec.dim) for i, spec in enumerate(specs)]
        dense = DenseParts(outline, manifest)
        with export_folder.writing(there, row_index.NAME) as out:
            old = None
            if base is not None and base.index_crc is not None:
                parts = manifest.slots * len(specs)
                old = row_index.IndexReader(export_folder.place_for(url, base.number), parts=parts, crc=base.index_crc)
            _sort_out(SlotRows(place, manifest), manifest.slots, specs, tables, dense, old, out, progress)
        written = tuple(
            _write(there, i, part, spec, table, format)
            for i, (part, spec, table) in enumerate(zip(outline.tables, specs, tables, strict=True))
        )
    card = ExportCard(
        job=manifest.job,
        number=manifest.number,
        since=since,
        samples=manifest.progress.samples,
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
    old: row_index.IndexReader | None,
    out: export_folder.ChecksummedFile,
    progress: Callable[[int], None],
) -> None:
    """Read each slot once: spool new and changed rows, and write all keys and sums to the index."""
    index = row_index.IndexWriter(out)
    nothing = np.empty(0, dtype=np.int64)
    for slot in range(slots):
        found = slot_rows.read(slot)
        for spec, table in zip(specs, tables, strict=True):
            keys, rows = found[spec.id]
            sums = row_index.sums_of(rows)
            index.add(keys, sums)
            if old is None:
                table.add(keys, rows, nothing)
            else:
                differs, removed = delta.between(*old.next(), keys, sums)
                table.add(keys[differs], rows[differs], removed)
        dense.add(found)
        progress(slot)
    index.close()
    if old is not None:
        old.close()


def _write(
    there: FolderStore | UrlStore, at: int, part: TableOutline, spec: TableSpec, table: TableSpool, format: Format
) -> TableFile:
    file = f"table-{at}.{format}"
    with export_folder.writing(there, file) as out:
        table_file.pack(format, table, out)
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
    )
