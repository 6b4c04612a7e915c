"""Tables whose rows are in GPU memory, in a job without servers: placement, reads, writes and updates.

In: served tables of a model on a GPU. Out: each table's `place` in an arena. Tables that cannot be placed in GPU memory
stay in the native tables of this process; a log line gives the reason. Next: embedding/lookup/device_lookup.py.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from springtide import errors
from springtide.embedding.device.arena import MOST_ROWS, Arena
from springtide.embedding.lookup.row_gradients import DeviceGradients
from springtide.embedding.lookup.tables import ServedTable, TablePlace

log = logging.getLogger(__name__)
MOST_LAYOUTS = 64
PUSHES_A_POLL = 4
ReadRows = Callable[[str, npt.NDArray[Any]], npt.NDArray[Any]]


class DeviceTables:
    """All tables of one model that are in device memory."""

    def __init__(self, tables: Sequence[ServedTable]) -> None:
        self.tables = list(tables)
        self.by_name: dict[str, ServedTable] = {}
        self.layouts: dict[Any, Any] = {}
        """Layouts of lookups. device_lookup.py fills it."""
        self._waiting = list(tables)
        self._pushes = 0
        self._arenas: dict[Any, Arena] = {}
        self._flags: dict[torch.device, DeviceFlags] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of device memory of all rows and their optimizer state."""
        arenas = self._arenas.values()
        tensors = (tensor for arena in arenas for tensor in (arena.weights, *arena.vectors, arena.number))
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def flags(self, device: torch.device) -> "DeviceFlags":
        if device not in self._flags:
            self._flags[device] = DeviceFlags(device)
        return self._flags[device]

    # -- placement

    def place(self, read: ReadRows, *, trained: bool) -> None:
        """If the model is on a GPU, move the rows of its tables to that GPU. `read` reads rows of the native tables,
        and `trained` says whether these are already trained.
        """
        if not self._waiting or all(table.gpu is None for table in self._waiting):
            return
        ready = [table for table in self._waiting if table.gpu is not None]
        self._waiting = [table for table in self._waiting if table.gpu is None]
        groups: dict[Any, list[ServedTable]] = {}
        for table in ready:
            reason = table.on_cpu or _reason(table, trained=trained)
            if reason:
                log.warning("the rows of table %r stay in CPU memory, because %s", table.name, reason)
            else:
                spec = table.spec
                groups.setdefault((spec.dim, spec.dtype, spec.optim, table.gpu), []).append(table)
        for key, members in groups.items():
            try:
                self._fill(key, members, read)
            except torch.cuda.OutOfMemoryError:
                names, total = ", ".join(repr(table.name) for table in members), sum(t.request.rows for t in members)
                log.warning("the rows of %s stay in CPU memory: the GPU lacks memory for %d rows", names, total)

    def _fill(self, key: Any, members: Sequence[ServedTable], read: ReadRows) -> None:
        dim, dtype, optim, device = key
        arena = self._arenas.get(key) or Arena(dim, getattr(torch, dtype), optim, device)
        total = sum(table.request.rows for table in members)
        if arena.rows + total > MOST_ROWS:
            log.warning("%d tables stay in CPU memory: one kind has at most %d rows on a GPU", len(members), MOST_ROWS)
            return
        place = arena.grow(total)
        self._arenas[key] = arena
        for table in members:
            count = table.request.rows
            chunk = max(1, (1 << 24) // dim)
            # the job assigns all rows after this call
            covered = table.initial is not None and table.initial_keys is None
            for first in range(0, 0 if covered else count, chunk):
                ids = np.arange(first, min(first + chunk, count))
                rows = torch.from_numpy(read(table.name, ids))
                arena.weights[place + first : place + first + len(ids)] = rows.to(device, arena.weights.dtype)
            table.place = TablePlace(arena, place)
            self.by_name[table.name] = table
            place += count

    # -- rows by name

    def read(self, name: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        table, places = self._places(name, ids)
        rows: npt.NDArray[np.float32] = table.arena.read(places).numpy()
        self.poll(wait=True)
        return rows

    def assign(self, name: str, ids: npt.NDArray[np.int64], rows: npt.NDArray[Any]) -> None:
        table, places = self._places(name, ids)
        table.arena.assign(places, torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)))

    def _places(self, name: str, ids: npt.NDArray[np.int64]) -> tuple[TablePlace, torch.Tensor]:
        table = self.by_name[name]
        rows, place = table.request.rows, table.place
        assert place is not None
        if len(ids) and (ids.min() < 0 or ids.max() >= rows):
            raise errors.BadInput(f"table {name!r}: ids from {ids.min()} to {ids.max()}; expected 0 to {rows - 1}")
        return place, torch.from_numpy(ids) + place.first

    # -- updates

    def push(self, parts: Sequence[DeviceGradients], hyper: Iterable[tuple[int, float, float, int]]) -> None:
        """Make one optimizer step for the rows of all parts on the device, unless a gradient of any part is not
        finite."""
        by_table = {table: (lr, decay, step) for table, lr, decay, step in hyper}
        for part in parts:
            part.note_bad(self.flags(part.arena.device).bad)
        for part in parts:
            part.train(by_table, self.flags(part.arena.device).bad)
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

    @property
    def _features(self) -> dict[int, str]:
        return {1 + table.spec.id: f"table {table.name!r}, {table.request.rows} rows" for table in self.tables}


class DeviceFlags:
    """Marks that kernels set on one device. This process reads them without waiting for the device."""

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


def _reason(table: ServedTable, *, trained: bool) -> str:
    spec = table.spec
    if not table.request.rows:
        return "the table has no row count"
    if spec.min_count > 1 or spec.ttl or spec.capacity_rows:
        return "rows in GPU memory have no min_count, ttl or capacity"
    if trained:
        return "the model moved to the GPU after its first step. Move the model before the first step"
    return ""
