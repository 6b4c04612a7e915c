"""Steward of a job: a detached Ray actor that runs the agent and the master, and that Ray restarts.

A restarted steward reads the run folder, adopts the running roles and starts a master with a higher term. If the folder
was lost with its node, the job restarts from copies of its checkpoints, or fails with the reason.
"""

import asyncio
import contextlib
import logging
import os
import pathlib
import shutil
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec
import ray

from springtide import errors, private_files
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import open_store
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.agent import master_client, tracker_processes
from springtide.platforms.agent.agent import Agent
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local.platform import LocalPlatform
from springtide.platforms.ray_cluster import cluster, job_order
from springtide.platforms.ray_cluster.platform import RayPlatform
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.telemetry import events, logs

log = logging.getLogger(__name__)

LOOK_S = 0.1

BASE = "/tmp/springtide-ray"
OVER = "over"
"""File that marks the folder of a finished job."""
KEPT_S = 7 * 86_400.0
LOST_S = 30 * 86_400.0
"""Seconds to keep the run folder of a job that was cut off because its whole cluster went down."""


class Steward:
    """Runs one job. The agent has a separate thread and event loop, so calls from other processes run in parallel to
    the agent.
    """

    def __init__(self, order: job_order.JobOrder) -> None:
        self._order = order
        self._files = logs.RunFiles(pathlib.Path(order.run_folder))
        self._loop = asyncio.new_event_loop()
        self._agent: Agent | None = None
        self._status = JobStatus(name=order.plan.spec.name, phase=JobPhase.STARTING, why="", elapsed_s=0.0)
        logs.log_to_stderr(debug=order.plan.debug)
        threading.Thread(target=self._keep, name="springtide-steward", daemon=True).start()

    def hello(self) -> dict[str, Any]:
        from springtide import __version__

        return {"version": __version__, "pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    def status(self) -> JobStatus:
        return self._status

    def ask(self, request: Request) -> Reply:
        work = master_client.ask_master(self._files, request)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def story(self) -> list[dict[str, Any]]:
        return events.read(self._files.events)

    def roles(self) -> list[str]:
        return self._files.logged_roles()

    def tail(self, role: str, lines: int) -> tuple[list[str], int]:
        path = self._files.logs / f"{role}.log"
        size = path.stat().st_size if path.exists() else 0
        return logs.tail(path, lines), size

    def more(self, offsets: dict[str, int]) -> dict[str, tuple[list[str], int]]:
        """Return the new complete lines of each log, with the offset after the last line."""
        found = {}
        for role in self.roles():
            tail = logs.LogTail(self._files.logs / f"{role}.log", offsets.get(role, 0))
            if lines := tail.more(1 << 18):
                found[role] = (lines, tail.at)
        return found

    def kill(self) -> None:
        if self._agent is not None:
            self._loop.call_soon_threadsafe(self._agent.kill)

    # ---- keeping ----

    def _keep(self) -> None:
        asyncio.set_event_loop(self._loop)
        # the previous steward finished the job, and was restarted before it could end itself
        if (end := job_order.end_of(self._order)) is not None:
            self._status = end
            self._leave()
            return
        try:
            self._status = self._loop.run_until_complete(self._run())
        except errors.SpringtideError as error:
            blame = Blame.USER if isinstance(error, errors.UserError) else Blame.INFRASTRUCTURE
            self._fail(str(error), blame)
        except BaseException as error:  # report the error to the user, because the actor's own log is hidden
            log.exception("the steward failed")
            self._fail(f"the steward failed: {type(error).__name__}: {error}", Blame.INFRASTRUCTURE)
        self._end_all()  # roles can be running here only if this steward failed to start
        job_order.write_record(job_order.ended_record(self._order, self._status, self._files))
        mark_over(self._files.root)
        self._leave()

    def _fail(self, why: str, blame: Blame) -> None:
        self._status = msgspec.structs.replace(self._status, phase=JobPhase.FAILED, why=why, blame=blame)

    async def _run(self) -> JobStatus:
        plan = self._prepared()
        roles = RayPlatform(self._order, self._files, log.info)
        masters, term = LocalPlatform(self._files, log.info), TermCounter(self._files.root)
        self._agent = Agent(plan, self._files, roles, log.info, masters=masters, next_term=term.next)
        async with tracker_processes.beside(plan, self._files, log.info):
            return await self._agent.run(self._on_status)

    def _prepared(self) -> RunPlan:
        plan = self._order.plan
        first = job_order.begin_record(self._order)
        if not first and not self._files.journal.exists():
            self._end_all()
            plan = restart_plan(plan, str(self._files.root))
            log.warning(
                "the run folder is lost: the job restarts from checkpoint %d", plan.spec.checkpoints.resume_number
            )
        sweep(pathlib.Path(BASE), at=time.time())
        self._files.root.mkdir(parents=True, exist_ok=True, mode=private_files.FOLDER)
        self._files.logs.mkdir(exist_ok=True)
        host = str(ray.util.get_node_ip_address())
        return replace(plan, host=host, adopt=True, report_usage=True)

    def _end_all(self) -> None:
        while held := cluster.holders(self._order.name):
            for actor in held.values():
                cluster.kill(actor)
            time.sleep(LOOK_S)

    def _on_status(self, status: JobStatus) -> None:
        self._status = status

    def _leave(self) -> None:
        """End this actor after one second. Until then, clients can read the outcome."""
        time.sleep(1.0)
        cluster.kill(cluster.find_steward(self._order.name))


def mark_over(folder: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        (folder / OVER).touch()


def sweep(base: pathlib.Path, *, at: float) -> list[pathlib.Path]:
    gone = []
    for folder in base.glob("*"):
        with contextlib.suppress(OSError):
            over = folder / OVER
            old = at - over.stat().st_mtime > KEPT_S if over.exists() else at - last_change(folder) > LOST_S
            if old:
                shutil.rmtree(folder)
                gone.append(folder)
    return gone


def last_change(folder: pathlib.Path) -> float:
    inner = [folder, *folder.glob("*"), *folder.glob("logs/*")]
    return max(path.stat().st_mtime for path in inner)


def restart_plan(plan: RunPlan, folder: str) -> RunPlan:
    rules = plan.spec.checkpoints
    if not rules.url:
        raise errors.JobFailed(
            f"the node that kept the job is gone, and its run folder {folder} with it. A job with checkpoints.url "
            f"restarts from its last checkpoint; a job with ray.runFolder on a file system of all nodes continues"
        )
    found = checkpoint_io.latest(rules.url)
    if found.manifest is None and rules.resume:
        return plan
    if found.manifest is None:
        raise errors.JobFailed(
            f"the node that kept the job is gone, its run folder {folder} with it, and there is no whole checkpoint in "
            f"{rules.url} yet: {'; '.join(found.troubles) or 'none was copied'}"
        )
    place = open_store(rules.url)
    again = replace(
        rules,
        resume=place.where,
        resume_number=found.manifest.number,
        resume_run=found.manifest.run,
        numbers_after=max(checkpoint_io.numbers(place)),
        new_data=False,
    )
    spec = replace(plan.spec, checkpoints=again, slots=found.manifest.slots, seed=found.manifest.seed)
    return replace(plan, spec=spec)


class TermCounter:
    """Counter for the terms of a run's masters."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = folder / "term"

    async def next(self) -> int:
        term = self._last() + 1
        part = self._path.with_name("term.part")
        with events.disk_errors(self._path):
            with open(part, "w", encoding="ascii") as file:
                file.write(str(term))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        return term

    def _last(self) -> int:
        try:
            return int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise errors.JobFailed(f"{self._path} does not hold the number of the last master: {error}") from None
