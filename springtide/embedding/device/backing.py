"""All rows of an arena in CPU memory, if GPU memory has room for only a part of them.

A row in GPU memory has a *cell* there, and its copy in CPU memory is out of date. Kernels read and write the other rows
in CPU memory directly. Every few steps, rows that are trained often take the cells of rows that are trained rarely.
The GPU knows the cell of each row and decides this itself, so no step waits for it. Next: kernels.py.
"""

from collections.abc import Callable

import torch

from springtide.domain.model.tables import OptimSpec
from springtide.embedding.device import pinned, update_rules

STEPS_AN_EXCHANGE = 16
STEPS_A_HALVING = 1024
"""Steps after which all counts of uses are halved, so that rows that are no longer used lose their cells."""
WINDOW = 1 << 22
MOST_WINDOWS = 64
"""An exchange looks at `WINDOW` rows and cells, or at all of them divided by `MOST_WINDOWS` if that is more."""
SHARE_EXCHANGED = 32
"""An exchange gives cells to at most one in this many rows of its window."""
INDEX_BYTES = 6
"""Bytes of GPU memory that a row's cell number and its count of uses need."""
Exchange = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]], None]
"""`Kernels.exchange`."""


class Backing:
    """Rows and optimizer state in CPU memory, and the cells of the rows that are in GPU memory."""

    def __init__(
        self, rows: int, cells: int, dim: int, dtype: torch.dtype, optim: OptimSpec, device: torch.device
    ) -> None:
        """Create rows with the initial optimizer state and undefined weights. Every n-th row gets a cell."""
        self.rows, self.capacity = rows, cells
        vectors, number = update_rules.new_state(optim, 1, dim, torch.device("cpu"))
        self.weights = pinned.empty((rows, dim), dtype, device)
        self.vectors = [pinned.empty((rows, dim), vector.dtype, device).copy_(vector) for vector in vectors]
        self.number = None if number is None else pinned.empty((rows,), number.dtype, device).copy_(number)
        # these tensors have an additional last entry for no row and no cell, to which kernels write instead of skipping
        self.cells = torch.full((rows + 1,), cells, dtype=torch.int32, device=device)
        """Cell of each row, on the device. `capacity` or more means that the row is in CPU memory."""
        self.row_in = torch.zeros(cells + 1, dtype=torch.int32, device=device)
        """Row in each cell."""
        self.uses = torch.zeros(rows + 1, dtype=torch.int16, device=device)
        """Recent steps that trained each row. Kernels count them."""
        self.missed = torch.zeros(1, dtype=torch.int64, device=device)
        """Ids of lookups whose rows were in CPU memory. Kernels count them."""
        self._seen = torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self._steps = self._row_at = self._cell_at = 0
        for first in range(0, cells, WINDOW):
            cell = torch.arange(first, min(first + WINDOW, cells), device=device)
            held = cell * rows // cells
            self.row_in[cell], self.cells[held] = held.int(), cell.int()

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory of the index."""
        return self.cells.nbytes + self.row_in.nbytes + self.uses.nbytes

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Weights and state in CPU memory, in the order of `Arena.tensors`."""
        return [self.weights, *self.vectors, *([] if self.number is None else [self.number])]

    @property
    def seen_missed(self) -> int:
        """`missed` a few steps ago."""
        return int(self._seen)

    def held(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of these rows have cells, and their cells. Both arrays are in CPU memory, so this waits for the
        device."""
        cells = self.cells[places.to(self.cells.device)].cpu().long()
        here = cells < self.capacity
        return here, cells[here]

    def after_step(self, in_gpu: list[torch.Tensor], exchange: Exchange) -> None:
        """Note that a step has trained rows, and exchange rows if it is time. No lookup may be under way."""
        self._steps += 1
        if self._steps % STEPS_AN_EXCHANGE == 0:
            self._exchange(in_gpu, exchange)
            self._seen.copy_(self.missed, non_blocking=True)
        if self._steps % STEPS_A_HALVING == 0:
            self.uses >>= 1

    def _exchange(self, in_gpu: list[torch.Tensor], exchange: Exchange) -> None:
        """Give cells to the most used rows of the next window of rows that have none. Such a row takes the cell of one
        of the least used rows in the next window of cells, if it is used more than twice as often.
        """
        first, self._row_at = _window(self._row_at, self.rows)
        rows = slice(first, self._row_at or self.rows)
        first_cell, self._cell_at = _window(self._cell_at, self.capacity)
        cells = slice(first_cell, self._cell_at or self.capacity)
        uses, row_in = self.uses[rows], self.row_in[cells]
        count = min(len(uses), len(row_in), max(1, len(uses) // SHARE_EXCHANGED))
        wanted, entering = uses.where(self.cells[rows] >= self.capacity, -1).int().topk(count)
        kept, cell = self.uses[row_in.long()].int().topk(count, largest=False)
        entering, cell = entering + first, cell + first_cell
        leaving = self.row_in[cell].long()
        better = wanted > 2 * kept + 1
        exchange(entering.where(better, -1), leaving, cell, in_gpu, self.tensors)
        none = torch.full_like(cell, self.capacity)
        self.cells[leaving.where(better, self.rows)] = none.int()
        self.cells[entering.where(better, self.rows)] = cell.where(better, none).int()
        self.row_in[cell.where(better, self.capacity)] = entering.int()


def _window(begin: int, total: int) -> tuple[int, int]:
    """Return where the next window begins and where the window after it begins."""
    end = begin + max(WINDOW, -(-total // MOST_WINDOWS))
    return begin, end if end < total else 0
