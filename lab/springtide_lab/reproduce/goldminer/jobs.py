"""Draw jobs of GoldMiner's section 5.6: ten models with the cores per GPU that each needs, and their submissions.

The text does not give the bars of Fig. 1, only that 8 cores per GPU suffice for Bert alone and that the maximum is 64.
Each ratio is the lowest one that the text allows. With 8 cores per GPU, jobs are therefore 2.44 times slower on average
(Table 5: 2.43).
"""

import csv
import datetime
import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from springtide import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A model that jobs train."""

    name: str
    ratio: float
    """Cores per GPU that the model needs for full speed in one process."""
    trainer: float
    """Cores per GPU that the model's trainer needs once data workers preprocess."""
    intensive: bool
    """True if the job needs more than 12 cores per GPU: the class of section 5.6."""
    overhead: float = 0.0
    """Share of its full speed that a job loses by using data workers (Table 2)."""
    source: str

    @property
    def feeding(self) -> float:
        return self.ratio - self.trainer

    def alone(self, cpu: float) -> float:
        """Return the share of its ideal speed in one process with `cpu` cores per GPU."""
        return min(1.0, cpu / self.ratio)

    def fed(self, cpu: float) -> float:
        """Return the share of its ideal speed with data workers of `cpu` cores per GPU."""
        return min(self.capable, cpu / self.feeding)

    @property
    def enough(self) -> float:
        """Whole number of data worker cores per GPU that give the highest speed with data workers."""
        return math.ceil(self.feeding * self.capable - 1e-9)

    @property
    def capable(self) -> float:
        return 1.0 - self.overhead


def _model(name: str, ratio: float, trainer: float, source: str, *, overhead: float = 0.0) -> GpuModel:
    return GpuModel(name=name, ratio=ratio, trainer=trainer, intensive=ratio > 12, overhead=overhead, source=source)


MODELS: dict[str, GpuModel] = {
    one.name: one
    for one in (
        _model("WDL", 64, 2, "§2: up to 64; the first that §5.6 names; trainer: 2 assumed"),
        _model("DeepFM", 34, 2, "§4, §5.2: 256 data workers of a core for 8 GPUs; Table 2: 0.15 Gb/s"),
        _model("AlexNet", 37, 4, "Table 2: ResNet18's 18, times 12.5 / 6.9 Gb/s", overhead=0.127),
        _model("DIN", 13, 2, "§5.6: above 12, the lowest"),
        _model("ShuffleNet_v2", 13, 2, "§5.6: above 12, the lowest"),
        _model("ResNet18", 21, 3, "Fig. 13: 18 are more than two data workers of 8; a trainer of 3", overhead=0.063),
        _model("Inception_v3", 9, 2, "§2, §5.6: above 8, not above 12"),
        _model("ResNet50", 9, 2, "Table 2: ResNet18's 18, times 2.7 / 6.9 Gb/s"),
        _model("VGG16", 9, 2, "§2, §5.6: above 8, not above 12"),
        _model("Bert", 4, 2, "§2: at most 8"),
    )
}

_FULL = {"AlexNet": 48, "ResNet18": 27, "Inception_v3": 12, "ResNet50": 11}
CHOICES: dict[str, Mapping[str, float]] = {
    "chosen": {},
    "three full": _FULL,
    "mean 22.5": {**_FULL, "DIN": 22, "ShuffleNet_v2": 21},
    "in order": {**_FULL, "DeepFM": 56, "DIN": 41, "ShuffleNet_v2": 34},
    "highest": {
        **_FULL,
        "DeepFM": 64,
        "AlexNet": 64,
        "DIN": 64,
        "ShuffleNet_v2": 64,
        "ResNet50": 12,
        "VGG16": 12,
        "Bert": 8,
    },
}
"""Further ratios that the text allows, by name.

three full: ResNet18's three data workers are fully used, and the other models' ratios change in proportion. mean
22.5: the mean over jobs is 22.5, which follows from the 35.5% of GPUs that No DW (tuned) allocates if it allocates
all cores (8 / 0.355, Fig. 14). in order: ratios descend in the order in which section 5.6 names models. highest: the
highest ratios.
"""


