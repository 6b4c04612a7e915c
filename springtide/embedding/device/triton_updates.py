"""Optimizer steps for rows in Triton, bit-identical to update_rules.py and cpp/store/kernels.

In: sorted keys and the gradient at the first position of each key. Out: trained rows, in place. Divisions and roots are
correctly rounded, and `enable_fp_fusion=False` prevents fused multiply-add. `numbers` points to `Update.numbers`.
"""

import functools

import torch
import triton
import triton.language as tl

from springtide.embedding.device import update_rules
from springtide.embedding.device.update_rules import LANES, Update

TILE_FLOATS = 1024
KINDS = {"sgd": 0, "adagrad": 1, "rmsprop": 2, "rowwise_adagrad": 3, "adam": 4, "ftrl": 5}


@triton.jit
def _momentum(w, g, first, number, spot, place, shown, head, numbers, FLAGS: tl.constexpr):
    """FLAGS: 1 if the first gradient is not dampened, plus 2 for Nesterov's momentum."""
    momentum, undamped = tl.load(numbers + 2), tl.load(numbers + 3)
    buffer = tl.load(first + spot, mask=shown, other=0.0)
    if FLAGS % 2 == 1:
        started = tl.load(number + place, mask=head, other=0.0) != 0.0
        buffer = tl.where(started, momentum, 0.0)[:, None] * buffer + tl.where(started, undamped, 1.0)[:, None] * g
        tl.store(number + place, tl.where(started, 1.0, 1.0), mask=head)
    else:
        buffer = momentum * buffer + g
    tl.store(first + spot, buffer, mask=shown)
    if FLAGS >= 2:
        buffer = g + momentum * buffer
    return w - tl.load(numbers) * buffer


@triton.jit
def _adagrad(w, g, first, spot, shown, numbers):
    total = tl.load(first + spot, mask=shown, other=1.0) + g * g
    tl.store(first + spot, total, mask=shown)
    return w - tl.load(numbers) * tl.div_rn(g, tl.sqrt_rn(total) + tl.load(numbers + 10))


@triton.jit
def _rmsprop(w, g, first, spot, shown, numbers):
    average = tl.load(numbers + 7) * tl.load(first + spot, mask=shown, other=1.0) + tl.load(numbers + 8) * (g * g)
    tl.store(first + spot, average, mask=shown)
    return w - tl.load(numbers) * tl.div_rn(g, tl.sqrt_rn(average) + tl.load(numbers + 10))


