"""Optimizer steps for rows in Triton, bit-identical to update_rules.py and cpp/store/kernels.

In: sorted keys and the gradient at the first position of each key. Out: trained rows, in place. Divisions and roots are
correctly rounded, and `enable_fp_fusion=False` prevents fused multiply-add. `numbers` points to `Update.numbers`.

All warps of a program load a row's state number, and one of them stores it. Without the barrier in between, a warp that
is late loads the new number.
"""

import functools

import torch
import triton
import triton.language as tl

from springtide.embedding.device import update_rules
from springtide.embedding.device.backing import Backing
from springtide.embedding.device.update_rules import LANES, Update

TILE_FLOATS = 1024
KINDS = {"sgd": 0, "adagrad": 1, "rmsprop": 2, "rowwise_adagrad": 3, "adam": 4, "ftrl": 5}


@triton.jit
def _momentum(w, g, first, number, shown, head, numbers, FLAGS: tl.constexpr):
    """FLAGS: 1 if the first gradient is not dampened, plus 2 for Nesterov's momentum."""
    momentum, undamped = tl.load(numbers + 2), tl.load(numbers + 3)
    buffer = tl.load(first, mask=shown, other=0.0)
    if FLAGS % 2 == 1:
        started = tl.load(number, mask=head, other=0.0) != 0.0
        tl.debug_barrier()
        buffer = tl.where(started, momentum, 0.0)[:, None] * buffer + tl.where(started, undamped, 1.0)[:, None] * g
        tl.store(number, tl.where(started, 1.0, 1.0), mask=head)
    else:
        buffer = momentum * buffer + g
    tl.store(first, buffer, mask=shown)
    if FLAGS >= 2:
        buffer = g + momentum * buffer
    return w - tl.load(numbers) * buffer


@triton.jit
def _adagrad(w, g, first, shown, numbers):
    total = tl.load(first, mask=shown, other=1.0) + g * g
    tl.store(first, total, mask=shown)
    return w - tl.load(numbers) * tl.div_rn(g, tl.sqrt_rn(total) + tl.load(numbers + 10))


@triton.jit
def _rmsprop(w, g, first, shown, numbers):
    average = tl.load(numbers + 7) * tl.load(first, mask=shown, other=1.0) + tl.load(numbers + 8) * (g * g)
    tl.store(first, average, mask=shown)
    return w - tl.load(numbers) * tl.div_rn(g, tl.sqrt_rn(average) + tl.load(numbers + 10))


