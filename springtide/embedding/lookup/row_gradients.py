"""Gradients of rows in device memory, from backward until the push.

In: sorted keys and their gradients (embedding/device/kernels.py). Out: `weight.grad` of each table, and the arena's
update. Row i of `weight.grad` belongs to the i-th id of the batch in sorted order. Of several equal ids, the first has
the sum of their gradients, and all later ones have zero. The process therefore never needs the number of unique ids,
which only the device knows.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from springtide.embedding.device import kernel_registry, update_rules
from springtide.embedding.device.arena import Arena
from springtide.embedding.device.kernels import BagGradients, IdBatch
from springtide.embedding.lookup.tables import ServedTable


class Segment(NamedTuple):
    """Positions of one table's ids in the sorted keys."""

    table: ServedTable
    begin: int
    end: int


def segments_of(counts: dict[ServedTable, int]) -> list[Segment]:
    """Return the position of each table's ids in the sorted keys, given the number of ids of each table."""
    ordered = sorted(counts, key=lambda table: table.place.first if table.place is not None else 0)
    ends = list(itertools.accumulate(counts[table] for table in ordered))
    return [Segment(table, end - counts[table], end) for table, end in zip(ordered, ends, strict=True)]


class ShownRows:
    """Gradient of one table: a slice of the summed gradients, created when the script reads `weight.grad`."""

    __slots__ = ("_begin", "_end", "_grads", "made")

    def __init__(self, grads: torch.Tensor, begin: int, end: int) -> None:
        self._grads, self._begin, self._end = grads, begin, end
        self.made: torch.Tensor | None = None

    def springtide_rows(self) -> torch.Tensor:
        if self.made is None:
            self.made = self._grads[self._begin : self._end]
        return self.made


class DeviceGradients:
    """Gradients of the rows of one arena."""

    def __init__(
        self, arena: Arena, segments: Sequence[Segment], keys: torch.Tensor, grads: torch.Tensor, bad: torch.Tensor
    ) -> None:
        """Create gradients of sorted `keys`. `bad` is set on the device if a gradient is not finite."""
        self.arena, self.keys, self.grads = arena, keys, grads
        self.segments = list(segments)
        self._bad, self._version = bad, grads._version
        self._shown: dict[int, ShownRows] = {}
        self._fetched: torch.Tensor | None = None
        self._fetched_at = 0

    @property
    def step(self) -> "DeviceGradients":
        return self

    @property
    def shown_weights(self) -> list[torch.nn.Parameter]:
        return self.weights

    @property
    def weights(self) -> list[torch.nn.Parameter]:
        return [segment.table.weight for segment in self.segments]

    def finite(self) -> bool:
        """Return True. The device itself skips an update that is not finite, and `DeviceTables.poll` then raises an
        error."""
        return True

    def show(self) -> None:
        for segment in self.segments:
            shown = self._shown[id(segment.table)] = ShownRows(self.grads, segment.begin, segment.end)
            segment.table.weight.grad = shown  # type: ignore[assignment]

    def settle(self) -> bool:
        """Apply changes that the script made to `weight.grad` since `show`. Return False if no gradient is left to
        push.
        """
        for segment in list(self.segments):
            now, shown = segment.table.weight.__dict__["springtide_grad"], self._shown[id(segment.table)]
            if now is None:
                self.keys[segment.begin : segment.end] |= 1
                self.segments.remove(segment)
            elif now is not shown and now is not shown.made:
                self.grads[segment.begin : segment.end] = now
        return bool(self.segments)

    def merged(self, others: "Sequence[DeviceGradients]") -> "DeviceGradients":
        """Add these gradients and the earlier gradients in `others`."""
        parts = [*others, self]
        counts: dict[ServedTable, int] = {}
        keys, grads = [], []
        for part in parts:
            for table, begin, end in part.segments:
                counts[table] = counts.get(table, 0) + end - begin
                keys.append(part.keys[begin:end])
                grads.append(part.grads[begin:end])
        total = sum(counts.values())
        batch = IdBatch(keys[0], keys[0], (total,), total, 1)
        rows = BagGradients(torch.cat(grads), total, 0, self.arena.dim)
        return reduced(self.arena, segments_of(counts), torch.cat(keys), batch, rows, None)

    def keep_fetched(self, fetched: torch.Tensor | None, version: int) -> None:
        """Store weights that the lookup fetched from CPU memory for these keys, so that the update need not read the
        weights again. `version` is the version of the arena at that time.
        """
        self._fetched, self._fetched_at = fetched, version

    def scale(self, share: float) -> None:
        self.grads.mul_(share)

    def drop(self) -> None:
        """Clear `weight.grad` after a push."""
        for segment in self.segments:
            segment.table.weight.grad = None

    def note_bad(self, bad: torch.Tensor) -> None:
        """Set `bad` on the device if a gradient is not finite. Gradients that the script changed are checked again."""
        if self.grads._version != self._version:
            self._bad = (~self.grads.isfinite().all()).float().view(1)
        torch.maximum(bad, self._bad, out=bad)

    def train(self, hyper: dict[int, tuple[float, float, int]], bad: torch.Tensor) -> None:
        """Make one optimizer step for all rows; `hyper` maps a table id to (lr, weight decay, step)."""
        arena, chosen = self.arena, kernel_registry.of_device(self.arena.device.type)
        if self._fetched_at != arena.version:
            self._fetched = None  # rows have changed since the lookup
        segments = [segment for segment in self.segments if segment.table.spec.id in hyper]
        at = 0
        while at < len(segments):
            numbers, begin, end = hyper[segments[at].table.spec.id], segments[at].begin, segments[at].end
            while (at := at + 1) < len(segments):
                if segments[at].begin != end or hyper[segments[at].table.spec.id] != numbers:
                    break
                end = segments[at].end
            update = update_rules.prepare(arena.optim, *numbers)
            keys, grads = self.keys[begin:end], self.grads[begin:end]
            stored = arena.weights, arena.vectors, arena.number
            fetched = None if self._fetched is None else self._fetched[begin:end]
            chosen.update(keys, grads, *stored, update, bad, arena.changed, arena.backing, fetched)


def reduced(
    arena: Arena,
    segments: Sequence[Segment],
    keys: torch.Tensor,
    batch: IdBatch,
    grads: BagGradients,
    scale: torch.Tensor | None,
    in_order: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> DeviceGradients:
    """Sum the gradients of bags by unique row. `in_order` has the sorted keys and their order, if they are known."""
    ordered, order = torch.sort(keys, stable=True) if in_order is None else in_order
    bad = torch.zeros(1, device=keys.device)
    sums = kernel_registry.of_device(keys.device.type).reduce(ordered, order, batch, grads, scale, bad, arena.dim)
    return DeviceGradients(arena, segments, ordered, sums, bad)
