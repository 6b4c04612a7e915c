"""Pure. How well models of throughput foretell what they have not seen: the errors that Kale's Fig. 7 compares.

In: measurements to fit, others to foretell (capacity_model.py, throughput_curves.py). Out: a `CapacityErrors` for each
model. Next: lab/springtide_lab/reproduce/kale/throughput.py on made truth, lab/springtide_lab/bench/stream/capacity.py
on real runs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from springtide.planning.online.capacity import capacity_model
from springtide.planning.online.capacity.capacity_model import CapacitySample, Kind


class CapacityErrors(NamedTuple):
    """Errors of foretold throughput."""

    mape: float
    """Mean of absolute errors, each as a share of what was measured."""
    mae: float
    """Mean absolute error, samples a second."""
    rmse: float
    worst: float
    """The largest, as a share."""


def judged(foretold: Sequence[float], measured: Sequence[float]) -> CapacityErrors:
    said, came = np.asarray(foretold, dtype=float), np.asarray(measured, dtype=float)
    off = np.abs(said - came)
    return CapacityErrors(
        float(np.mean(off / came)), float(off.mean()), float(np.sqrt(np.mean(off**2))), float(np.max(off / came))
    )


def peers(kind: Kind) -> tuple[Kind, ...]:
    return (kind, "ernest", "optimus" if kind == "sync" else "optimus-async")


def judge(
    kind: Kind, seen: Sequence[CapacitySample], held: Sequence[CapacitySample], *, batch: float = 1.0
) -> dict[Kind, CapacityErrors]:
    """Fit each model to `seen`, the same way, and let it foretell `held`."""
    found: dict[Kind, CapacityErrors] = {}
    for each in peers(kind):
        curve: Callable[[float], float] = capacity_model.fit(each, seen, batch=batch)
        found[each] = judged([curve(one.workers) for one in held], [one.throughput for one in held])
    return found


def left_out(kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0) -> dict[str, CapacityErrors]:
    """The same, each measurement foretold from all others: where there are few. Also as a live job learns it."""
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


def _fitted(kind: Kind, batch: float, seen: Sequence[CapacitySample]) -> Callable[[float], float]:
    return capacity_model.fit(kind, seen, batch=batch)
