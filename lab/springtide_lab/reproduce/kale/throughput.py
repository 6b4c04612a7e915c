"""Compare models of throughput on synthetic data for Kale's Table 1 and Fig. 7: errors on unseen numbers of workers.

There are two kinds of data: the paper's fitted curves with noise, and curves that no model fits exactly, because the
number of servers is rounded up and the slowest worker counts. Real runs: `springtide bench capacity`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from springtide.planning.online import capacity_model
from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample, Kind
from springtide_lab.reproduce.autoscalers import least
from springtide_lab.reproduce.report import Row, row

M = 16_384
NOISE = 0.02  # standard deviation of one measurement, as a share
SLOWNESS = 0.05  # standard deviation of one worker's step time; a step of the group takes as long as its slowest worker
FITTED = (1, 2, 4, 6, 8, 12, 16, 24, 32)  # measured numbers of workers; all others up to 32 are predicted
MOST = 32
TABLE_1: Mapping[str, CapacityCurve] = {
    "T4, sync": CapacityCurve(kind="sync", coefficients=(0.00253, 11.1614, 11.6335, 1.88e-14), batch=M),
    "A10, sync": CapacityCurve(kind="sync", coefficients=(0.00035, 2.5726, 0.9824, 0.02786), batch=M),
    "T4, async": CapacityCurve(kind="async", coefficients=(0.001421, 0.0002297, 1.12e-18)),
    "A10, async": CapacityCurve(kind="async", coefficients=(0.000566, 0.000224, 1.41e-21)),
}
"""Curves as the authors fitted them. The authors' table has the coefficients in a different order: the first two are
those of 1 / w and of 1 in Eqn 6, as the authors' example shows. Eqn 9 is assumed to have the same order; then an A10
trains 2.5 times as fast as a T4.
"""
NAMES: Mapping[Kind, str] = {
    "sync": "ours",
    "async": "ours",
    "ernest": "Ernest",
    "optimus": "Optimus",
    "optimus-async": "Optimus",
}
Truth = Callable[[CapacityCurve, int, np.random.Generator], float]


class CapacityErrors(NamedTuple):
    """Errors of predicted throughput."""

    mape: float
    """Mean of the absolute errors, each as a share of the measured value."""
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


def peers(kind: Kind) -> tuple[Kind, ...]:
    return (kind, "ernest", "optimus" if kind == "sync" else "optimus-async")


def judge(
    kind: Kind, seen: Sequence[CapacitySample], held: Sequence[CapacitySample], *, batch: float = 1.0
) -> dict[Kind, CapacityErrors]:
    """Fit each model to the measurements in `seen`, and return its errors on those in `held`."""
    found: dict[Kind, CapacityErrors] = {}
    for peer in peers(kind):
        curve: Callable[[float], float] = capacity_model.fit(peer, seen, batch=batch)
        found[peer] = judged([curve(one.workers) for one in held], [one.throughput for one in held])
    return found


def left_out(kind: Kind, seen: Sequence[CapacitySample], *, batch: float = 1.0) -> dict[str, CapacityErrors]:
    """Return the leave-one-out errors of each model. Use this function for small data sets. "learned" is the fit of a
    running job.
    """
    models: dict[str, Callable[[Sequence[CapacitySample]], Callable[[float], float]]] = {
        "learned": lambda some: capacity_model.learn(kind, some, batch=batch),
        **{peer: partial(_fitted, peer, batch) for peer in peers(kind)},
    }
    said: dict[str, list[float]] = {each: [] for each in models}
    for place, one in enumerate(seen):
        others = [*seen[:place], *seen[place + 1 :]]
        for each, model in models.items():
            said[each].append(model(others)(one.workers))
    return {each: judged(so_far, [one.throughput for one in seen]) for each, so_far in said.items()}


def _fitted(kind: Kind, batch: float, seen: Sequence[CapacitySample]) -> Callable[[float], float]:
    return capacity_model.fit(kind, seen, batch=batch)


def noisy(curve: CapacityCurve, workers: int, chance: np.random.Generator) -> float:
    return noisy_rate(curve(workers), chance)


def uneven(curve: CapacityCurve, workers: int, chance: np.random.Generator) -> float:
    """Return the rate with half as many servers as workers, rounded up; in sync training the slowest worker counts."""
    servers = -(-workers // 2)
    if curve.kind == "sync":
        one, each, squared, grows = curve.coefficients
        slowest = float(np.max(1 + chance.normal(0, SLOWNESS, workers)))
        seconds = one + each / workers * slowest + squared / (workers * servers) + grows * (workers + servers) / 2
        return noisy_rate(curve.batch / seconds, chance)
    alone, shared, grows = curve.coefficients
    return noisy_rate(workers / (alone + shared / servers + grows * workers), chance)


def noisy_rate(rate: float, chance: np.random.Generator) -> float:
    return float(rate * np.exp(chance.normal(0, NOISE)))


@dataclass(frozen=True, slots=True)
class ThroughputOutcome:
    """Errors and coefficients for one kind of data and one seed, on all machines and modes."""

    by_case: Mapping[str, Mapping[str, CapacityErrors]]
    """Errors by machine and mode, then by model."""
    coefficients: Mapping[str, tuple[float, ...]]

    def mean(self, whose: str, what: str) -> float:
        return float(np.mean([getattr(case[whose], what) for case in self.by_case.values()]))

    def worst(self, whose: str) -> float:
        return max(case[whose].worst for case in self.by_case.values())

    def gained(self, what: str) -> float:
        """Return the largest reduction of an error by our model, relative to the better of the others."""
        others = ("Ernest", "Optimus")
        shares = [
            getattr(case["ours"], what) / min(getattr(case[other], what) for other in others)
            for case in self.by_case.values()
        ]
        return float(1 - min(shares))


def measure(truth: Truth, seed: int) -> ThroughputOutcome:
    by_case: dict[str, dict[str, CapacityErrors]] = {}
    coefficients: dict[str, tuple[float, ...]] = {}
    for place, (name, curve) in enumerate(TABLE_1.items()):
        chance = np.random.default_rng([seed, place])
        all_seen = [CapacitySample(workers, truth(curve, workers, chance)) for workers in range(1, MOST + 1)]
        seen = [one for one in all_seen if one.workers in FITTED]
        held = [one for one in all_seen if one.workers not in FITTED]
        found = judge(curve.kind, seen, held, batch=curve.batch)
        by_case[name] = {NAMES[kind]: one for kind, one in found.items()}
        coefficients[name] = capacity_model.fit(curve.kind, seen, batch=curve.batch).coefficients
    return ThroughputOutcome(by_case, coefficients)


def rows(seeds: Sequence[int]) -> list[Row]:
    """Return Table 1, the example of section 3.4 and Fig. 7."""
    paper = [measure(noisy, seed) for seed in seeds]
    harder = [measure(uneven, seed) for seed in seeds]
    return [
        *_example(),
        *_table_1(paper),
        *_fig_7(paper, "the paper's curves, 2% noise", goal=0.0243),
        *_fig_7(harder, "slowest workers, uneven servers"),
    ]


def _example() -> list[Row]:
    a10 = TABLE_1["A10, sync"]
    need = least(a10, 30_000, most=MOST)
    return [
        row("3.4.1", "A10 in step, F(10), samples/s", 30_007.3, [a10(10)], why="the coefficients as printed"),
        row("3.4.1", "workers for 30,000 samples/s", 10, [float(need.workers)]),
    ]


def _table_1(outcomes: Sequence[ThroughputOutcome]) -> list[Row]:
    found = []
    for name, curve in TABLE_1.items():
        places = {"1/w": 1, "1/w²": 2} if curve.kind == "sync" else {"1/w": 0, "1/w²": 1}
        for term, place in places.items():
            times, unit = (1, "s a batch") if curve.kind == "sync" else (1e6, "µs a sample")
            ours = [times * outcome.coefficients[name][place] for outcome in outcomes]
            found.append(row("Table 1", f"{name}: of {term}, {unit}", times * curve.coefficients[place], ours))
    return found


def _fig_7(outcomes: Sequence[ThroughputOutcome], truth: str, *, goal: float | None = None) -> list[Row]:
    def of(whose: str) -> list[float]:
        return [outcome.mean(whose, "mape") for outcome in outcomes]

    ours = "Fig. 7"
    return [
        row(ours, f"MAPE, {truth}", 0.0243, of("ours"), goal=goal, better="lower"),
        row(ours, "Ernest's MAPE, the same", 0.2018, of("Ernest")),
        row(ours, "Optimus' MAPE, the same", 0.2018, of("Optimus")),
        row(ours, "largest deviation of ours", 0.074, [outcome.worst("ours") for outcome in outcomes]),
        row(
            ours,
            "largest of the others",
            0.2,
            [max(outcome.worst("Ernest"), outcome.worst("Optimus")) for outcome in outcomes],
        ),
        row(ours, "MAE less than the others', up to", 0.7853, [outcome.gained("mae") for outcome in outcomes]),
        row(ours, "RMSE less than the others', up to", 0.7771, [outcome.gained("rmse") for outcome in outcomes]),
    ]
