"""Models to train and data to train them on.

`model(name)`, `example_batch(name)` and `loss` are in `catalog` and `loss`; a generated click log with a known best
AUC is `ClickLog` (`clickdata`, `clicklog`, `oracle`); readers of public data sets: `criteo`, `avazu`, `movielens`,
`parquet`;
streaming AUC and log loss: `metrics`. Names are imported when first used: the generator and the metrics need no torch.
"""

import importlib
from typing import Any

_HOME = {
    "MODELS": "springtide.zoo.catalog",
    "model": "springtide.zoo.catalog",
    "example_batch": "springtide.zoo.catalog",
    "loss": "springtide.zoo.loss",
    "LogSpec": "springtide.zoo.clicklog.spec",
    "ClickLog": "springtide.zoo.clicklog.dataset",
    "CriteoTsv": "springtide.zoo.readers.criteo",
    "AvazuCsv": "springtide.zoo.readers.avazu",
    "MovieLens": "springtide.zoo.readers.movielens",
    "ParquetClicks": "springtide.zoo.readers.parquet",
}

__all__ = [
    "MODELS",
    "AvazuCsv",
    "ClickLog",
    "CriteoTsv",
    "LogSpec",
    "MovieLens",
    "ParquetClicks",
    "example_batch",
    "loss",
    "model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'springtide.zoo' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # a submodule of the same name (`loss`) must not hide the function
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
