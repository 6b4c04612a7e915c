"""Models of async throughput by workers and servers, and the errors of models on measurements that they did not see.

"async" is Kale's Eqn 8. It has no term for too few servers, which real jobs show; "shared" is Eqn 8 with this term.
"optimus-async" is for comparison. Planning uses the curves at a fixed ratio (`planning.online.capacity_model`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.planning.online import capacity_model
from springtide.planning.online.capacity_model import CapacitySample, relative
from springtide.planning.online.capacity_model import Kind as CurveKind

Kind = Literal["async", "shared", "optimus-async"]
Array = NDArray[np.float64]


def _async(w: Array, p: Array) -> list[Array]:
    return [1 / w, 1 / (w * p), p / w, np.ones_like(w)]


def _shared(w: Array, p: Array) -> list[Array]:
    return [*_async(w, p), 1 / p]


def _optimus_async(w: Array, p: Array) -> list[Array]:
    return [1 / w, 1 / p, np.ones_like(w), p / w]


FEATURES: Mapping[Kind, Callable[[Array, Array], list[Array]]] = {
    "async": _async,
    "shared": _shared,
    "optimus-async": _optimus_async,
}
"""Features of each coefficient, in seconds per sample."""


class SurfaceSample(NamedTuple):
    """Measured throughput of a number of workers and servers."""

    workers: int
    servers: int
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySurface:
    """Throughput as a function of the number of workers and servers."""

    kind: Kind
    coefficients: tuple[float, ...]

    def __call__(self, workers: float, servers: float) -> float:
        of = FEATURES[self.kind](np.asarray(float(workers)), np.asarray(float(servers)))
        seconds = float(np.stack(of) @ np.asarray(self.coefficients))
        return 1 / seconds if seconds > 0 else np.inf


def fit_surface(kind: Kind, seen: Sequence[SurfaceSample]) -> CapacitySurface:
    """Fit a surface by least relative error of the step time."""
    if kind not in FEATURES:
        raise errors.UnknownName("model of throughput", kind, FEATURES)
    table = np.asarray(seen, dtype=float).reshape(len(seen), 3)
    if not len(seen) or (table[:, :2] < 1).any() or not (np.isfinite(table).all() and (table[:, 2] > 0).all()):
        raise errors.BadInput(f"{len(seen)} measurements of throughput: wanted some, each of a worker or more, above 0")
    columns = np.stack(FEATURES[kind](table[:, 0], table[:, 1]), axis=-1)
    return CapacitySurface(kind=kind, coefficients=relative(columns, table[:, 2]))


class CapacityErrors(NamedTuple):
    """Errors of predicted throughput."""

    mape: float
    """Mean of absolute errors, each as a share of the measured value."""
    mae: float
    """Mean absolute error in samples per second."""
    rmse: float
    worst: float
    """Largest error as a share of the measured value."""


def judged(foretold: Sequence[float], measured: Sequence[float]) -> CapacityErrors:
    said, came = np.asarray(foretold, dtype=float), np.asarray(measured, dtype=float)
    off = np.abs(said - came)
    return CapacityErrors(
        float(np.mean(off / came)), float(off.mean()), float(np.sqrt(np.mean(off**2))), float(np.max(off / came))
    )


def peers(kind: CurveKind) -> tuple[CurveKind, ...]:
    return (kind, "ernest", "optimus" if kind == "sync" else "optimus-async")


def judge(
    kind: CurveKind, seen: Sequence[CapacitySample], held: Sequence[CapacitySample], *, batch: float = 1.0
) -> dict[CurveKind, CapacityErrors]:
    """Fit each model to `seen` and return its errors on `held`."""
    found: dict[CurveKind, CapacityErrors] = {}
    for each in peers(kind):
        curve: Callable[[float], float] = capacity_model.fit(each, seen, batch=batch)
        found[each] = judged([curve(one.workers) for one in held], [one.throughput for one in held])
    return found


def left_out(kind: CurveKind, seen: Sequence[CapacitySample], *, batch: float = 1.0) -> dict[str, CapacityErrors]:
    """Return leave-one-out errors of each model, for small data sets. "learned" is the fit of a running job."""
    models: dict[str, Callable[[Sequence[CapacitySample]], Callable[[float], float]]] = {
        "learned": lambda some: capacity_model.learn(kind, some, batch=batch),
        **{each: partial(_fitted, each, batch) for each in peers(kind)},
    }
    said: dict[str, list[float]] = {each: [] for each in models}
    for place, one in enumerate(seen):
        others = [*seen[:place], *seen[place + 1 :]]
        for each, model in models.items():
            said[each].append(model(others)(one.workers))
    return {each: judged(so_far, [one.throughput for one in seen]) for each, so_far in said.items()}


def _fitted(kind: CurveKind, batch: float, seen: Sequence[CapacitySample]) -> Callable[[float], float]:
    return capacity_model.fit(kind, seen, batch=batch)
