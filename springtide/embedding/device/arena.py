"""An arena holds the rows and optimizer state of all tables of one kind, side by side in device memory.

In: tables with their first rows. Out: tensors for the kernels, and reads and writes of rows. A row's *image* is its
weights, followed by its optimizer state, as in cpp/store (table_client.py moves images). Next: kernels.py.
"""

import torch

from springtide.domain.model.tables import OptimSpec
from springtide.embedding.device import update_rules

# most rows of an arena, because a row's key needs one more bit than its place and must fit into an int32
MOST_ROWS = 1 << 30
BUFFER_FLOATS = 1 << 24  # number of floats that a read of rows moves at a time


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

    @property
    def rows(self) -> int:
        return len(self.weights)

    @property
    def image_floats(self) -> int:
        return self.dim * (1 + len(self.vectors)) + (self.number is not None)

    def grow(self, rows: int) -> int:
        """Add rows with the initial optimizer state and undefined weights. Return the place of the first new row."""
        first, device = self.rows, self.device
        vectors, number = update_rules.new_state(self.optim, rows, self.dim, device)
        weights = torch.empty(first + rows, self.dim, dtype=self.weights.dtype, device=device)
        weights[:first] = self.weights
        if first:
            vectors = [torch.cat(pair) for pair in zip(self.vectors, vectors, strict=True)]
            number = number if number is None or self.number is None else torch.cat([self.number, number])
        self.weights, self.vectors, self.number = weights, vectors, number
        if self.changed is not None:
            self.changed = torch.cat([self.changed, torch.zeros(rows, dtype=torch.bool, device=device)])
        return first

    def read(self, places: torch.Tensor) -> torch.Tensor:
        """Return the weights of these rows as float32 in CPU memory."""
        parts = places.to(self.device).split(max(1, BUFFER_FLOATS // self.dim))
        return torch.cat([self.weights[part].float().cpu() for part in parts])

    def assign(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Set weights, and give the rows their initial optimizer state."""
        places = places.to(self.device)
        vectors, number = update_rules.new_state(self.optim, 1, self.dim, self.device)
        self.weights[places] = rows.to(self.device, self.weights.dtype)
        for vector, first in zip(self.vectors, vectors, strict=True):
            vector[places] = first
        if self.number is not None and number is not None:
            self.number[places] = number
        if self.changed is not None:
            self.changed[places] = True

    # -- images

    def load(self, first: int, images: torch.Tensor) -> None:
        """Set the rows from place `first` on, with their optimizer state."""
        images, dim, end = images.to(self.device), self.dim, first + len(images)
        self.weights[first:end] = images[:, :dim].to(self.weights.dtype)
        for number, vector in enumerate(self.vectors, start=1):
            vector[first:end] = images[:, dim * number : dim * (number + 1)]
        if self.number is not None:
            self.number[first:end] = images[:, -1].contiguous().view(self.number.dtype)

    def images(self, places: torch.Tensor) -> torch.Tensor:
        """Return the images of these rows, in CPU memory."""
        parts = [self.weights[places].float(), *(vector[places] for vector in self.vectors)]
        if self.number is not None:
            parts.append(self.number[places].view(torch.float32)[:, None])
        return torch.cat(parts, 1).cpu()
