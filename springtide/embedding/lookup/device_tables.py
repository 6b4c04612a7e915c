"""Tables whose rows are in GPU memory, because one process trains all of them: placement, reads, writes and updates.

In: served tables of a model on a GPU. Out: each table's `place` in an arena. In a job with servers, also the changed
rows, which worker/step/bsp_step.py writes back. If GPU memory lacks room, the less frequent rows are in the CPU memory
of this process. Tables that cannot be placed stay in the tables of this process or of the servers; a log line gives
the reason. Next: embedding/lookup/device_lookup.py.
"""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from springtide import errors
from springtide.domain.core.resources import show_memory
from springtide.domain.model.cache_rules import CacheUse
from springtide.domain.model.tables import TableSpec
from springtide.embedding.device import pinned
from springtide.embedding.device.arena import MOST_ROWS, Arena
from springtide.embedding.device.backing import INDEX_BYTES
from springtide.embedding.lookup.row_gradients import DeviceGradients
from springtide.embedding.lookup.tables import ServedTable, TablePlace, place_of

log = logging.getLogger(__name__)
MOST_LAYOUTS = 64
PUSHES_A_POLL = 4
SHARE_OF_FREE = 0.8
"""Share of the GPU's free memory that rows may take. The dense part and the batch need the rest."""
SHARE_OF_CPU = 0.8
"""Share of the free CPU memory that rows may take."""
MOST_CELLS = MOST_ROWS * 3 // 4
"""Most rows in GPU memory, if further rows are in CPU memory. The places after these rows are for the fetched rows of a
batch.
"""
WRITE_BYTES = 1 << 27
"""Bytes of changed rows that are written back at a time."""
ReadImages = Callable[[str, npt.NDArray[Any], int], npt.NDArray[Any]]
"""Function that returns the images of rows outside of device memory, given the table, ids, and floats of an image."""


class ChangedRows(NamedTuple):
    """Some changed rows of one table."""

    table: TableSpec
    ids: npt.NDArray[np.int64]
    images: npt.NDArray[np.float32]


