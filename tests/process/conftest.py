"""Workers and servers of all jobs in this folder are forked from one interpreter that has torch imported, as those of a
job that runs for a while are: see `platforms.local.fork_server`. The first few, before it is ready, start
cold.
"""

import pytest

from springtide import config
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local.fork_server import ForkServerClient
from springtide.testing.cluster import LocalCluster


@pytest.fixture(autouse=True, scope="session")
def _warm_starts():
    LocalCluster.warm = ForkServerClient(besides=["PYTEST_CURRENT_TEST"])
    plan = RunPlan(spec=JobSpec(name="any"), script="train.py")
    LocalCluster.warm.begin(config.child_environment({}, run_plan.environment_of(plan, ProcessLimits())))
    yield
    LocalCluster.warm.close()