def models(choice: str = "chosen") -> dict[str, GpuModel]:
    """Return the models with another choice of ratios; the cores of their trainers stay the same."""
    changed = CHOICES[choice]
    return {name: replace(model, ratio=changed.get(name, model.ratio)) for name, model in MODELS.items()}


Floats = NDArray[np.float64]
JOBS = 121
"""Number of jobs. The text does not give this number. With this number, No DW (tuned C/G) queues for the 338 min of
Table 5 (median of 20 seeds).
"""
SHORTEST = 10.0
"""Shortest duration of a job in minutes."""
LONGEST = {"8 h": 480.0, "1 day": 1440.0, "2 days": 2880.0}
GPUS = {
    "8 h": {1: 0.9712, 2: 0.0020, 4: 0.0142, 8: 0.0126},
    "1 day": {1: 0.9608, 2: 0.0034, 4: 0.0203, 8: 0.0155},
    "2 days": {1: 0.9506, 2: 0.0047, 4: 0.0252, 8: 0.0195},
}
"""Shares of jobs by number of GPUs, for each maximum duration."""
SHARES = (0, 5, 10, 25, 50, 75, 90, 95, 97, 98, 99, 99.5, 100)
QUANTILES = {
    "8 h": {
        1: (10, 12, 15, 23, 39, 70, 150, 216, 268, 326, 391, 423, 480),
        2: (10, 15, 17, 83, 291, 400, 433, 463, 466, 468, 470, 471, 472),
        4: (10, 12, 14, 34, 112, 254, 356, 422, 439, 461, 469, 473, 480),
        8: (10, 13, 16, 38, 123, 246, 377, 403, 432, 442, 459, 469, 478),
    },
    "1 day": {
        1: (10, 12, 15, 24, 40, 83, 187, 369, 606, 827, 1042, 1201, 1436),
        2: (10, 16, 43, 251, 442, 811, 1104, 1321, 1341, 1376, 1396, 1409, 1415),
        4: (10, 13, 18, 74, 254, 617, 1147, 1332, 1366, 1391, 1412, 1423, 1440),
        8: (10, 15, 18, 60, 208, 434, 907, 1078, 1172, 1224, 1299, 1354, 1384),
    },
    "2 days": {
        1: (10, 12, 15, 24, 41, 86, 214, 486, 903, 1151, 1660, 2075, 2879),
        2: (10, 20, 87, 369, 779, 1600, 2286, 2582, 2656, 2769, 2808, 2816, 2818),
        4: (10, 14, 22, 105, 428, 1342, 1813, 2219, 2493, 2624, 2768, 2793, 2839),
        8: (10, 15, 22, 86, 326, 1162, 2232, 2581, 2750, 2764, 2831, 2858, 2878),
    },
}
"""Durations in minutes at the percentiles of SHARES, by maximum duration and number of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePreset:
    """Parameters of the cluster and its jobs."""

    machines: int = 8
    gpus: int = 8
    cpus: int = 64
    """Cores of one machine (§5, experimental setup)."""
    period_min: float = 480.0
    """Minutes during which jobs are submitted (§5.6)."""
    jobs: int = JOBS
    mean_min: float = 202.0
    """Mean duration of a job at its ideal speed: 540 - 338 min. The jobs of No DW (tuned C/G) run at the ideal
    speed.
    """
    longest: str = "1 day"
    """Maximum duration of the trace's jobs that are used; a key of LONGEST."""
    ratios: str = "chosen"
    """Choice of the models' ratios; a key of CHOICES."""
    keep: float = 0.0
    """Fewest cores that a trainer keeps after tuning. With 8 cores per GPU, data workers would get none."""
    round_min: float = 0.5
    """Minutes between two rounds of allocation: 30 s (§3.4)."""
    quiet_min: float = 10.0
    """Minutes until the next round if the last round changed nothing."""
    measured_min: float = 500.0
    """Minutes over which utilization is measured: the first 500 min (Fig. 14)."""
    trace: str | None = None
    """Path of a CSV file with columns timestamp, duration (s) and num_gpus; None draws jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One submitted job."""

    name: str
    at: float
    """Time of submission in minutes."""
    gpus: int
    minutes: float
    """Duration at its ideal speed."""
    model: GpuModel


