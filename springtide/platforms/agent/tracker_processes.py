"""Runs `telemetry.trackers` beside a job, a process for each experiment tracker that the job logs to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from springtide.domain.spec.tracker_target import parse_targets
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.agent.side_process import SideProcess
from springtide.telemetry.logs import RunFiles

LAST_S = 60.0  # most seconds for the last values, after the end of the job


@contextlib.asynccontextmanager
async def beside(plan: RunPlan, files: RunFiles, say: Callable[[str], None]) -> AsyncIterator[None]:
    rules = plan.spec.tracking
    processes = [
        SideProcess(
            "springtide.telemetry.trackers",
            [str(files.root), str(target), rules.resumed],
            files.logs / f"tracker-{target.kind}.log",
            environment=plan.environment,
            say=say,
            last_s=LAST_S,
        )
        for target in parse_targets(rules.log_to)
    ]
    for process in processes:
        process.begin()
    try:
        yield
    finally:
        await asyncio.gather(*(process.end() for process in processes))
