"""Pure. One row of the NumPy oracle: where it lives, how it starts, one optimizer step, all in float32.

In: tests/oracles/reference.py. Out: the floats that row_init.cpp and kernels.inl of cpp/store/kernels give.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.domain.model import tables

Floats = npt.NDArray[Any]
"""float32 throughout; NumPy's stubs would widen every quotient."""
f32 = np.float32

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(x: int) -> int:
    """The finalizer of splitmix64."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & WORD
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


@functools.lru_cache(1 << 16)
def hash_key(table: int, key: int) -> int:
    """Where a key lives and how it starts both follow from this."""
    return mix64((key + GOLDEN * (table + 1)) & WORD)


def slot_of(hashed: int, slots: int) -> int:
    """The top bits of the hash."""
    return hashed >> (64 - (slots.bit_length() - 1))


def stored(weights: Floats, dtype: tables.DType) -> Floats:
    """What reads back from storage of this type: rounded to nearest, ties to even."""
    if dtype == "float32":
        return weights.astype(f32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return weights.astype(np.float16).astype(f32)
    bits = weights.astype(f32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(f32)


def init_row(init: tables.Init, dim: int, seed: int, hashed: int) -> Floats:
    """A row that was never trained. Each 64 random bits serve two neighbouring weights."""
    row_seed = mix64(hashed ^ mix64((seed + GOLDEN) & WORD))
    words = [mix64((row_seed + (pair + 1) * GOLDEN) & WORD) for pair in range((dim + 1) // 2)]
    low = np.array([word & 0xFFFFFFFF for word in words], np.uint64)
    high = np.array([word >> 32 for word in words], np.uint64)
    if init.kind == "zeros":
        return np.zeros(dim, f32)
    if init.kind == "normal":
        radius = np.sqrt(-2 * np.log((low.astype(np.float64) + 0.5) * 2.0**-32))
        angle = 2 * np.pi * (high.astype(np.float64) * 2.0**-32)
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        normal: Floats = (float(f32(init.a)) + float(f32(init.b)) * pairs).astype(f32)
        return normal.reshape(-1)[:dim]
    if init.kind == "uniform":
        start, span = f32(init.a), f32(init.b) - f32(init.a)
    else:
        bound = f32(float(f32(init.a)) * np.sqrt(6.0 / (float(f32(init.b)) + dim)))
        start, span = -bound, f32(2) * bound
    units = np.stack([low >> np.uint64(8), high >> np.uint64(8)], axis=1).astype(f32).reshape(-1)[:dim]
    return start + span * (units * f32(2.0**-24))


@dataclass(slots=True)
class State:
    """Optimizer state of one row: up to two vectors (or a single sum) and a count of steps."""

    first: Floats
    second: Floats
    steps: int = 0


def new_state(optim: tables.OptimSpec, dim: int) -> State:
    """What a row starts with."""
    start = f32(optim.initial_accumulator)
    if optim.kind == "rowwise_adagrad":
        return State(np.full(1, start, f32), np.zeros(0, f32))
    if optim.kind == "adagrad":
        return State(np.full(dim, start, f32), np.zeros(0, f32))
    if optim.kind == "ftrl":
        return State(np.zeros(dim, f32), np.full(dim, start, f32))
    return State(np.zeros(dim, f32), np.zeros(dim, f32))


def step(optim: tables.OptimSpec, hyper: tables.Hyper, weights: Floats, state: State, grad: Floats) -> Floats:
    """New weights; changes the state."""
    state.steps += 1
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        return KERNELS[optim.kind](optim, hyper, weights.astype(f32), state, grad.astype(f32))


def _decayed(hyper: tables.Hyper, w: Floats, grad: Floats) -> Floats:
    return grad + f32(hyper.weight_decay) * w


def _sgd(optim: tables.OptimSpec, hyper: tables.Hyper, w: Floats, state: State, grad: Floats) -> Floats:
    g = _decayed(hyper, w, grad)
    lr, momentum = f32(hyper.lr), f32(optim.momentum)
    if optim.momentum == 0:
        return w - lr * g
    first = state.steps == 1 and optim.dampening != 0
    keep = f32(0) if first else momentum
    take = f32(1) if first or optim.dampening == 0 else f32(1) - f32(optim.dampening)
    state.first = keep * state.first + take * g
    return w - lr * (g + momentum * state.first) if optim.nesterov else w - lr * state.first


def _adagrad(optim: tables.OptimSpec, hyper: tables.Hyper, w: Floats, state: State, grad: Floats) -> Floats:
    g = _decayed(hyper, w, grad)
    state.first = state.first + g * g
    return w - f32(hyper.lr) * (g / (np.sqrt(state.first) + f32(optim.eps)))


def _rowwise_adagrad(optim: tables.OptimSpec, hyper: tables.Hyper, w: Floats, state: State, grad: Floats) -> Floats:
    g = _decayed(hyper, w, grad)
    squares = np.zeros(-(-len(g) // 16) * 16, f32)
    squares[: len(g)] = g * g
    part = np.zeros(16, f32)
    for line in squares.reshape(-1, 16):
        part = part + line
    while len(part) > 1:
        part = part[: len(part) // 2] + part[len(part) // 2 :]
    state.first = state.first + part / f32(len(g))
    rate = f32(hyper.lr) / (np.sqrt(state.first) + f32(optim.eps))
    moved: Floats = w - rate * g
    return moved


def _adam(optim: tables.OptimSpec, hyper: tables.Hyper, w: Floats, state: State, grad: Floats) -> Floats:
    lr, decay, beta2 = f32(hyper.lr), f32(hyper.weight_decay), f32(optim.beta2)
    if optim.decoupled_decay:
        w, decay = w * (f32(1) - lr * decay), f32(0)
    g = grad + decay * w
    state.first = state.first + f32(1 - float(f32(optim.beta1))) * (g - state.first)
    state.second = beta2 * state.second + f32(1 - float(beta2)) * (g * g)
    t = float(hyper.step or state.steps)
    size = float(lr) / (1 - float(f32(optim.beta1)) ** t)
    root = math.sqrt(1 - float(beta2) ** t)
    rate, scale = (size, 1 / root) if optim.eps_outside else (size * root, 1.0)
    moved: Floats = w - f32(rate) * (state.first / (np.sqrt(state.second) * f32(scale) + f32(optim.eps)))
    return moved


def _rmsprop(optim: tables.OptimSpec, hyper: tables.Hyper, w: Floats, state: State, grad: Floats) -> Floats:
    g = _decayed(hyper, w, grad)
    alpha = f32(optim.alpha)
    state.first = alpha * state.first + f32(1 - float(alpha)) * (g * g)
    return w - f32(hyper.lr) * (g / (np.sqrt(state.first) + f32(optim.eps)))


def _ftrl(optim: tables.OptimSpec, hyper: tables.Hyper, w: Floats, state: State, grad: Floats) -> Floats:
    g = _decayed(hyper, w, grad)
    lr, l1 = f32(hyper.lr), f32(optim.l1)
    before = np.sqrt(state.second)
    state.second = state.second + g * g
    after = np.sqrt(state.second)
    state.first = state.first + (g - ((after - before) / lr) * w)
    size = np.abs(state.first)
    shrunk = -np.copysign(size - l1, state.first) / ((f32(optim.ftrl_beta) + after) / lr + f32(optim.l2))
    moved: Floats = np.where(size <= l1, f32(0), shrunk).astype(f32)
    return moved


KERNELS: dict[str, Callable[[tables.OptimSpec, tables.Hyper, Floats, State, Floats], Floats]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "rmsprop": _rmsprop,
    "ftrl": _ftrl,
}
