"""Optimizer steps for rows in torch, bit-identical to cpp/store/kernels, and the numbers that every kernel needs.

In: a table's OptimSpec and the hyperparameters of a push. Out: an `Update`, and `step`, which applies it to rows. Each
torch call rounds once, so no multiplication is fused with an addition. Roots are taken in double precision and rounded,
because torch's float32 root is not correctly rounded on every CPU.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from springtide.domain.model.tables import OptimSpec

f32 = np.float32
NO_MORE_BIAS = 1e-9  # a bias correction of Adam below this is below the precision of float32
MOST_BIAS_STEPS = 1 << 20
LANES = 16  # number of partial sums of a row's mean square, as in cpp/store/kernels/kernels.inl


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step with all numbers rounded to float32."""

    spec: OptimSpec
    lr: float
    decay: float
    undamped: float = 1.0
    rest1: float = 0.0
    rest2: float = 0.0
    rest_alpha: float = 0.0
    shrink: float = 1.0
    """Factor by which AdamW's weight decay multiplies a weight."""
    fixed: tuple[float, float] | None = None
    """Adam: step size, and the factor of the square root. None means that each row counts its own steps."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers, in the order in which triton_updates.py reads them."""
        spec = self.spec
        rounded = (number(value) for value in (spec.eps, spec.ftrl_beta, spec.l1, spec.l2))
        moments = (number(spec.beta2), self.rest1, self.rest2, number(spec.alpha), self.rest_alpha, self.shrink)
        plain = (self.lr, self.decay, number(spec.momentum), self.undamped)
        return (*plain, *moments, *rounded, *(self.fixed or (0.0, 0.0)))


def vector_count(spec: OptimSpec) -> int:
    """Return the number of state vectors of a row."""
    match spec.kind:
        case "sgd":
            return 0 if spec.momentum == 0 else 1
        case "adagrad" | "rmsprop":
            return 1
        case "adam" | "ftrl":
            return 2
    return 0


def has_number(spec: OptimSpec) -> bool:
    """Return True if a row has a state number: a sum, a mark of its first gradient, or a count of steps."""
    damped = spec.kind == "sgd" and spec.momentum != 0 and spec.dampening != 0
    return damped or spec.kind in ("rowwise_adagrad", "adam")


