"""Workers and servers of all jobs in this folder are forked from one interpreter that has torch imported, as those of a
job that runs for a while are: see `platforms.warm`. The first few, before it is ready, start cold."""

import pytest

from springtide import config
from springtide.domain.job import JobSpec
from springtide.domain.resources import Limits
from springtide.platforms import roles
from springtide.platforms.run_plan import RunPlan
from springtide.platforms.warm import WarmStarts
from springtide.testing.cluster import LocalCluster


@pytest.fixture(autouse=True, scope="session")
def _warm_starts():
    LocalCluster.warm = WarmStarts(besides=["PYTEST_CURRENT_TEST"])
    plan = RunPlan(spec=JobSpec(name="any"), script="train.py")
    LocalCluster.warm.begin(config.child_environment({}, roles.environment_of(plan, Limits())))
    yield
    LocalCluster.warm.close()
