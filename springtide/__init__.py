"""Springtide: elastic training for recommendation models.

This module exports the whole public API of a training script. Each name is imported on first use, so ``import
springtide`` stays fast and does not load torch.
"""

from os.path import realpath as _realpath
from typing import Any as _Any

from springtide import lazy_names

# Resolve links now: a running process then imports all its modules from this build, even if a link later points to a
# newer build.
__path__ = [_realpath(place) for place in __path__]
__version__ = "0.1.0.dev0"

_HOME = {
    "join": "springtide.worker.job",
    "Job": "springtide.worker.job",
    "EmbeddingBag": "springtide.embedding.modules.modules",
    "Embedding": "springtide.embedding.modules.modules",
    "EmbeddingBags": "springtide.embedding.modules.modules",
    "RowWiseAdagrad": "springtide.embedding.modules.rowwise_adagrad",
    "SpringtideError": "springtide.errors",
    "from_frame": "springtide.data.files.dataset",
    "hash_ids": "springtide.data.files.id_hash",
    "read_csv": "springtide.data.files.dataset",
    "read_parquet": "springtide.data.files.dataset",
    "serving": "springtide.embedding.modules.declared_weight",
    "stateless": "springtide.dataworker.split.recorder.marked_calls",
    "stream": "springtide.data.stream.stream",
}

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBags",
    "Job",
    "RowWiseAdagrad",
    "SpringtideError",
    "from_frame",
    "hash_ids",
    "join",
    "read_csv",
    "read_parquet",
    "serving",
    "stateless",
    "stream",
]

_find = lazy_names.importer(__name__, _HOME)


def __getattr__(name: str) -> _Any:
    return lazy_names.native_core(__name__) if name == "_native" else _find(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