@triton.jit
def _rowwise(w, g, weights, grads, number, place, at, head, numbers, DIM: tl.constexpr, LANES: tl.constexpr):
    """Sum the squares of each row in the same order as the native kernel: sixteen partial sums, which are then added in
    pairs."""
    rows: tl.constexpr = w.shape[0]
    part = tl.zeros([rows, LANES], tl.float32)
    for begin in tl.static_range(0, DIM, LANES):
        column = begin + tl.arange(0, LANES)
        inside = head[:, None] & (column < DIM)[None, :]
        grad = tl.load(grads + at[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        old = tl.load(weights + place[:, None] * DIM + column[None, :], mask=inside, other=0.0).to(tl.float32)
        grad = grad + tl.load(numbers + 1) * old
        part = part + grad * grad
    part = tl.sum(tl.reshape(part, [rows, 2, 8]), 1)
    part = tl.sum(tl.reshape(part, [rows, 2, 4]), 1)
    part = tl.sum(tl.reshape(part, [rows, 2, 2]), 1)
    mean = tl.div_rn(tl.sum(part, 1), tl.full([rows], DIM, tl.float32))
    total = tl.load(number + place, mask=head, other=1.0) + mean
    tl.store(number + place, total, mask=head)
    rate = tl.div_rn(tl.full([rows], 1.0, tl.float32) * tl.load(numbers), tl.sqrt_rn(total) + tl.load(numbers + 10))
    return w - rate[:, None] * g


@triton.jit
def _adam(w, grad, first, second, number, spot, place, shown, head, numbers, bias, bias_last, FLAGS: tl.constexpr):
    """FLAGS: 1 if all rows are at the same step, plus 2 if eps is added outside of the bias correction."""
    rows: tl.constexpr = w.shape[0]
    count = tl.load(number + place, mask=head, other=0) + 1
    tl.store(number + place, count, mask=head)
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
    m = tl.load(first + spot, mask=shown, other=0.0)
    m = m + tl.load(numbers + 5) * (g - m)
    v = tl.load(numbers + 4) * tl.load(second + spot, mask=shown, other=0.0) + tl.load(numbers + 6) * (g * g)
    tl.store(first + spot, m, mask=shown)
    tl.store(second + spot, v, mask=shown)
    return x - size * tl.div_rn(m, tl.sqrt_rn(v) * scale + tl.load(numbers + 10))


@triton.jit
def _ftrl(w, g, first, second, spot, shown, numbers):
    z = tl.load(first + spot, mask=shown, other=0.0)
    total = tl.load(second + spot, mask=shown, other=0.0)
    before = tl.sqrt_rn(total)
    total = total + g * g
    after = tl.sqrt_rn(total)
    lr = tl.zeros_like(w) + tl.load(numbers)
    z = z + (g - tl.div_rn(after - before, lr) * w)
    tl.store(first + spot, z, mask=shown)
    tl.store(second + spot, total, mask=shown)
    far = tl.abs(z) - tl.load(numbers + 12)
    signed = tl.where(z < 0.0, -far, far)
    shrunk = tl.div_rn(-signed, tl.div_rn(tl.load(numbers + 11) + after, lr) + tl.load(numbers + 13))
    return tl.where(tl.abs(z) <= tl.load(numbers + 12), 0.0, shrunk)


@triton.jit
def _update(
    keys,
    grads,
    weights,
    first,
    second,
    number,
    numbers,
    bias,
    bias_last,
    bad,
    changed,
    total,
    KIND: tl.constexpr,
    VECTORS: tl.constexpr,
    FLAGS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TRACKS: tl.constexpr,
):
    at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    here = at < tl.where(tl.load(bad) == 0.0, total, 0)
    key = tl.load(keys + at, mask=here, other=-1)
    before = tl.load(keys + at - 1, mask=here & (at > 0), other=-1)
    head = here & (key != before) & ((key & 1) == 0)
    place = tl.where(head, key >> 1, 0).to(tl.int64)
    shown = head[:, None] & (column < DIM)[None, :]
    spot = place[:, None] * DIM + column[None, :]
    grad = tl.load(grads + at[:, None] * DIM + column[None, :], mask=shown, other=0.0)
    w = tl.load(weights + spot, mask=shown, other=0.0).to(tl.float32)
    if KIND == 4:
        w = _adam(w, grad, first, second, number, spot, place, shown, head, numbers, bias, bias_last, FLAGS)
    else:
        g = grad + tl.load(numbers + 1) * w
        if KIND == 0:
            if VECTORS == 0:
                w = w - tl.load(numbers) * g
            else:
                w = _momentum(w, g, first, number, spot, place, shown, head, numbers, FLAGS)
        elif KIND == 1:
            w = _adagrad(w, g, first, spot, shown, numbers)
        elif KIND == 2:
            w = _rmsprop(w, g, first, spot, shown, numbers)
        elif KIND == 3:
            w = _rowwise(w, g, weights, grads, number, place, at, head, numbers, DIM, LANES)
        else:
            w = _ftrl(w, g, first, second, spot, shown, numbers)
    tl.store(weights + spot, w.to(weights.dtype.element_ty), mask=shown)
    if TRACKS:
        tl.store(changed + place, tl.full([ROWS], 1, tl.int8), mask=head)


@functools.lru_cache(maxsize=64)
def _numbers(update: Update, device: torch.device) -> torch.Tensor:
    made = torch.tensor(update.numbers, dtype=torch.float32, device="cpu")
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


def update(
    keys: torch.Tensor,
    grads: torch.Tensor,
    weights: torch.Tensor,
    vectors: list[torch.Tensor],
    number: torch.Tensor | None,
    update: Update,
    bad: torch.Tensor,
    changed: torch.Tensor | None = None,
) -> None:
    if not len(keys):
        return
    spec, dim = update.spec, weights.shape[1]
    columns = triton.next_power_of_2(dim)
    rows = max(1, TILE_FLOATS // columns)
    first, second = (vectors[i] if i < len(vectors) else weights for i in range(2))
    counting = spec.kind == "adam" and update.fixed is None
    bias = update_rules.bias_table(spec.beta1, spec.beta2, weights.device) if counting else weights
    if spec.kind == "adam":
        flags = int(not counting) + 2 * spec.eps_outside
    else:
        flags = int(number is not None) + 2 * spec.nesterov
    _update[(triton.cdiv(len(keys), rows),)](
        keys,
        grads,
        weights,
        first,
        second,
        weights if number is None else number,
        _numbers(update, weights.device),
        bias,
        len(bias) - 1,
        bad,
        keys if changed is None else changed.view(torch.int8),
        len(keys),
        KIND=KINDS[spec.kind],
        VECTORS=len(vectors),
        FLAGS=flags,
        DIM=dim,
        COLUMNS=columns,
        ROWS=rows,
        LANES=LANES,
        TRACKS=changed is not None,
        enable_fp_fusion=False,
    )
