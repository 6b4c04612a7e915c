"""Model zoo: recommendation models, and data to train them on.

`catalog` has `models` by name. `clicklog` is a generated click log with a known best AUC. `readers` reads public
data sets: Criteo, Avazu, MovieLens. `metrics` has streaming AUC and log loss. Names are imported on first use,
because the generator and the metrics need no torch.
"""

from springtide import lazy_names

_HOME = {
    "MODELS": "springtide.zoo.catalog",
    "model": "springtide.zoo.catalog",
    "example_batch": "springtide.zoo.catalog",
    "loss": "springtide.zoo.models",
    "LogSpec": "springtide.zoo.clicklog.population",
    "ClickLog": "springtide.zoo.clicklog.dataset",
    "read_criteo": "springtide.zoo.readers",
    "read_avazu": "springtide.zoo.readers",
    "read_movielens": "springtide.zoo.readers",
}

__all__ = sorted(_HOME)

__getattr__ = lazy_names.importer(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
