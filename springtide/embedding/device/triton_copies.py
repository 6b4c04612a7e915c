"""Copies rows between CPU and GPU memory in Triton: the rows of a batch, and rows that exchange their cells.

In: a Backing, whose CPU memory the GPU reads and writes directly over PCIe. Rows are read in the order of their
places: then neighbors share pages, and the GPU reads them at the speed of a copy (51 GB/s on an H200; 22 in random
order). Defined by torch_kernels.py.
"""

import torch
import triton
import triton.language as tl

from springtide.embedding.device.backing import Backing

TILE_FLOATS = 2048
KEY_BLOCK = 1024


@triton.jit
def _fetch(
    ordered, weights, cells, fetched, total, capacity, DIM: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = at < total
    row = tl.load(ordered + at, mask=here, other=-2) >> 1
    before = tl.load(ordered + at - 1, mask=here & (at > 0), other=-2) >> 1
    head = here & (row != before)
    place = tl.where(head, row, 0).to(tl.int64)
    missing = head & (tl.load(cells + place, mask=head, other=0) >= capacity)
    shown = missing[:, None] & (column < DIM)[None, :]
    value = tl.load(weights + place[:, None] * DIM + column[None, :], mask=shown, other=0.0)
    tl.store(fetched + at.to(tl.int64)[:, None] * DIM + column[None, :], value, mask=shown)
    tl.store(cells + place, capacity + at, mask=missing)


@triton.jit
def _find(keys, cells, out, missed, total, capacity, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < total
    key = tl.load(keys + at, mask=here, other=0)
    cell = tl.load(cells + (key >> 1), mask=here, other=0)
    tl.store(out + at, cell * 2 + (key & 1), mask=here)
    tl.atomic_add(missed, tl.sum((here & (cell >= capacity)).to(tl.int64), 0))


def fetch(ordered: torch.Tensor, keys: torch.Tensor, backing: Backing) -> tuple[torch.Tensor, torch.Tensor]:
    total, dim, source = len(keys), backing.weights.shape[1], backing.weights
    fetched = torch.empty(total, dim, dtype=source.dtype, device=keys.device)
    read = torch.empty_like(keys)
    if not total:
        return read, fetched
    columns = triton.next_power_of_2(dim)
    rows = max(1, TILE_FLOATS // columns)
    numbers = {"DIM": dim, "COLUMNS": columns, "ROWS": rows}
    _fetch[(triton.cdiv(total, rows),)](ordered, source, backing.cells, fetched, total, backing.capacity, **numbers)
    grid = (triton.cdiv(total, KEY_BLOCK),)
    _find[grid](keys, backing.cells, read, backing.missed, total, backing.capacity, BLOCK=KEY_BLOCK)
    return read, fetched


@triton.jit
def _exchange(
    entering,
    leaving,
    cells,
    in_gpu,
    in_cpu,
    total,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    here = at < total
    enters = tl.load(entering + at, mask=here, other=-1)
    taken = here & (enters >= 0)
    leaves, cell = tl.load(leaving + at, mask=taken, other=0), tl.load(cells + at, mask=taken, other=0)
    shown = taken[:, None] & (column < WIDTH)[None, :]
    held = in_gpu + cell[:, None] * WIDTH + column[None, :]
    old = tl.load(held, mask=shown)
    new = tl.load(in_cpu + enters[:, None] * WIDTH + column[None, :], mask=shown)
    tl.debug_barrier()
    tl.store(in_cpu + leaves[:, None] * WIDTH + column[None, :], old, mask=shown)
    tl.store(held, new, mask=shown)


def exchange(
    entering: torch.Tensor,
    leaving: torch.Tensor,
    cells: torch.Tensor,
    in_gpu: list[torch.Tensor],
    in_cpu: list[torch.Tensor],
) -> None:
    for tensor, behind in zip(in_gpu, in_cpu, strict=True):
        width = tensor.shape[1] if tensor.dim() > 1 else 1
        columns = triton.next_power_of_2(width)
        rows = max(1, min(256, TILE_FLOATS // columns))
        grid = (triton.cdiv(len(entering), rows),)
        numbers = {"WIDTH": width, "COLUMNS": columns, "ROWS": rows}
        _exchange[grid](entering, leaving, cells, tensor, behind, len(entering), **numbers)