@triton.jit
def _rowwise(w, g, weights, grads, number, at, head, numbers, DIM: tl.constexpr, LANES: tl.constexpr):
    """Sum the squares of each row in the same order as the native kernel: sixteen partial sums, which are then added in
    pairs."""
    rows: tl.constexpr = w.shape[0]
    part = tl.zeros([rows, LANES], tl.float32)
    decay = tl.load(numbers + 1)
    for begin in tl.static_range(0, DIM, LANES):
        column = begin + tl.arange(0, LANES)
        inside = head[:, None] & (column < DIM)[None, :]
        grad = tl.load(grads + at[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        # do not read the row without need, because reading CPU memory again is slow
        old = tl.load(weights[:, None] + column[None, :], mask=inside & (decay != 0.0), other=0.0).to(tl.float32)
        grad = grad + decay * old
        part = part + grad * grad
    part = tl.sum(tl.reshape(part, [rows, 2, 8]), 1)
    part = tl.sum(tl.reshape(part, [rows, 2, 4]), 1)
    part = tl.sum(tl.reshape(part, [rows, 2, 2]), 1)
    mean = tl.div_rn(tl.sum(part, 1), tl.full([rows], DIM, tl.float32))
    total = tl.load(number, mask=head, other=1.0) + mean
    tl.debug_barrier()
    tl.store(number, total, mask=head)
    rate = tl.div_rn(tl.full([rows], 1.0, tl.float32) * tl.load(numbers), tl.sqrt_rn(total) + tl.load(numbers + 10))
    return w - rate[:, None] * g


@triton.jit
def _adam(w, grad, first, second, number, shown, head, numbers, bias, bias_last, FLAGS: tl.constexpr):
    """FLAGS: 1 if all rows are at the same step, plus 2 if eps is added outside of the bias correction."""
    rows: tl.constexpr = w.shape[0]
    count = tl.load(number, mask=head, other=0) + 1
    tl.debug_barrier()
    tl.store(number, count, mask=head)
    size = tl.full([rows, 1], 1.0, tl.float32) * tl.load(numbers + 14)
    scale = tl.full([rows, 1], 1.0, tl.float32) * tl.load(numbers + 15)
    if FLAGS % 2 == 0:
        step = tl.minimum(count, bias_last).to(tl.int64)
        rest = tl.load(bias + step * 2, mask=head, other=1.0)
        root = tl.load(bias + step * 2 + 1, mask=head, other=1.0)
        wide = (tl.full([rows], 1.0, tl.float32) * tl.load(numbers)).to(tl.float64) / rest
        if FLAGS >= 2:
            size = wide.to(tl.float32)[:, None]
            scale = (tl.full([rows], 1.0, tl.float64) / root).to(tl.float32)[:, None]
        else:
            size = (wide * root).to(tl.float32)[:, None]
            scale = tl.full([rows, 1], 1.0, tl.float32)
    x = w * tl.load(numbers + 9)
    g = grad + tl.load(numbers + 1) * x
    m = tl.load(first, mask=shown, other=0.0)
    m = m + tl.load(numbers + 5) * (g - m)
    v = tl.load(numbers + 4) * tl.load(second, mask=shown, other=0.0) + tl.load(numbers + 6) * (g * g)
    tl.store(first, m, mask=shown)
    tl.store(second, v, mask=shown)
    return x - size * tl.div_rn(m, tl.sqrt_rn(v) * scale + tl.load(numbers + 10))


@triton.jit
def _ftrl(w, g, first, second, shown, numbers):
    z = tl.load(first, mask=shown, other=0.0)
    total = tl.load(second, mask=shown, other=0.0)
    before = tl.sqrt_rn(total)
    total = total + g * g
    after = tl.sqrt_rn(total)
    lr = tl.zeros_like(w) + tl.load(numbers)
    z = z + (g - tl.div_rn(after - before, lr) * w)
    tl.store(first, z, mask=shown)
    tl.store(second, total, mask=shown)
    far = tl.abs(z) - tl.load(numbers + 12)
    signed = tl.where(z < 0.0, -far, far)
    shrunk = tl.div_rn(-signed, tl.div_rn(tl.load(numbers + 11) + after, lr) + tl.load(numbers + 13))
    return tl.where(tl.abs(z) <= tl.load(numbers + 12), 0.0, shrunk)


# fmt: off
@triton.jit
def _update(
    keys, grads, weights, first, second, number, numbers, bias, bias_last, bad, changed,
    cells, uses, cpu_weights, cpu_first, cpu_second, cpu_number, fetched, capacity, total,
    KIND: tl.constexpr, VECTORS: tl.constexpr, FLAGS: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, TRACKS: tl.constexpr, BACKED: tl.constexpr, FETCHED: tl.constexpr,
):
    # fmt: on
    at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    here = at < tl.where(tl.load(bad) == 0.0, total, 0)
    key = tl.load(keys + at, mask=here, other=-1)
    before = tl.load(keys + at - 1, mask=here & (at > 0), other=-1)
    head = here & (key != before) & ((key & 1) == 0)
    place = tl.where(head, key >> 1, 0).to(tl.int64)
    shown = head[:, None] & (column < DIM)[None, :]
    grad = tl.load(grads + at[:, None] * DIM + column[None, :], mask=shown, other=0.0)
    if BACKED:
        cell = tl.load(cells + place, mask=head, other=0).to(tl.int64)
        held = cell < capacity
        source = weights + cell * DIM
        weights = tl.where(held, source, cpu_weights + place * DIM)
        source = tl.where(held, source, fetched + at * DIM) if FETCHED else weights
        first = tl.where(held, first + cell * DIM, cpu_first + place * DIM)
        second = tl.where(held, second + cell * DIM, cpu_second + place * DIM)
        number = tl.where(held, number + cell, cpu_number + place)
        tl.store(uses + place, tl.load(uses + place, mask=head, other=0) + 1, mask=head)
    else:
        weights, number = weights + place * DIM, number + place
        source = weights
        first, second = first + place * DIM, second + place * DIM
    first, second = first[:, None] + column[None, :], second[:, None] + column[None, :]
    stored = weights[:, None] + column[None, :]
    w = tl.load(source[:, None] + column[None, :], mask=shown, other=0.0).to(tl.float32)
    if KIND == 4:
        w = _adam(w, grad, first, second, number, shown, head, numbers, bias, bias_last, FLAGS)
    else:
        g = grad + tl.load(numbers + 1) * w
        if KIND == 0:
            if VECTORS == 0:
                w = w - tl.load(numbers) * g
            else:
                w = _momentum(w, g, first, number, shown, head, numbers, FLAGS)
        elif KIND == 1:
            w = _adagrad(w, g, first, shown, numbers)
        elif KIND == 2:
            w = _rmsprop(w, g, first, shown, numbers)
        elif KIND == 3:
            w = _rowwise(w, g, source, grads, number, at, head, numbers, DIM, LANES)
        else:
            w = _ftrl(w, g, first, second, shown, numbers)
    tl.store(stored, w.to(stored.dtype.element_ty), mask=shown)
    if TRACKS:
        tl.store(changed + place, tl.full([ROWS], 1, tl.int8), mask=head)


@functools.lru_cache(maxsize=64)
def _numbers(update: Update, device: torch.device) -> torch.Tensor:
    made = torch.tensor(update.numbers, dtype=torch.float32, device="cpu")
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


def _stored(weights: torch.Tensor, vectors: list[torch.Tensor], number: torch.Tensor | None) -> list[torch.Tensor]:
    """Return weights, two state vectors and the state number; the weights stand for what a row does not have."""
    return [
        weights,
        *(vectors[i] if i < len(vectors) else weights for i in range(2)),
        weights if number is None else number,
    ]


def update(
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
    if not len(keys):
        return
    spec, dim = update.spec, weights.shape[1]
    columns = triton.next_power_of_2(dim)
    rows = max(1, TILE_FLOATS // columns)
    stored = _stored(weights, vectors, number)
    behind = stored if backing is None else _stored(backing.weights, backing.vectors, backing.number)
    counting = spec.kind == "adam" and update.fixed is None
    bias = update_rules.bias_table(spec.beta1, spec.beta2, weights.device) if counting else weights
    if spec.kind == "adam":
        flags = int(not counting) + 2 * spec.eps_outside
    else:
        flags = int(number is not None) + 2 * spec.nesterov
    _update[(triton.cdiv(len(keys), rows),)](
        keys,
        grads,
        *stored,
        _numbers(update, weights.device),
        bias,
        len(bias) - 1,
        bad,
        keys if changed is None else changed.view(torch.int8),
        keys if backing is None else backing.cells,
        keys if backing is None else backing.uses,
        *behind,
        weights if fetched is None else fetched,
        0 if backing is None else backing.capacity,
        len(keys),
        KIND=KINDS[spec.kind],
        VECTORS=len(vectors),
        FLAGS=flags,
        DIM=dim,
        COLUMNS=columns,
        ROWS=rows,
        LANES=LANES,
        TRACKS=changed is not None,
        BACKED=backing is not None,
        FETCHED=fetched is not None,
        enable_fp_fusion=False,
    )
