"""Training data: source.py reads samples, shards.py cuts them into shards, ledger/job_ledger.py leases them to workers.

`springtide.data.ElasticLoader` is for programs without a job: a DataLoader whose number of workers can change
(dataworker/loader/loader.py).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from springtide.dataworker.loader.loader import ElasticLoader as ElasticLoader

_HOME = {"ElasticLoader": "springtide.dataworker.loader.loader"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'springtide.data' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(importlib.import_module(_HOME[name]), name)
