"""Tools for tests of training scripts: `LocalCluster` runs a script as a real job on this machine."""

from springtide import lazy_names

_HOME = {"JobSpec": "springtide.domain.spec.job_spec", "LocalCluster": "springtide.testing.cluster"}

__all__ = ["JobSpec", "LocalCluster"]

__getattr__ = lazy_names.importer(__name__, _HOME)
