"""Training data, and `ElasticLoader` for programs without a job: a DataLoader whose number of workers can change.

source.py reads samples, shards.py cuts them into shards, ledger/job_ledger.py leases them to workers. `ElasticLoader`
is in dataworker/loader/loader.py.
"""

from typing import TYPE_CHECKING

from springtide import lazy_names

if TYPE_CHECKING:
    from springtide.dataworker.loader.loader import ElasticLoader as ElasticLoader

_HOME = {"ElasticLoader": "springtide.dataworker.loader.loader"}

__all__ = ["ElasticLoader"]

__getattr__ = lazy_names.importer(__name__, _HOME)
