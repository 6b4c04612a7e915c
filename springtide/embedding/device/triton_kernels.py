"""Kernels for rows in Triton: they compute keys, gather and pool rows, and reduce gradients by unique row.
triton_updates.py trains rows, and triton_copies.py copies rows between CPU and GPU memory.

No kernel waits for the device. The reduction uses no atomics: one program sums the gradients of a row in batch order.
Multiplications are never contracted with additions (`enable_fp_fusion=False`), as in torch_kernels.py.
"""

import torch
import triton
import triton.language as tl

from springtide.embedding.device.kernels import BagGradients, IdBatch
from springtide.embedding.device.triton_copies import exchange as exchange
from springtide.embedding.device.triton_copies import fetch as fetch
from springtide.embedding.device.triton_updates import update as update

ID_BLOCK = 512
TILE_FLOATS = 2048
UNROLL = 8
"""Number of gradients of a repeated row to load before the first of them is added."""


def tile_rows(dim: int) -> int:
    return max(1, TILE_FLOATS // triton.next_power_of_2(dim))


@triton.jit
def _keys(ids, features, bag_of, out, status, JAGGED: tl.constexpr, BLOCK: tl.constexpr, FIELDS: tl.constexpr):
    field = features + tl.program_id(0) * FIELDS
    first, count, per_bag = tl.load(field), tl.load(field + 1).to(tl.int32), tl.load(field + 2)
    bag_stride, id_stride, place = tl.load(field + 3), tl.load(field + 4), tl.load(field + 5)
    rows, padding, begin = tl.load(field + 6), tl.load(field + 7), tl.load(field + 8)
    mark = (tl.load(field + 9) + 1).to(tl.float32)
    if tl.program_id(1) * BLOCK < count:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        here = at < count
        ids_at = first + at // per_bag * bag_stride + at % per_bag * id_stride
        given = tl.load(ids + ids_at, mask=here, other=0).to(tl.int64)
        good = (given >= 0) & (given < rows)
        skipped = (given == padding) | (given < 0) | (given >= rows)
        if JAGGED:
            skipped = skipped | (tl.load(bag_of + begin + at, mask=here, other=0) < 0)
        key = (place + tl.where(good, given, 0)) * 2 + skipped.to(tl.int64)
        tl.store(out + begin + at, key.to(tl.int32), mask=here)
        tl.store(status + at * 0, mark, mask=here & (good == 0))


def keys(batch: IdBatch, status: torch.Tensor) -> torch.Tensor:
    out = torch.empty(batch.total, dtype=torch.int32, device=batch.ids.device)
    if not batch.total:
        return out
    blocks = max(1, triton.cdiv(max(batch.counts), ID_BLOCK))
    jagged = batch.bag_of is not None
    _keys[(len(batch.counts), blocks)](
        batch.ids,
        batch.features,
        batch.bag_of if jagged else batch.features,
        out,
        status,
        JAGGED=jagged,
        BLOCK=ID_BLOCK,
        FIELDS=batch.features.shape[1],
    )
    return out


@triton.jit
def _pool(
    keys,
    weights,
    fetched,
    cells,
    scale,
    begins,
    out,
    bags,
    total,
    PER_BAG: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    JAGGED: tl.constexpr,
    SCALED: tl.constexpr,
    MEAN: tl.constexpr,
    READ_SKIPPED: tl.constexpr,
    FETCHED: tl.constexpr,
):
    bag = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = bag < bags
    if JAGGED:
        begin = tl.load(begins + bag, mask=here, other=0).to(tl.int32)
        end = tl.load(begins + bag + 1, mask=here, other=0).to(tl.int32)
        longest = tl.max(end - begin, 0)
    else:
        begin = bag * PER_BAG
        end = begin + PER_BAG
        longest = PER_BAG
    total_row = tl.zeros([ROWS, COLUMNS], tl.float32)
    used = tl.zeros([ROWS], tl.float32)
    for i in range(longest):
        at = begin + i
        inside = here & (at < end) & (at < total)
        key = tl.load(keys + at, mask=inside, other=1)
        if READ_SKIPPED:
            read = inside
        else:
            read = inside & ((key & 1) == 0)
        place = (key >> 1).to(tl.int64)
        source = weights + place * DIM
        if FETCHED:
            source = tl.where(place < cells, source, fetched + (place - cells) * DIM)
        row = tl.load(source[:, None] + column[None, :], mask=read[:, None] & (column < DIM)[None, :], other=0.0).to(
            tl.float32
        )
        if SCALED:
            row = row * tl.load(scale + at, mask=inside, other=0.0)[:, None]
        total_row = total_row + row
        used = used + read.to(tl.float32)
    if MEAN:
        total_row = tl.div_rn(total_row, tl.broadcast_to(tl.maximum(used, 1.0)[:, None], [ROWS, COLUMNS]))
    target = bag.to(tl.int64)[:, None] * DIM + column[None, :]
    tl.store(out + target, total_row, mask=here[:, None] & (column < DIM)[None, :])


def pool(
    keys: torch.Tensor,
    batch: IdBatch,
    weights: torch.Tensor,
    scale: torch.Tensor | None,
    *,
    mean: bool,
    read_skipped: bool,
    fetched: torch.Tensor | None = None,
) -> torch.Tensor:
    dim = weights.shape[1]
    out = torch.empty(batch.bags, dim, device=weights.device)
    rows, jagged = tile_rows(dim), batch.begin is not None
    if not batch.bags:
        return out
    _pool[(triton.cdiv(batch.bags, rows),)](
        keys,
        weights,
        weights if fetched is None else fetched,
        len(weights),
        keys if scale is None else scale,
        batch.begin if jagged else keys,
        out,
        batch.bags,
        batch.total,
        PER_BAG=0 if jagged else batch.per_bag,
        DIM=dim,
        COLUMNS=triton.next_power_of_2(dim),
        ROWS=rows,
        JAGGED=jagged,
        SCALED=scale is not None,
        MEAN=mean,
        READ_SKIPPED=read_skipped,
        FETCHED=fetched is not None,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _gradient(
    order,
    bag_of,
    grads,
    scale,
    at,
    here,
    column,
    rows,
    outer,
    inner,
    PER_BAG: tl.constexpr,
    DIM: tl.constexpr,
    JAGGED: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Load the gradients of the ids at these positions of the sorted keys."""
    position = tl.load(order + at, mask=here, other=0)
    if JAGGED:
        bag = tl.maximum(tl.load(bag_of + position, mask=here, other=0), 0)
    else:
        bag = position // PER_BAG
    first = bag // rows * outer + bag % rows * inner
    value = tl.load(grads + first[:, None] + column[None, :], mask=here[:, None] & (column < DIM)[None, :], other=0.0)
    if SCALED:
        value = value * tl.load(scale + position, mask=here, other=0.0)[:, None]
    return value


@triton.jit
def _reduce(
    keys,
    order,
    bag_of,
    grads,
    scale,
    out,
    bad,
    total,
    rows,
    outer,
    inner,
    PER_BAG: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    JAGGED: tl.constexpr,
    SCALED: tl.constexpr,
    PLACED: tl.constexpr,
):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = at < total
    key = tl.load(keys + at, mask=here, other=-1)
    before = tl.load(keys + at - 1, mask=here & (at > 0), other=-1)
    head = here & (key != before) & ((key & 1) == 0)
    value = _gradient(order, bag_of, grads, scale, at, head, column, rows, outer, inner, PER_BAG, DIM, JAGGED, SCALED)
    following = tl.load(keys + at + 1, mask=head & (at + 1 < total), other=-1)
    more = head & (following == key)
    behind = at + 1
    while tl.max(more.to(tl.int32), 0) > 0:
        for i in tl.static_range(UNROLL):
            place = behind + i
            inside = more & (place < total)
            equal = inside & (tl.load(keys + place, mask=inside, other=-1) == key)
            added = _gradient(
                order, bag_of, grads, scale, place, inside, column, rows, outer, inner, PER_BAG, DIM, JAGGED, SCALED
            )
            value = tl.where(equal[:, None], value + added, value)
        behind += UNROLL
        inside = more & (behind < total)
        more = inside & (tl.load(keys + behind, mask=inside, other=-1) == key)
    if PLACED:
        shown = head[:, None] & (column < DIM)[None, :]
        target = (key >> 1).to(tl.int64)
    else:
        shown = here[:, None] & (column < DIM)[None, :]
        target = at.to(tl.int64)
    tl.store(out + target[:, None] * DIM + column[None, :], value, mask=shown)
    odd = shown & ((tl.abs(value) <= 3.4028234663852886e38) == 0)
    tl.store(bad + tl.zeros([ROWS, COLUMNS], tl.int32), tl.full([ROWS, COLUMNS], 1.0, tl.float32), mask=odd)


def reduce(
    keys: torch.Tensor,
    order: torch.Tensor,
    batch: IdBatch,
    grads: BagGradients,
    scale: torch.Tensor | None,
    bad: torch.Tensor,
    dim: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    placed = out is not None
    if out is None:
        out = torch.empty(len(keys), dim, device=keys.device)
    rows, jagged = tile_rows(dim), batch.bag_of is not None
    if not len(keys):
        return out
    _reduce[(triton.cdiv(len(keys), rows),)](
        keys,
        order,
        batch.bag_of if jagged else keys,
        grads.values,
        keys if scale is None else scale,
        out,
        bad,
        len(keys),
        grads.rows,
        grads.outer,
        grads.inner,
        PER_BAG=0 if jagged else batch.per_bag,
        DIM=dim,
        COLUMNS=triton.next_power_of_2(dim),
        ROWS=rows,
        UNROLL=UNROLL,
        JAGGED=jagged,
        SCALED=scale is not None,
        PLACED=placed,
        enable_fp_fusion=False,
    )
    return out