class DeviceTables:
    """All tables of one model that are in device memory."""

    def __init__(
        self,
        tables: Sequence[ServedTable],
        *,
        of_servers: bool = False,
        permitted: Callable[[], bool] = lambda: True,
        most_bytes: int | None = None,
        most_share: float | None = None,
    ) -> None:
        """Create an empty collection. `of_servers`: record which rows change, because servers must get these rows back.
        `permitted` says whether this process trains all rows. Rows take at most `most_bytes` of GPU memory; None means
        a share of the free memory. At most `most_share` of all rows are in GPU memory.
        """
        self.tables = list(tables)
        self.by_name: dict[str, ServedTable] = {}
        self._looked_up = self._changed_bytes = self._write_backs = 0
        self._of_servers, self._permitted = of_servers, permitted
        self._most_bytes, self._most_share = most_bytes, most_share
        self.layouts: dict[Any, Any] = {}
        """Layouts of lookups. device_lookup.py adds the layouts."""
        self._waiting = list(tables)
        self._pushes = 0
        self._arenas: dict[Any, Arena] = {}
        self._flags: dict[torch.device, DeviceFlags] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of device memory of all rows and their optimizer state."""
        return sum(arena.nbytes for arena in self._arenas.values())

    def flags(self, device: torch.device) -> "DeviceFlags":
        if device not in self._flags:
            self._flags[device] = DeviceFlags(device)
        return self._flags[device]

    # -- placement

    def place(self, read: ReadImages) -> bool:
        """If the model is on a GPU, move the rows of its tables to that GPU. Return True if rows have moved."""
        if not self._waiting or all(table.gpu is None for table in self._waiting) or not self._permitted():
            return False
        ready = [table for table in self._waiting if table.gpu is not None]
        self._waiting = [table for table in self._waiting if table.gpu is None]
        groups: dict[Any, list[ServedTable]] = {}
        for table in ready:
            reason = table.on_cpu or _reason(table)
            if reason:
                log.warning("the rows of table %r stay in CPU memory, because %s", table.name, reason)
            else:
                spec = table.spec
                groups.setdefault((spec.dim, spec.dtype, spec.optim, table.gpu), []).append(table)
        before = len(self.by_name)
        # place the smallest kinds first, so that they leave room for the larger ones
        ordered = sorted(groups.items(), key=lambda group: group[0][0] * _row_count(group[1]))
        for number, (key, members) in enumerate(ordered):
            try:
                self._fill(key, members, read, self._free(key[-1]) // (len(ordered) - number))
            except MemoryError as error:
                _leave(members, str(error))
            except torch.cuda.OutOfMemoryError:
                _leave(members, f"the GPU lacks memory for {_row_count(members)} rows")
        return len(self.by_name) > before

    def release(self) -> None:
        """Take all rows out of device memory, because other processes are going to train them too. The changed rows
        must be on the servers."""
        assert not self.changed
        for table in self.by_name.values():
            table.place = None
        self._waiting = list(self.tables)
        self.by_name.clear()
        self.layouts.clear()
        self._arenas.clear()

    def _fill(self, key: Any, members: Sequence[ServedTable], read: ReadImages, room: int) -> None:
        """Move the rows of tables of one kind into at most `room` bytes of GPU memory."""
        dim, dtype, optim, device = key
        arena = self._arenas.get(key) or Arena(dim, getattr(torch, dtype), optim, device, tracks=self._of_servers)
        total = _row_count(members)
        if arena.rows + total > MOST_ROWS:
            _leave(members, f"one kind has at most {MOST_ROWS} rows on a GPU")
            return
        needed, share = 4 * total * arena.image_floats, 1 if self._most_share is None else self._most_share
        if needed <= room and share >= 1:
            place = arena.grow(total)
        else:
            cells = min((room - INDEX_BYTES * total) // (4 * arena.image_floats), int(share * total), MOST_CELLS)
            if reason := _no_backing(arena, needed, cells):
                _leave(
                    members, f"{reason}; they take {show_memory(needed)}, and may take {show_memory(room)} on the GPU"
                )
                return
            place = arena.grow_backed(total, cells)
            log.warning(
                "GPU memory has the most frequent %d of %d rows of %s, in %s (%s). The other rows are in the CPU "
                "memory of this process, which takes %s for all rows",
                *(cells, total, _names(members), show_memory(cells * 4 * arena.image_floats), self._limit),
                show_memory(needed),
            )
        self._arenas[key] = arena
        for table in members:
            count = table.request.rows
            chunk = max(1, (1 << 24) // arena.image_floats)
            # without servers, the job assigns all rows after this call
            covered = not self._of_servers and table.initial is not None and table.initial_keys is None
            for first in range(0, 0 if covered else count, chunk):
                ids = np.arange(first, min(first + chunk, count))
                arena.load(place + first, torch.from_numpy(read(table.name, ids, arena.image_floats)))
            table.place = TablePlace(arena, place)
            self.by_name[table.name] = table
            place += count

    @property
    def _limit(self) -> str:
        """Return what limits the GPU memory of rows."""
        given = self._most_bytes is not None or self._most_share is not None
        return "the cache that was asked for" if given else f"{SHARE_OF_FREE:.0%} of the free memory"

    def _free(self, device: torch.device) -> int:
        """Return how many more bytes rows may take on this device."""
        if self._most_bytes is not None:
            return max(0, self._most_bytes - self.nbytes)
        return int(SHARE_OF_FREE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else MOST_ROWS

    # -- rows by name

    def read(self, name: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        table, places = self._places(name, ids)
        rows: npt.NDArray[np.float32] = table.arena.read(places).numpy()
        self.poll(wait=True)
        return rows

    def assign(self, name: str, ids: npt.NDArray[np.int64], rows: npt.NDArray[Any]) -> None:
        table, places = self._places(name, ids)
        table.arena.assign(places, torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)))
        self._note_changed(len(ids), table.arena)

    def _places(self, name: str, ids: npt.NDArray[np.int64]) -> tuple[TablePlace, torch.Tensor]:
        table = self.by_name[name]
        rows, place = table.request.rows, place_of(table)
        if len(ids) and (ids.min() < 0 or ids.max() >= rows):
            raise errors.BadInput(f"table {name!r}: ids from {ids.min()} to {ids.max()}; expected 0 to {rows - 1}")
        return place, torch.from_numpy(ids) + place.first

    # -- updates

    def push(self, parts: Sequence[DeviceGradients], hyper: Iterable[tuple[int, float, float, int]]) -> None:
        """Make one optimizer step for the rows of all parts on the device. Make no step if a gradient of any part is
        not finite.
        """
        by_table = {table: (lr, decay, step) for table, lr, decay, step in hyper}
        for part in parts:
            part.note_bad(self.flags(part.arena.device).bad)
        for part in parts:
            part.train(by_table, self.flags(part.arena.device).bad)
            self._note_changed(len(part.keys), part.arena)
            self._looked_up += len(part.keys)
        for arena in {id(part.arena): part.arena for part in parts}.values():
            arena.after_step()
        self._pushes += 1
        if self._pushes % PUSHES_A_POLL == 0:
            self.poll()

    def poll(self, *, wait: bool = False) -> None:
        """Raise an error if the device has found an invalid id or gradient. Do not wait for the device unless `wait` is
        set."""
        for flags in self._flags.values():
            invalid, bad = flags.read(wait=wait)
            if invalid or bad:
                flags.clear()
            if invalid:
                raise errors.BadInput(
                    f"an id of a recent batch is outside its table: {self._features[invalid]}. The row was read as "
                    f"zeros. "
                    "Ids must be 0 or more, and below the number of rows (use st.hash_ids for strings)"
                )
            if bad:
                raise errors.NonFiniteGradient(
                    "a gradient of a recent step on the GPU has NaN or infinity. Rows of tables have not changed "
                    "since, but dense parameters have. Lower the learning rate, clip gradients, or look at the batch"
                )

    # -- rows that servers do not have

    @property
    def changed(self) -> bool:
        """Return True if rows on servers lack changes that were made in device memory."""
        return self._changed_bytes > 0

    def changed_rows(self) -> Iterator[list[ChangedRows]]:
        """Return the changed rows in portions. A portion counts as written when the next one is requested."""
        portion: list[ChangedRows] = []
        for rows in self._changed_by_table():
            portion.append(rows)
            if sum(rows.images.nbytes for rows in portion) >= WRITE_BYTES:
                yield portion
                self._note_written(portion)
                portion = []
        if portion:
            yield portion
            self._note_written(portion)
        self._changed_bytes = 0
        self._write_backs += 1

    def _changed_by_table(self) -> Iterator[ChangedRows]:
        for table in self.by_name.values():
            place = place_of(table)
            arena, first = place.arena, place.first
            assert arena.changed is not None
            ids = arena.changed[first : first + table.request.rows].nonzero().squeeze(1)
            for part in ids.split(max(1, WRITE_BYTES // (4 * arena.image_floats))):
                if len(part):
                    yield ChangedRows(table.spec, part.cpu().numpy(), arena.images(part + first).numpy())

    def _note_changed(self, count: int, arena: Arena) -> None:
        if self._of_servers:
            self._changed_bytes += 4 * count * arena.image_floats

    def _note_written(self, portion: Sequence[ChangedRows]) -> None:
        for rows in portion:
            place = place_of(self.by_name[rows.table.name])
            assert place.arena.changed is not None
            place.arena.changed[torch.from_numpy(rows.ids).to(place.arena.device) + place.first] = False

    def use(self) -> CacheUse:
        """Return what users see: a cache in GPU memory. A row that a step found in CPU memory counts as pulled."""
        rows = _row_count(self.by_name.values())
        backings = [arena.backing for arena in self._arenas.values() if arena.backing is not None]
        cells = rows - sum(backing.rows - backing.capacity for backing in backings)
        missed = sum(backing.seen_missed for backing in backings)
        held = "all" if cells == rows else f"{cells:,} of {rows:,}"
        return CacheUse(
            on=True,
            why=f"{held} rows of {len(self.by_name)} tables are in the GPU memory of this worker, which trains alone",
            rows=cells,
            size=self.nbytes,
            dirty=min(self._changed_bytes, sum(4 * arena.rows * arena.image_floats for arena in self._arenas.values())),
            hits=max(0, self._looked_up - missed),
            pulled=missed,
            flushes=self._write_backs,
        )

    @property
    def _features(self) -> dict[int, str]:
        return {1 + table.spec.id: f"table {table.name!r}, {table.request.rows} rows" for table in self.tables}


class DeviceFlags:
    """Marks that kernels set on one device. This process reads the marks without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self.status = torch.zeros(2, device=device)
        """1 + the table with an invalid id; 1 or NaN after a non-finite gradient."""
        self.invalid, self.bad = self.status[:1], self.status[1:]
        self._cuda = device.type == "cuda"
        self._seen = torch.zeros(2, device="cpu", pin_memory=self._cuda)
        self._copied: Any = torch.cuda.Event() if self._cuda else None
        self._under_way = False

    def copy(self) -> None:
        """Start to copy the marks to this process, unless a copy is in progress."""
        if self._cuda and not self._under_way:
            self._seen.copy_(self.status, non_blocking=True)
            self._copied.record()
            self._under_way = True

    def read(self, *, wait: bool = False) -> tuple[int, bool]:
        """Return the marks from the last finished copy."""
        if not self._cuda or wait:
            self._seen.copy_(self.status)
            self._under_way = False
        elif self._under_way and self._copied.query():
            self._under_way = False
        if self._under_way:
            return 0, False
        invalid, bad = self._seen.tolist()
        self.copy()
        return int(invalid), bad != 0

    def clear(self) -> None:
        if self._cuda:
            self._copied.synchronize()
        self.status.zero_()
        self._seen.zero_()
        self._under_way = False


def _row_count(tables: Iterable[ServedTable]) -> int:
    return sum(table.request.rows for table in tables)


def _names(members: Sequence[ServedTable]) -> str:
    return ", ".join(repr(table.name) for table in members)


def _leave(members: Sequence[ServedTable], reason: str) -> None:
    log.warning("the rows of %s stay in CPU memory or on servers: %s", _names(members), reason)


def _no_backing(arena: Arena, needed: int, cells: int) -> str:
    """Return why a part of the rows cannot be in CPU memory that the GPU uses; empty if it can."""
    if arena.rows:
        return "other rows of their kind are already in GPU memory"
    if cells < 1:
        return "GPU memory lacks room for the index of the rows"
    if arena.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "without Triton, the GPU cannot use rows in CPU memory"
    if needed > SHARE_OF_CPU * (free := pinned.free_bytes()):
        return f"CPU memory has only {show_memory(free)} free"
    return ""


def _reason(table: ServedTable) -> str:
    spec = table.spec
    if not table.request.rows:
        return "the table has no row count"
    if spec.min_count > 1 or spec.ttl or spec.capacity_rows:
        return "rows in GPU memory have no min_count, ttl or capacity"
    return ""
