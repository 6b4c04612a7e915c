"""Pure. The ten models of GoldMiner's section 5.6: how many cores a GPU of each wants, and from where we know.

In: nothing. Out: `MODELS`, and other choices of the ratios for sensitivity. The text does not have Fig. 1's bars. It
says that Bert alone fits 8 cores a GPU, that the most is 64, which models are above 12 and which are not; that ResNet18
has enough with three data workers of 8 cores and not with two (Fig. 13); DeepFM's 256 data workers (for 8 GPUs);
transfer rates of three models of the same data (Table 2), to which their preprocessing is in proportion. Each ratio is
the lowest that this allows, since two more figures of the text want that: with 8 cores a GPU jobs are slowed 2.44 times
in the mean (2.43 by Table 5, 491 min over 202), and 43.8% of the GPUs in use with fixed data workers (Fig. 14) means
18.3 cores a GPU at most, where these have 19.0.
A trainer keeps 2 cores, and one for each 6.9 Gb/s that it fetches, as ResNet18's 3. Next: `trace` draws from them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One kind of job."""

    name: str
    ratio: float
    """Cores a GPU with which it is as fast as it can be, in one process."""
    trainer: float
    """Of these, cores that stay with its trainer once data workers preprocess."""
    intensive: bool
    """Above 12 cores a GPU: the class of section 5.6."""
    overhead: float = 0.0
    """What data workers cost it at its fastest (Table 2)."""
    source: str

    @property
    def feeding(self) -> float:
        return self.ratio - self.trainer

    def alone(self, cpu: float) -> float:
        """Of its ideal speed, what it has in one process with so many cores a GPU."""
        return min(1.0, cpu / self.ratio)

    def fed(self, cpu: float) -> float:
        """Of its ideal speed, what data workers with so many cores a GPU give it."""
        return min(self.capable, cpu / self.feeding)

    @property
    def enough(self) -> float:
        """Cores of data workers, in whole ones, with which one GPU is as fast as data workers let it be."""
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
"""Other ratios that the text allows: ResNet18's three data workers all used to the full (and what is in proportion to
it); a mean of 22.5 over jobs, which 35.5% of GPUs allocated by No DW (tuned) mean if all cores are (8 / 0.355,
Fig. 14); the order in which section 5.6 names models taken for descending; the highest."""


def models(choice: str = "chosen") -> dict[str, GpuModel]:
    """The models with another choice of ratios; what their trainers keep stays."""
    changed = CHOICES[choice]
    return {name: replace(one, ratio=changed.get(name, one.ratio)) for name, one in MODELS.items()}
