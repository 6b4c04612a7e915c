"""Runs a job on this machine in this process: agent, signals and exporter."""

import asyncio
import os
import pathlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from springtide import config
from springtide.checkpoint.format import storage
from springtide.domain.core import validation
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch import export_process
from springtide.launch.spec import resolve
from springtide.platforms.agent import run_plan, tracker_processes
from springtide.platforms.agent.agent import Agent
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.agent.side_process import SideProcess
from springtide.platforms.local import process_group
from springtide.platforms.local.fork_server import ForkServerClient
from springtide.platforms.local.gpu_assignment import GpuAssignments
from springtide.platforms.local.platform import LocalPlatform
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import logs
from springtide.telemetry.host import gpus, usage

EXPORT_EVERY = "5m"
SIGNALS = ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP"))
Say = Callable[[str], None]


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def local_capacity() -> PlatformCapacity:
    here, room = float(usage.cores()), float(memory_bytes())
    trouble = process_group.why_not()
    return PlatformCapacity(
        cpu=here,
        memory=room,
        node_cpu=here,
        node_memory=room,
        own=True,
        holds=not trouble,
        trouble=trouble,
        gpus=len(gpus.visible()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A job with its run folder, before any process starts."""

    job: ElasticJob
    plan: RunPlan
    files: logs.RunFiles


def resolved(job: ElasticJob, runs: pathlib.Path, *, code: pathlib.Path, say: Say) -> RunPlan:
    history = str(runs.absolute().parent / "history.db")
    plan = resolve.resolve(job, local_capacity(), code=code, history=history, say=say)
    for url in filter(None, (plan.spec.checkpoints.url, job.following.export_to)):
        storage.open_store(url)  # report an unknown kind of URL before the job starts
    return plan


def begin(job: ElasticJob, runs: pathlib.Path, *, code: pathlib.Path, say: Say) -> PreparedRun:
    plan = resolved(job, runs, code=code, say=say)
    return PreparedRun(job=replace(job, name=plan.spec.name), plan=plan, files=logs.make_run(runs, plan.spec.name))


async def attend(begun: PreparedRun, *, say: Say, seen: Callable[[JobStatus], None], hang_up: bool = True) -> JobStatus:
    """Run the job to its end. The first signal drains the job, and the second signal kills it. `hang_up=False` ignores
    SIGHUP."""
    warm = ForkServerClient(besides=(gpus.VARIABLE,))
    platform = LocalPlatform(begun.files, say, warm=warm, gpus=gpus_of(begun.plan))
    agent = Agent(begun.plan, begun.files, platform, say)
    loop = asyncio.get_running_loop()
    interrupts = 0

    def interrupted(name: str) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            say(f"{name}: draining, workers finish their current batch; press Ctrl-C again to kill them")
            agent.stop(f"stopped by {name}")
        else:
            say(f"{name} again: killing")
            agent.kill()

    for number, name in SIGNALS if hang_up else SIGNALS[:-1]:
        loop.add_signal_handler(number, interrupted, name)
    exporter = exporter_of(begun)

    def seen_first(status: JobStatus) -> None:
        if exporter is not None and not exporter.begun:
            # start exports only after a master runs, because the folder may belong to a different run until then
            exporter.begin()
        seen(status)

    try:
        # under a memory limit, workers are not forked
        if begun.plan.spec.worker_memory is None and config.load().warm_starts:
            warm.begin(worker_environment(begun.plan))
        async with tracker_processes.beside(begun.plan, begun.files, say):
            return await agent.run(seen_first, before_roles=warm.imported)
    finally:
        warm.close()
        if exporter is not None:
            await exporter.end()


def worker_environment(plan: RunPlan) -> dict[str, str]:
    limits = ProcessLimits(cpu=plan.spec.worker_cpu)
    return config.child_environment({}, run_plan.environment_of(plan, limits), plan.environment)


def gpus_of(plan: RunPlan) -> GpuAssignments | None:
    """Return the GPUs for the job's workers. None leaves the environment unchanged, because this machine has no
    GPUs."""
    found = gpus.visible(plan.environment)
    if not found and plan.spec.worker_gpu is None:
        return None
    return GpuAssignments(found[: plan.spec.gpus])


def exporter_of(begun: PreparedRun) -> SideProcess | None:
    following = begun.job.following
    if not following.export_to:
        return None
    every_s = validation.parse_duration("export_every", following.export_every or EXPORT_EVERY)
    return export_process.exporter(begun.files, begun.plan.spec.checkpoints, following.export_to, every_s=every_s)
