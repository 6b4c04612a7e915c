"""Processes of a benchmark's jobs start at once: forks of an interpreter that has its imports behind it.

Out: that interpreter (`platforms.local.fork_server`), ready before anything is measured. Jobs that run for a
while have one anyway.
"""

import contextlib
import time
from collections.abc import Iterator

from springtide import config
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local.fork_server import ForkServerClient

WITHIN_S = 60.0


@contextlib.contextmanager
def warmed_up() -> Iterator[ForkServerClient]:
    plan = RunPlan(spec=JobSpec(name="bench"), script="train.py")
    environment = config.child_environment({}, run_plan.environment_of(plan, ProcessLimits()))
    with contextlib.closing(ForkServerClient()) as warm:
        warm.begin(environment)
        deadline = time.monotonic() + WITHIN_S
        while not warm.suits(environment) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield warm