def draw(preset: TracePreset, seed: int) -> list[Job]:
    """Draw jobs in order of submission: half of each class, all models equally often, GPUs and durations by a trace.

    The paper samples 8 hours of Microsoft's trace and does not say which hours. This module draws jobs from the
    distribution of that trace's 46,592 jobs of up to 8 GPUs that ran for 10 minutes to a day, and scales their
    durations to the mean in the text.
    """
    random = np.random.default_rng([seed, 193])
    at, gpus, minutes = _real(preset, random) if preset.trace else _drawn(preset, random)
    order = np.argsort(at, kind="stable")
    known = models(preset.ratios)
    classes = [[one for one in known.values() if one.intensive is which] for which in (True, False)]
    halves = random.permutation(len(at)) % 2
    places = _places(len(at), random)
    picked = [classes[half][int(place * len(classes[half]))] for half, place in zip(halves, places, strict=True)]
    minutes = minutes * preset.mean_min / float(minutes.mean())
    return [
        Job(name=f"job-{place:03}", at=float(at[each]), gpus=int(gpus[each]), minutes=float(minutes[each]), model=model)
        for place, (each, model) in enumerate(zip(order, picked, strict=True))
    ]


def _places(count: int, random: np.random.Generator) -> Floats:
    """Return stratified random numbers from 0 to 1 in random order; every trace thus has its share of rare jobs."""
    return (random.permutation(count) + random.uniform(0, 1, count)) / count


def _drawn(preset: TracePreset, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    at = random.uniform(0, preset.period_min, preset.jobs)
    known, of = GPUS[preset.longest], QUANTILES[preset.longest]
    bounds = np.cumsum(list(known.values()))
    which = np.searchsorted(bounds / bounds[-1], _places(preset.jobs, random), side="right")
    gpus = np.array(list(known))[which]
    minutes = [
        np.exp(np.interp(100 * place, SHARES, np.log(of[int(one)])))
        for place, one in zip(_places(preset.jobs, random), gpus, strict=True)
    ]
    return at, gpus.astype(float), np.array(minutes)


def _real(preset: TracePreset, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    times, minutes, gpus = _read(pathlib.Path(str(preset.trace)))
    keep = (minutes >= SHORTEST) & (minutes <= LONGEST[preset.longest]) & (gpus <= preset.gpus)
    times, minutes, gpus = times[keep], minutes[keep], gpus[keep]
    period = np.floor(times / preset.period_min)
    numbers, counts = np.unique(period, return_counts=True)
    enough = numbers[counts >= preset.jobs]
    if not len(enough):
        raise errors.BadInput(
            f"{preset.trace}: no {preset.period_min:g} minutes of it have {preset.jobs} jobs of "
            f"{SHORTEST:g} minutes to {preset.longest} and at most {preset.gpus} GPUs; give --jobs a smaller number"
        )
    here = np.flatnonzero(period == random.choice(enough))
    chosen = random.choice(here, preset.jobs, replace=False)
    return times[chosen] % preset.period_min, gpus[chosen], minutes[chosen]


def _read(path: pathlib.Path) -> tuple[Floats, Floats, Floats]:
    """Read from each line a start in minutes since the epoch, a duration in minutes, and a number of GPUs."""
    try:
        with path.open(newline="") as file:
            lines = [
                (
                    datetime.datetime.fromisoformat(line["timestamp"]).timestamp() / 60,
                    float(line["duration"]) / 60,
                    float(line["num_gpus"]),
                )
                for line in csv.DictReader(file)
            ]
    except OSError as error:
        raise errors.MissingFile(f"--trace {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise errors.BadInput(
            f"--trace {path}: {type(error).__name__}: {error}; expected the columns timestamp, duration and num_gpus"
        ) from None
    if not lines:
        raise errors.BadInput(f"--trace {path}: it has no jobs")
    table = np.array(sorted(lines))
    return table[:, 0], table[:, 1], table[:, 2]
