"""Fork the processes of all jobs and commands in this folder from one interpreter that has imported torch.

A job that runs for a while starts its roles the same way (`platforms.local.fork_server`). Commands with `cold=True`
and those of tests/chaos start as a user's do.
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
from tests.process import forks

IMPORTS = (
    "springtide.brain.service.advisers",
    "springtide.cli.job.run",
    "springtide.cli.show.status",
    "springtide.master.dispatcher",
    "springtide.master.parts",
    "springtide.telemetry.planner_views",
    "springtide.telemetry.prometheus",
)
"""Modules that masters and commands import besides those of workers and servers."""


@pytest.fixture(autouse=True, scope="session")
def _warm_starts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "IMPORTS", (*fork_server.IMPORTS, *IMPORTS))
        patch.setattr(fork_server, "start_server", forks.start_server)
        patch.setattr(fork_server, "ANSWER_S", 60.0)  # a command is not started cold instead, as a role is
        yield from _begun()


def _begun():
    LocalCluster.warm = fork_server.ForkServerClient(besides=["PYTEST_CURRENT_TEST"])
    plan = RunPlan(spec=JobSpec(name="any"), script="train.py")
    environment = config.child_environment({}, run_plan.environment_of(plan, ProcessLimits()))
    LocalCluster.warm.begin(environment)
    warm = LocalCluster.warm  # one that cannot start says nothing: the tests then tell more
    waiting.until(lambda: warm.suits(environment) or warm._process.poll() is not None, "an interpreter with torch")
    yield
    LocalCluster.warm.close()
