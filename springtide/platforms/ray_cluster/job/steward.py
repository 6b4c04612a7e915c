"""Steward of a job: a detached Ray actor that runs the agent and the master, and that Ray restarts.

In: a `JobOrder`. Out: replies for `job_handle`; after the job, a record of it (`job_records`), and then its own end. A
restarted steward reads the run folder, adopts the running roles (`platform`) and starts a master with a higher term. If
the folder was lost with its node, the job restarts from copies of its checkpoints, or fails with the reason.
"""

import asyncio
import logging
import os
import pathlib
import threading
import time
from dataclasses import replace
from typing import Any

import msgspec
import ray

from springtide import errors, private_files
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.agent import ask_master
from springtide.platforms.agent.agent import Agent
from springtide.platforms.agent.platform_api import CompositePlatform
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.local.platform import LocalPlatform
from springtide.platforms.ray_cluster.cluster import cluster, job_records
from springtide.platforms.ray_cluster.job import job_order, run_folder
from springtide.platforms.ray_cluster.job.platform import RayPlatform
from springtide.rpc.messages import messages
from springtide.telemetry import events, logs

log = logging.getLogger(__name__)

LOOK_S = 0.1


class Steward:
    """Keeps one job. Its methods run beside the agent, which has its own thread and event loop."""

    def __init__(self, wanted: job_order.JobOrder) -> None:
        self._order = wanted
        self._files = logs.RunFiles(pathlib.Path(wanted.run_folder))
        self._loop = asyncio.new_event_loop()
        self._agent: Agent | None = None
        self._status = messages.JobStatus(name=wanted.plan.spec.name, phase=JobPhase.STARTING, why="", elapsed_s=0.0)
        self._said: list[str] = []
        logs.log_to_stderr(debug=wanted.plan.debug)
        threading.Thread(target=self._keep, name="springtide-steward", daemon=True).start()

    def hello(self) -> dict[str, Any]:
        from springtide import __version__

        return {"version": __version__, "pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    def status(self) -> messages.JobStatus:
        return self._status

    def ask(self, request: messages.Request) -> messages.Reply:
        work = ask_master.ask(self._files, request)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def story(self, since: int = 0) -> list[dict[str, Any]]:
        return events.read(self._files.events)[since:]

    def roles(self) -> list[str]:
        return sorted(path.stem for path in self._files.logs.glob("*.log"))

    def tail(self, role: str, lines: int) -> tuple[list[str], int]:
        path = self._files.logs / f"{role}.log"
        size = path.stat().st_size if path.exists() else 0
        return logs.tail(path, lines), size

    def more(self, offsets: dict[str, int]) -> dict[str, tuple[str, int]]:
        """Return new whole lines of each log, with the offset after them."""
        found = {}
        for role in self.roles():
            with open(self._files.logs / f"{role}.log", "rb") as file:
                file.seek(offsets.get(role, 0))
                if said := whole_lines(file.read(1 << 18)):
                    found[role] = (said.decode(errors="replace"), offsets.get(role, 0) + len(said))
        return found

    def kill(self) -> None:
        if self._agent is not None:
            self._loop.call_soon_threadsafe(self._agent.kill)

    # ---- keeping ----

    def _keep(self) -> None:
        asyncio.set_event_loop(self._loop)
        # the previous steward had finished the job and only had to end
        if (end := job_records.end_of(self._order)) is not None:
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
        self._end_all()  # roles are left only if this steward failed to start
        job_records.write(job_records.ended(self._order, self._status, self._files))
        run_folder.mark(self._files.root)
        self._leave()

    def _fail(self, why: str, blame: Blame) -> None:
        self._status = replace_status(self._status, phase=JobPhase.FAILED, why=why, blame=blame)

    async def _run(self) -> messages.JobStatus:
        plan = self._prepared()
        platform = CompositePlatform(
            LocalPlatform(self._files, log.info), RayPlatform(self._order, self._files, log.info)
        )
        term = run_folder.TermCounter(self._files.root)
        self._agent = Agent(plan, self._files, platform, log.info, next_term=term.next)
        return await self._agent.run(self._seen)

    def _prepared(self) -> RunPlan:
        plan = self._order.plan
        first = job_records.begin(self._order)
        if not first and not self._files.journal.exists():
            self._end_all()
            plan = run_folder.restart_plan(plan, str(self._files.root))
            log.warning("the run folder is gone: begins anew from checkpoint %d", plan.spec.checkpoints.resume_number)
        run_folder.sweep(pathlib.Path(run_folder.BASE), at=time.time())
        self._files.root.mkdir(parents=True, exist_ok=True, mode=private_files.FOLDER)
        self._files.logs.mkdir(exist_ok=True)
        host = str(ray.util.get_node_ip_address())
        return replace(plan, host=host, adopt=True, report_usage=True)

    def _end_all(self) -> None:
        """Kill every role of this job and wait until all are gone."""
        while held := cluster.holders(self._order.name):
            for actor in held.values():
                cluster.kill(actor)
            time.sleep(LOOK_S)

    def _seen(self, status: messages.JobStatus) -> None:
        self._status = status

    def _leave(self) -> None:
        """End this actor after one second, so that clients can still read the outcome."""
        time.sleep(1.0)
        cluster.kill(ray.get_actor(job_order.steward_of(self._order.name), namespace=job_order.NAMESPACE))


def replace_status(status: messages.JobStatus, **changes: Any) -> messages.JobStatus:
    return msgspec.structs.replace(status, **changes)


def whole_lines(said: bytes) -> bytes:
    return said[: said.rfind(b"\n") + 1]
