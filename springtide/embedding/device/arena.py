"""An arena holds the rows and optimizer state of all tables of one kind, side by side in device memory.

In: tables with their first rows. Out: tensors for the kernels, and reads and writes of rows. A row's *image* is its
weights, followed by its optimizer state, as in cpp/store (table_client.py moves images). If device memory has room for
only a part of the rows, the others are in CPU memory (backing.py). Next: kernels.py.
"""

from collections.abc import Sequence

import torch

from springtide.domain.model.tables import OptimSpec
from springtide.embedding.device import kernel_registry, update_rules
from springtide.embedding.device.backing import Backing
from springtide.embedding.device.kernels import IdBatch, Kernels

# most rows of an arena, because a row's key needs one more bit than its place and must fit into an int32
MOST_ROWS = 1 << 30
BUFFER_FLOATS = 1 << 24  # most floats to copy at a time when rows are read


class Arena:
    """Rows of several tables with one row length, row type and optimizer."""

    def __init__(
        self, dim: int, dtype: torch.dtype, optim: OptimSpec, device: torch.device, *, tracks: bool = False
    ) -> None:
        """Create an empty arena. With `tracks`, the arena notes which rows have changed."""
        self.dim, self.optim, self.device = dim, optim, device
        self.weights = torch.empty(0, dim, dtype=dtype, device=device)
        self.vectors, self.number = update_rules.new_state(optim, 0, dim, device)
        self.changed = torch.zeros(0, dtype=torch.bool, device=device) if tracks else None
        """Whether each row has changed since it was written back. Kernels set it."""
        self.backing: Backing | None = None
        """Rows in CPU memory; None if all rows are in device memory. With a backing, `weights` and the state have a
        cell for each row in device memory, in any order."""
        self.version = 0
        """Number of changes to rows so far."""

    @property
    def rows(self) -> int:
        return len(self.weights) if self.backing is None else self.backing.rows

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Weights and state in device memory."""
        return [self.weights, *self.vectors, *([] if self.number is None else [self.number])]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        index = 0 if self.backing is None else self.backing.nbytes
        return sum(tensor.nbytes for tensor in self.tensors) + index

    @property
    def image_floats(self) -> int:
        return self.dim * (1 + len(self.vectors)) + (self.number is not None)

    def grow(self, rows: int) -> int:
        """Add rows with the initial optimizer state and undefined weights. Return the place of the first new row."""
        assert self.backing is None
        first, device = self.rows, self.device
        vectors, number = update_rules.new_state(self.optim, rows, self.dim, device)
        weights = torch.empty(first + rows, self.dim, dtype=self.weights.dtype, device=device)
        weights[:first] = self.weights
        if first:
            vectors = [torch.cat(pair) for pair in zip(self.vectors, vectors, strict=True)]
            number = number if number is None or self.number is None else torch.cat([self.number, number])
        self.weights, self.vectors, self.number = weights, vectors, number
        self._track(rows)
        return first

    def grow_backed(self, rows: int, cells: int) -> int:
        """Add rows to an empty arena, only so many of them in device memory. Raise MemoryError if CPU memory lacks
        room."""
        assert not self.rows
        backing = Backing(rows, cells, self.dim, self.weights.dtype, self.optim, self.device)
        self.grow(cells)
        self.backing = backing
        self._track(rows - cells)
        return 0

    def _track(self, rows: int) -> None:
        if self.changed is not None:
            self.changed = torch.cat([self.changed, torch.zeros(rows, dtype=torch.bool, device=self.device)])

    def read(self, places: torch.Tensor) -> torch.Tensor:
        """Return the weights of these rows as float32 in CPU memory."""
        parts = places.split(max(1, BUFFER_FLOATS // self.dim))
        return torch.cat([self._read(part, [0])[0].float() for part in parts])

    def assign(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Set weights, and give the rows their initial optimizer state."""
        vectors, number = update_rules.new_state(self.optim, len(places), self.dim, torch.device("cpu"))
        self._write(places, [rows, *vectors, *([] if number is None else [number])])
        if self.changed is not None:
            self.changed[places.to(self.device)] = True

    # -- images

    def load(self, first: int, images: torch.Tensor) -> None:
        """Set the rows from place `first` on, with their optimizer state."""
        dim = self.dim
        parts = [images[:, dim * number : dim * (number + 1)] for number in range(1 + len(self.vectors))]
        if self.number is not None:
            parts.append(images[:, -1].contiguous().view(self.number.dtype))
        self._write(torch.arange(first, first + len(images), device="cpu"), parts)

    def images(self, places: torch.Tensor) -> torch.Tensor:
        """Return the images of these rows, in CPU memory."""
        rows = self._read(places, range(len(self.tensors)))
        if self.number is not None:
            rows[-1] = rows[-1].view(torch.float32)[:, None]
        return torch.cat([rows[0].float(), *rows[1:]], 1)

    def _read(self, places: torch.Tensor, chosen: Sequence[int]) -> list[torch.Tensor]:
        """Return these rows of the chosen tensors, in CPU memory. Wait for the device."""
        tensors = [self.tensors[number] for number in chosen]
        if self.backing is None:
            places = places.to(self.device)
            return [tensor[places].cpu() for tensor in tensors]
        here, cells = self.backing.held(places)
        rows = [self.backing.tensors[number][places.cpu()] for number in chosen]
        for values, tensor in zip(rows, tensors, strict=True):
            values[here] = tensor[cells.to(self.device)].cpu()
        return rows

    def _write(self, places: torch.Tensor, rows: Sequence[torch.Tensor]) -> None:
        """Set these rows of all tensors. Wait for the device if there is a backing."""
        self.version += 1
        if self.backing is not None:
            here, cells = self.backing.held(places)
            for tensor, values in zip(self.backing.tensors, rows, strict=True):
                tensor[places.cpu()] = values.cpu().to(tensor.dtype)
            places, rows = cells, [values.cpu()[here] for values in rows]
        places = places.to(self.device)
        for tensor, values in zip(self.tensors, rows, strict=True):
            tensor[places] = values.to(self.device, tensor.dtype)

    # -- lookups and steps, in CPU memory too

    def fetch(self, keys: torch.Tensor, ordered: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return keys for `Kernels.pool`, and rows that are not in device memory."""
        if self.backing is None:
            return keys, None
        return self._kernels.fetch(ordered, keys, self.backing)

    def rows_of(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the weights of these keys as float32 rows, on the device."""
        if self.backing is None:
            return self.weights[keys.long() >> 1].float()
        read, fetched = self.fetch(keys, torch.sort(keys).values)
        batch = IdBatch(read, read, (len(read),), len(read), 1)
        return self._kernels.pool(read, batch, self.weights, None, mean=False, read_skipped=True, fetched=fetched)

    def after_step(self) -> None:
        """Note that a step has trained rows. No lookup may be under way."""
        self.version += 1
        if self.backing is not None:
            self.backing.after_step(self.tensors, self._kernels.exchange)

    @property
    def _kernels(self) -> Kernels:
        return kernel_registry.of_device(self.device.type)
