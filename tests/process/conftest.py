"""Fork the workers and servers of all jobs in this folder from one interpreter that has imported torch.

A job that runs for a while starts its roles the same way (`platforms.local.fork_server`). Tests of commands start
roles cold.
"""

import pytest

from springtide import config
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local import fork_server
from springtide.testing.cluster import LocalCluster
from tests import waiting


@pytest.fixture(autouse=True, scope="session")
def _warm_starts():
    LocalCluster.warm = fork_server.ForkServerClient(besides=["PYTEST_CURRENT_TEST"])
    plan = RunPlan(spec=JobSpec(name="any"), script="train.py")
    environment = config.child_environment({}, run_plan.environment_of(plan, ProcessLimits()))
    LocalCluster.warm.begin(environment)
    warm = LocalCluster.warm  # one that cannot start says nothing: the tests then tell more
    waiting.until(lambda: warm.suits(environment) or warm._process.poll() is not None, "an interpreter with torch")
    yield
    LocalCluster.warm.close()
