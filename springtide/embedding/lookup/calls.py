"""Describes one module's lookup in one forward with native addresses: ids, pooling and outputs.

In: the tensors with which a module was called; this module checks them. Out: a LookupCall. Next:
embedding/lookup/row_batch.py pulls and pools the rows of all calls of a step in one native call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from springtide import _native, errors
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.lookup.tables import ServedTable

Mode = Literal["none", "sum", "mean", "max"]
POOLING: dict[str, int] = {"none": 0, "sum": 1, "mean": 2, "max": 3}
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Ids = tuple[int, int, int]
"""Address, count and stride (in ids) of int64 ids."""
Bag = tuple[int, int, int, int, bool, int]
"""Pooling mode, bags, ids per bag, address of offsets, whether offsets include the end, address of weights."""


@dataclass(slots=True, eq=False)
class LookupFeature:
    """Part of a lookup that stays constant from step to step: name, table and padding id."""

    name: str
    table: ServedTable
    padding: int | None = None
    pull_padding: bool = False
    """True if the lookup reads the padding row. nn.Embedding reads the padding row without training it; bags leave the
    row out.
    """


@dataclass(slots=True, eq=False)
class LookupCall:
    """Lookup of one module in one forward."""

    features: tuple[LookupFeature, ...]
    ids: list[Ids]
    bags: list[Bag]
    shapes: list[tuple[int, ...]]
    """Shapes of the outputs."""
    places: list[tuple[int, int, int]]
    """For each feature: the index of the output, the first float in that output, and the number of floats from one row
    to the next.
    """
    keep: tuple[torch.Tensor, ...]
    """Tensors that own the memory behind the addresses."""
    weights: torch.Tensor | None = None
    """Per-sample weights, or None if the caller gave none."""

    def gather(self, client: TableClient, plan: _native.StepPlan, after_step: int) -> _native.StepRows:
        return client.gather(plan, self.ids, after_step=after_step)


@dataclass(slots=True, eq=False)
class DeviceCall:
    """Lookup of one module in one forward, if the rows of its table are in device memory."""

    features: tuple[LookupFeature, ...]
    ids: torch.Tensor
    """Tensor with the memory of the ids, int64 or int32, on any device."""
    offset: int
    """Position of the first id in the storage of `ids`."""
    bags: int
    per_bag: int
    strides: tuple[int, int]
    """Distance between bags and between the ids of a bag."""
    shapes: list[tuple[int, ...]]
    offsets: torch.Tensor | None = None
    """Position of the first id of each bag. If the positions are given, `bags` is the number of bags, and `per_bag` the
    number of all ids.
    """
    closed: bool = False
    """True if the last element of `offsets` is the end of the last bag."""
    mean: bool = False
    weights: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return self.per_bag if self.offsets is not None else self.bags * self.per_bag

    def moved(self, ids: torch.Tensor, offset: int) -> "DeviceCall":
        """Return the same lookup for ids at another address."""
        return DeviceCall(
            self.features, ids, offset, self.bags, self.per_bag, self.strides, self.shapes, mean=self.mean
        )


Call = LookupCall | DeviceCall


def as_ids(ids: torch.Tensor, who: str, table: ServedTable | None = None) -> torch.Tensor:
    """Return the ids as int64 in CPU memory, where rows are looked up. Ids in this form are returned unchanged. Ids of
    a `table` in device memory stay on the device.
    """
    _check_tensor(ids, "ids", who)
    if ids.dtype == torch.int64 and ids.is_cpu:
        return ids
    if ids.dtype not in INTEGERS:
        raise errors.BadInput(f"{who}: ids are {ids.dtype}; expected int64 or int32. Cast them with .long()")
    if table is not None and table.place is not None:
        return ids if ids.dtype in (torch.int64, torch.int32) else ids.long()
    return ids.to("cpu", torch.int64)


def device_call(
    feature: LookupFeature, ids: torch.Tensor, bags: tuple[int, int], shape: tuple[int, ...], **options: Any
) -> DeviceCall:
    """Build a lookup of rows in device memory. `bags` has the number of bags, and the number of ids in each bag."""
    if ids.dim() == 2 and bags == ids.shape:
        strides = (ids.stride(0), ids.stride(1))
    else:
        if ids.dim() != 1:
            ids = ids.reshape(-1)
        strides = (bags[1] * ids.stride(0), ids.stride(0))
    return DeviceCall((feature,), ids, int(ids.storage_offset()), *bags, strides, [shape], **options)


def _check_tensor(given: Any, what: str, who: str) -> None:
    if not isinstance(given, torch.Tensor):
        raise errors.BadInput(
            f"{who}: {what} are a {type(given).__name__}; expected a tensor; torch.as_tensor makes one"
        )
    if given.layout is not torch.strided:
        raise errors.BadInput(f"{who}: {what} are {given.layout}; expected a plain tensor: call .to_dense()")


def flat_ids(ids: torch.Tensor) -> tuple[Ids, torch.Tensor]:
    """Return ids of any shape as one strided run. The ids are copied only if they are not strided."""
    if ids.dim() == 1:
        return (ids.data_ptr(), ids.shape[0], ids.stride(0)), ids
    if ids.dim() == 2 and ids.shape[1] == 1:
        return (ids.data_ptr(), ids.shape[0], ids.stride(0)), ids
    ids = ids.contiguous()
    return (ids.data_ptr(), ids.numel(), 1), ids


def one_output(
    feature: LookupFeature, ids: torch.Tensor, bag: Bag, shape: tuple[int, ...], keep: Sequence[torch.Tensor] = ()
) -> LookupCall:
    flat, ids = flat_ids(ids)
    dim = feature.table.spec.dim
    return LookupCall((feature,), [flat], [bag], [shape], [(0, 0, dim)], (ids, *keep))


def bag_call(
    feature: LookupFeature,
    ids: torch.Tensor,
    offsets: torch.Tensor | None,
    *,
    mode: Mode,
    closed: bool = False,
    weights: torch.Tensor | None = None,
) -> Call:
    """Build the lookup of nn.EmbeddingBag: 2-D ids, 1-D ids with offsets, or 1-D ids with one id per bag."""
    who, dim = f"table {feature.table.name!r}", feature.table.spec.dim
    ids = as_ids(ids, who, feature.table)
    if weights is not None:
        weights = _checked_weights(weights, ids, mode, who, feature.table)
    if feature.table.place is not None:
        return _device_bag_call(feature, ids, offsets, mode=mode, closed=closed, weights=weights)
    pooling, address = POOLING[mode], 0 if weights is None else weights.data_ptr()
    _check_bags(ids, offsets, who)
    if ids.dim() == 2:
        bags, per_bag = ids.shape
        bag = (pooling, bags, per_bag, 0, False, address)
    elif offsets is None:
        bags = ids.shape[0]
        bag = (pooling, bags, 1, 0, False, address)
    else:
        offsets = _checked_offsets(offsets, who, closed)
        bags = offsets.shape[0] - closed
        if closed and int(offsets[-1]) < ids.shape[0]:
            ids = ids[: max(int(offsets[-1]), 0)]
            weights = None if weights is None else weights[: ids.shape[0]]
        bag = (pooling, bags, 0, offsets.data_ptr(), closed, address)
    call = one_output(feature, ids, bag, (bags, dim), [] if offsets is None else [offsets])
    call.weights = weights
    return call


def _device_bag_call(
    feature: LookupFeature,
    ids: torch.Tensor,
    offsets: torch.Tensor | None,
    *,
    mode: Mode,
    closed: bool,
    weights: torch.Tensor | None,
) -> DeviceCall:
    who, dim = f"table {feature.table.name!r}", feature.table.spec.dim
    options = {"mean": mode == "mean", "weights": weights}
    if ids.dim() == 2 and offsets is None:
        return device_call(feature, ids, (int(ids.shape[0]), int(ids.shape[1])), (ids.shape[0], dim), **options)
    _check_bags(ids, offsets, who)
    if offsets is None:
        return device_call(feature, ids, (len(ids), 1), (len(ids), dim), **options)
    offsets = _checked_offsets(offsets, who, closed, feature.table)
    bags = len(offsets) - closed
    return device_call(feature, ids, (bags, len(ids)), (bags, dim), offsets=offsets, closed=closed, **options)


def _check_bags(ids: torch.Tensor, offsets: torch.Tensor | None, who: str) -> None:
    if ids.dim() == 2 and offsets is not None:
        raise errors.BadInput(f"{who}: offsets have no meaning with 2-D ids, where each row is a bag; leave them out")
    if ids.dim() not in (1, 2):
        raise errors.BadInput(f"{who}: ids have shape {tuple(ids.shape)}; expected 1-D with offsets, or 2-D")


def row_call(feature: LookupFeature, ids: torch.Tensor) -> Call:
    ids = as_ids(ids, f"table {feature.table.name!r}", feature.table)
    dim = feature.table.spec.dim
    if feature.table.place is not None:
        return device_call(feature, ids, (ids.numel(), 1), (*ids.shape, dim))
    return one_output(feature, ids, (0, ids.numel(), 1, 0, False, 0), (*ids.shape, dim))


def _checked_offsets(offsets: torch.Tensor, who: str, closed: bool, table: ServedTable | None = None) -> torch.Tensor:
    _check_tensor(offsets, "offsets", who)
    if offsets.dtype not in (torch.int64, torch.int32):
        raise errors.BadInput(f"{who}: offsets are {offsets.dtype}; expected int64 or int32. Cast them with .long()")
    if offsets.dim() != 1:
        raise errors.BadInput(f"{who}: offsets have shape {tuple(offsets.shape)}; expected 1-D")
    if closed and offsets.shape[0] == 0:
        raise errors.BadInput(f"{who}: offsets are empty; with include_last_offset there is one entry at least")
    on_device = table is not None and table.place is not None
    return offsets.to(device=None if on_device else "cpu", dtype=torch.int64).contiguous()


def _checked_weights(
    weights: torch.Tensor, ids: torch.Tensor, mode: Mode, who: str, table: ServedTable
) -> torch.Tensor:
    if mode != "sum":
        raise errors.BadInput(f"{who}: per_sample_weights need mode 'sum'; this one has mode {mode!r}")
    _check_tensor(weights, "per_sample_weights", who)
    if weights.shape != ids.shape:
        raise errors.BadInput(
            f"{who}: per_sample_weights have shape {tuple(weights.shape)}; expected the ids' {tuple(ids.shape)}"
        )
    return weights if table.place is not None else weights.to("cpu", torch.float32).contiguous()