def new_state(
    spec: OptimSpec, rows: int, dim: int, device: torch.device
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Return the state vectors and numbers of new rows."""
    start = spec.initial_accumulator
    first = [start] if spec.kind == "adagrad" else [0.0, start] if spec.kind == "ftrl" else [0.0, 0.0]
    vectors = [torch.full((rows, dim), first[i], device=device) for i in range(vector_count(spec))]
    if not has_number(spec):
        return vectors, None
    if spec.kind == "adam":
        return vectors, torch.zeros(rows, dtype=torch.int32, device=device)
    return vectors, torch.full((rows,), start if spec.kind == "rowwise_adagrad" else 0.0, device=device)


@functools.lru_cache(maxsize=1024)
def prepare(spec: OptimSpec, lr: float, decay: float, step: int) -> Update:
    """Return the update of a push; `step` is Adam's step for all rows, or 0."""
    rate, shrunk = f32(lr), f32(decay)
    beta1, beta2, alpha = (float(f32(value)) for value in (spec.beta1, spec.beta2, spec.alpha))
    fixed = None
    if spec.kind == "adam" and step:
        fixed = adam_sizes(spec, float(rate), *_bias(beta1, beta2, step))
    return Update(
        spec,
        lr=float(rate),
        decay=0.0 if spec.kind == "adam" and spec.decoupled_decay else float(shrunk),
        undamped=float(f32(1) - f32(spec.dampening)),
        rest1=float(f32(1.0 - beta1)),
        rest2=float(f32(1.0 - beta2)),
        rest_alpha=float(f32(1.0 - alpha)),
        shrink=float(f32(1) - rate * shrunk) if spec.decoupled_decay else 1.0,
        fixed=fixed,
    )


def adam_sizes(spec: OptimSpec, lr: float, rest: float, root: float) -> tuple[float, float]:
    """Return Adam's step size and the factor of its square root, from the bias corrections."""
    outside = lr / rest
    if spec.eps_outside:
        return float(f32(outside)), float(f32(1.0 / root))
    return float(f32(outside * root)), 1.0


def _bias(beta1: float, beta2: float, step: int) -> tuple[float, float]:
    return 1.0 - math.pow(beta1, step), math.sqrt(1.0 - math.pow(beta2, step))


@functools.lru_cache(maxsize=8)
def bias_table(beta1: float, beta2: float, device: torch.device) -> torch.Tensor:
    """Return Adam's bias corrections by step, in double precision, with shape [steps, 2]. Later steps use the last
    entry."""
    beta1, beta2 = float(f32(beta1)), float(f32(beta2))
    slowest = max(beta1, beta2)
    last = min(int(math.log(NO_MORE_BIAS) / math.log(slowest)) + 1, MOST_BIAS_STEPS) if slowest > 0 else 1
    table = [(1.0, 1.0), *(_bias(beta1, beta2, step) for step in range(1, last + 1))]
    made = torch.tensor(table, dtype=torch.float64, device="cpu")
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


def root(values: torch.Tensor) -> torch.Tensor:
    """Return correctly rounded square roots."""
    return values.double().sqrt().float()


def number(value: float) -> float:
    return float(f32(value))


def step(
    update: Update, w: torch.Tensor, vectors: Sequence[torch.Tensor], state: torch.Tensor | None, grad: torch.Tensor
) -> torch.Tensor:
    """Return the new weights of rows; change `vectors` and `state` in place."""
    spec, g = update.spec, grad + update.decay * w
    eps = number(spec.eps)
    match spec.kind:
        case "sgd":
            return _sgd(update, w, vectors, state, g)
        case "adagrad":
            total = vectors[0].add_(g * g)
            return w - update.lr * (g / (root(total) + eps))
        case "rmsprop":
            average = vectors[0].copy_(number(spec.alpha) * vectors[0] + update.rest_alpha * (g * g))
            return w - update.lr * (g / (root(average) + eps))
        case "rowwise_adagrad":
            assert state is not None
            state.add_(_folded(g) / torch.full_like(state, g.shape[1]))
            below = root(state) + eps
            return w - (torch.full_like(below, update.lr) / below)[:, None] * g
        case "adam":
            return _adam(update, w, vectors, state, grad)
    return _ftrl(update, w, vectors, g)


def _sgd(
    update: Update, w: torch.Tensor, vectors: Sequence[torch.Tensor], started: torch.Tensor | None, g: torch.Tensor
) -> torch.Tensor:
    if not vectors:
        return w - update.lr * g
    keep = torch.full((len(w), 1), number(update.spec.momentum), device=w.device)
    take = torch.ones_like(keep)
    if started is not None:
        first = (started == 0)[:, None]
        keep = torch.where(first, torch.zeros_like(keep), keep)
        take = torch.where(first, take, torch.full_like(take, update.undamped))
        started.fill_(1.0)
    buffer = vectors[0].copy_(keep * vectors[0] + take * g)
    if update.spec.nesterov:
        return w - update.lr * (g + number(update.spec.momentum) * buffer)
    return w - update.lr * buffer


def _folded(g: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row, with the partial sums and the order of the native kernel."""
    rows, dim = g.shape
    part = torch.zeros(rows, LANES, device=g.device)
    for begin in range(0, dim, LANES):
        piece = g[:, begin : begin + LANES]
        part[:, : piece.shape[1]] += piece * piece
    part = part[:, :8] + part[:, 8:]
    part = part[:, :4] + part[:, 4:]
    return (part[:, 0] + part[:, 2]) + (part[:, 1] + part[:, 3])


def _adam(
    update: Update, w: torch.Tensor, vectors: Sequence[torch.Tensor], counts: torch.Tensor | None, grad: torch.Tensor
) -> torch.Tensor:
    spec = update.spec
    assert counts is not None
    counts.add_(1)
    if update.fixed is not None:
        size, scale = (torch.full((len(w), 1), value, device=w.device) for value in update.fixed)
    else:
        table = bias_table(spec.beta1, spec.beta2, w.device)
        rest, below = table[counts.long().clamp(max=len(table) - 1)].unbind(1)
        outside = torch.full_like(rest, update.lr) / rest
        size = (outside if spec.eps_outside else outside * below).float()[:, None]
        scale = (torch.ones_like(below) / below if spec.eps_outside else torch.ones_like(below)).float()[:, None]
    x = w * update.shrink
    g = grad + update.decay * x
    m = vectors[0].copy_(vectors[0] + update.rest1 * (g - vectors[0]))
    v = vectors[1].copy_(number(spec.beta2) * vectors[1] + update.rest2 * (g * g))
    return x - size * (m / (root(v) * scale + number(spec.eps)))


def _ftrl(update: Update, w: torch.Tensor, vectors: Sequence[torch.Tensor], g: torch.Tensor) -> torch.Tensor:
    spec, lr = update.spec, torch.full_like(w, update.lr)
    z, total = vectors
    before = root(total)
    after = root(total.add_(g * g))
    z.add_(g - ((after - before) / lr) * w)
    size = z.abs()
    l1 = number(spec.l1)
    shrunk = -torch.copysign(size - l1, z) / ((number(spec.ftrl_beta) + after) / lr + number(spec.l2))
    return torch.where(size <= l1, torch.zeros_like(w), shrunk)
