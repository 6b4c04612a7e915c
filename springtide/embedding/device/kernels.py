"""Interface of the kernels for rows in device memory.

In: arenas and ids. Out: pooled rows, gradients by unique row, trained rows. Two modules implement `Kernels`:
triton_kernels.py on CUDA GPUs, and torch_kernels.py, which defines the results and runs on any device.

A row's *key* is `2 * place + skipped`, where `place` is its index in the arena. A skipped id (padding, or invalid)
is neither trained nor pooled. In sorted order, keys of the same table are therefore adjacent.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from springtide.embedding.device.backing import Backing
from springtide.embedding.device.update_rules import Update

FIELDS = 10
"""Numbers that describe one feature: offset of its first id; number of ids; ids per bag; distance between bags;
distance between the ids of a bag; first place of its table; number of rows of its table; padding id (-1 for none);
position of its first key; number of the feature.
"""


@dataclass(slots=True, eq=False)
class IdBatch:
    """Ids of several features of one arena. All ids are in one tensor."""

    ids: torch.Tensor
    """One-dimensional int64 or int32 tensor on the device."""
    features: torch.Tensor
    """int64 tensor of shape [features, FIELDS] on the device."""
    counts: tuple[int, ...]
    """Number of ids of each feature."""
    bags: int
    per_bag: int
    """Number of ids in each bag, if all bags have the same number."""
    bag_of: torch.Tensor | None = None
    """int64 tensor with the bag of each id; -1 for an id without a bag. None if `per_bag` gives the number."""
    begin: torch.Tensor | None = None
    """int64 tensor with the position of each bag's first id, and the end of the last bag."""

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(slots=True, eq=False)
class BagGradients:
    """Gradients of bags. The gradient of `bag` begins `bag // rows * outer + bag % rows * inner` floats after the first
    gradient."""

    values: torch.Tensor
    rows: int
    outer: int
    inner: int


class Kernels(Protocol):
    """Kernels of one kind of device. No kernel waits for the device."""

    def keys(self, batch: IdBatch, status: torch.Tensor) -> torch.Tensor:
        """Return the int32 key of each id. Set `status[0]` to 1 + the table of an invalid id."""
        ...

    def fetch(self, ordered: torch.Tensor, keys: torch.Tensor, backing: Backing) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the rows of these keys that are in CPU memory to GPU memory, once each. `ordered` has the sorted keys.

        Return keys for `pool`, whose places are cells; places from `backing.capacity` on are in the copied rows. Also
        return the copied rows, each at the position of its first key in `ordered`.
        """
        ...

    def pool(
        self,
        keys: torch.Tensor,
        batch: IdBatch,
        weights: torch.Tensor,
        scale: torch.Tensor | None,
        *,
        mean: bool,
        read_skipped: bool,
        fetched: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the float32 sum or mean of the rows of each bag, in the order of the ids. `scale` multiplies rows.
        `fetched` has the rows of places behind the last row of `weights`.
        """
        ...

    def reduce(
        self,
        keys: torch.Tensor,
        order: torch.Tensor,
        batch: IdBatch,
        grads: BagGradients,
        scale: torch.Tensor | None,
        bad: torch.Tensor,
        dim: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum the gradients of each row in batch order. `keys` are sorted, and `order` has the id that each key
        belongs to. Set `bad` to 1 if a gradient is not finite.

        The gradient of a row is at the position of its first key, and all other positions are zero. With `out`, the
        gradient is at the row's place in `out`, and rows without a gradient are left as they are.
        """
        ...

    def update(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        weights: torch.Tensor,
        vectors: list[torch.Tensor],
        number: torch.Tensor | None,
        update: Update,
        bad: torch.Tensor,
        changed: torch.Tensor | None = None,
        backing: Backing | None = None,
        fetched: torch.Tensor | None = None,
    ) -> None:
        """Make one optimizer step for the rows of these sorted keys, and set their entries of `changed`. If `bad` is
        not 0, do nothing.

        With `backing`, rows without a cell are trained in CPU memory, and uses are counted. If `fetched` is given, it
        has the weights of these rows, at the positions of their first keys.
        """
        ...

    def exchange(
        self,
        entering: torch.Tensor,
        leaving: torch.Tensor,
        cells: torch.Tensor,
        in_gpu: list[torch.Tensor],
        in_cpu: list[torch.Tensor],
    ) -> None:
        """Copy the rows in these cells to the places `leaving` in CPU memory, and the rows `entering` to the cells.
        Skip cells for which `entering` is -1."""
        ...
