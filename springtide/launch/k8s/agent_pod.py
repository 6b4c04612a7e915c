"""Agent of a job on Kubernetes. The agent runs in the master pod: `python -m springtide.launch.k8s.agent_pod NAMESPACE
JOB`.

The agent takes the job's Lease, runs the master as its child process, and runs all other roles as pods. Exit status
0 means that the job is over; 1 asks the kubelet for a restart. An agent that loses the Lease ends its master, and
leaves the pods of other roles running.
"""

import asyncio
import contextlib
import logging
import pathlib
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from springtide import config, errors
from springtide.checkpoint.format import checkpoint_io
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.plan.capacity import PlatformCapacity
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.domain.spec.job_spec import JobPhase
from springtide.launch.k8s.pod_requests import LeavingPods, UserRequests
from springtide.launch.spec import resolve
from springtide.platforms.agent import run_plan, tracker_processes
from springtide.platforms.agent.agent import Agent, blame_of
from springtide.platforms.agent.run_plan import RunPlan
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, PODS, SCALE_PLANS
from springtide.platforms.k8s.job import job_status
from springtide.platforms.k8s.job.job_status import StatusWriter
from springtide.platforms.k8s.job.lease import JobLease
from springtide.platforms.k8s.job.platform import KubernetesPlatform
from springtide.platforms.k8s.objects import job_objects, names
from springtide.platforms.k8s.objects.job_objects import JobObject
from springtide.platforms.local.platform import LocalPlatform
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import events, logs

PRINT_EVERY_S = 0.2

LOOK_S = 0.5
AGAIN_S = 5.0
log = logging.getLogger(__name__)
AGAIN, OVER = 1, 0


class PodOutput:
    """Events and the master's log of one run, copied to the pod's standard output."""

    def __init__(self, files: logs.RunFiles) -> None:
        log = files.log_of(Role(RoleKind.MASTER))
        old = log.stat().st_size if log.exists() else 0  # an earlier agent in this pod has already printed this part
        self._tails = [logs.LogTail(files.events), logs.LogTail(log, old)]

    async def keep(self) -> None:
        while True:
            self.copy()
            await asyncio.sleep(PRINT_EVERY_S)

    def copy(self) -> None:
        for tail in self._tails:
            if lines := tail.more():
                print("\n".join(lines), flush=True)


def restarted(job: ElasticJob) -> tuple[ElasticJob, str]:
    """Return the spec with which a job begins again after the loss of its journal, and what the job begins from."""
    url = job.checkpoints.url
    if url and not (job.origin and checkpoint_io.latest(url).manifest is None):
        return replace(job, resume=url, continue_from=""), f"its newest checkpoint at {url}"
    why = f"there is no checkpoint at {url} yet" if url else "the job has no checkpoints.url"
    return job, f"{job.origin or 'the beginning'}, because {why}"


class PodJob:
    """One job during one agent's lifetime."""

    def __init__(self, client: Client, job: JobObject, lease: JobLease) -> None:
        self._client, self._job, self._lease = client, job, lease
        self._settings = config.load()
        self.files = logs.RunFiles(pathlib.Path(names.RUN) / job.name)
        self._statuses = StatusWriter(client, job.name)
        self._statuses.generation = job.generation
        self._asks = UserRequests(client, job, self.files, self._settings, self._statuses)
        self._leaving = LeavingPods(self._asks.ask, lambda: self._platform.running())
        self._platform = KubernetesPlatform(
            client,
            job.name,
            pending_s=job.job.kubernetes.pending_s,
            resize_s=job.job.kubernetes.resize_s,
            notice=self._leaving.notice,
            user_plan=self._asks.user_plan,
        )

    async def run(self) -> None:
        """Run until the job is over. Raise `Fenced` if another agent has the Lease."""
        await self._platform.open()
        try:
            # True if an earlier agent has started pods, but its journal no longer exists
            lost = bool(self._platform.status.made) and not self.files.journal.exists()
            job = await self._begun_anew() if lost else self._job.job
            lay_out(self.files, self._settings)
            try:
                self._asks.begin()
                plan = self._plan(job)
            except errors.UserError as error:
                log.error("%s", error)
                await self._end(job_status.failed(self._job.name, str(error)))
                return
            await self._attend(plan)
        finally:
            await self._platform.disconnect()

    # ---- before ----

    def _plan(self, job: ElasticJob) -> RunPlan:
        offered = self._platform.status
        capacity = PlatformCapacity(
            cpu=offered.cpu or 0.0,
            memory=float(offered.memory or 0),
            node_cpu=offered.node_cpu or 0.0,
            node_memory=float(offered.node_memory or 0),
            holds=True,
            gpus=offered.gpus,
            shares_gpus=False,
        )
        code = pathlib.Path() if self._job.code else None
        plan = resolve.resolve(job, capacity, code=code, key=self._job.uid, say=log.info)
        if plan.spec.planning.on or plan.spec.online.on:
            self._asks.capacity = capacity
        wish = self._job.job.kubernetes
        spec = replace(plan.spec, join_s=plan.spec.join_s + wish.pending_s, gang=wish.start == "gang")
        return replace(
            plan,
            spec=spec,
            host=self._settings.host or "0.0.0.0",
            port=run_plan.MASTER_PORT,
            advertise=names.master_address(self._job.name, self._job.namespace).partition(":")[0],
            secret_file=self._settings.secret_file,
            adopt=True,
            report_usage=True,
        )

    async def _begun_anew(self) -> ElasticJob:
        """End all pods of earlier masters, then restart the job from its newest checkpoint."""
        term = await self._lease.next_term()
        job, source = restarted(self._job.job)
        why = (
            "the master's pod and its journal were lost (kubernetes.runVolume would keep it): all roles are ended, "
            f"and the job restarts from {source}"
        )
        log.warning("%s", why)
        self._statuses.note(JobStatus(name=job.name, phase=JobPhase.STARTING, why=why, elapsed_s=0.0))
        self._platform.writer.begin_term(term)
        self._platform.writer.change()
        await self._platform.writer.flushed()
        while self._platform.left:
            await asyncio.sleep(LOOK_S)
        await self._client.patch(SCALE_PLANS, self._job.name, {"status": {"made": None}}, subresource="status")
        self._platform.forget()
        self.files.logs.mkdir(parents=True, exist_ok=True)
        story = events.EventLog(self.files.events)
        story.write("journal_lost", why=why)
        story.close()
        return job

    # ---- meanwhile ----

    async def _attend(self, plan: RunPlan) -> None:
        masters = LocalPlatform(self.files, log.info)
        agent = Agent(plan, self.files, self._platform, log.info, masters=masters, next_term=self._next_term)
        self._asks.agent = agent
        output = PodOutput(self.files)
        beside = [
            asyncio.create_task(run_forever(keep))
            for keep in (
                output.keep,
                self._statuses.keep,
                self._asks.keep_plans,
                self._asks.keep_spec,
                self._asks.keep_numbers,
                self._leaving.keep_notices,
            )
        ]
        running = asyncio.create_task(self._run_agent(agent))
        try:
            either: set[asyncio.Future[Any]] = {running, self._platform.failed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await ended(running)
                self._platform.failed.result()  # raise the error with which the platform failed
            status = await last_status(running, self._job.name)
        finally:
            await ended(running)
            for task in beside:
                await ended(task)
            output.copy()
        await self._end(status)

    async def _run_agent(self, agent: Agent) -> JobStatus:
        async with tracker_processes.beside(agent.plan, self.files, log.info):
            return await agent.run(self._on_status)

    async def _next_term(self) -> int:
        term = await self._lease.next_term()
        self._platform.writer.begin_term(term)
        return term

    def _on_status(self, status: JobStatus) -> None:
        self._asks.status = status
        # write the final status only after all roles have ended, because the operator may delete them once it sees the
        # status
        if not status.phase.over:
            self._statuses.note(status)

    async def _end(self, status: JobStatus) -> None:
        await self._platform.writer.flushed()
        await self._asks.refuse_rest()
        await self._statuses.write(status)


async def last_status(running: "asyncio.Task[JobStatus]", name: str) -> JobStatus:
    try:
        return await running
    except errors.Fenced:
        raise
    except (errors.UserError, errors.JobFailed) as error:
        log.error("%s", error)
        return job_status.failed(name, str(error), blame_of(error))


async def run_forever(keep: Callable[[], Awaitable[None]]) -> None:
    """Run a background task, and restart it whenever it ends. A failure of the task is logged and must not end the
    job."""
    while True:
        try:
            await keep()
        except (errors.SpringtideError, OSError) as error:
            log.error("%s: %s", keep.__qualname__, error)
        await asyncio.sleep(AGAIN_S)


def lay_out(files: logs.RunFiles, settings: config.Settings) -> None:
    files.logs.mkdir(parents=True, exist_ok=True)
    if settings.tls:
        files.tls.mkdir(exist_ok=True)
        for role in ("agent", "master"):
            link = files.tls / role
            link.unlink(missing_ok=True)
            link.symlink_to(settings.tls)


def main(arguments: list[str]) -> int:
    try:
        logs.log_to_stderr(debug=config.load().debug)
        if len(arguments) != 2:
            given = " ".join(arguments) or "nothing"
            raise errors.BadInput(
                f"{given}: expected NAMESPACE JOB. The operator starts this command in a job's master pod; start a "
                f"job with `springtide submit JOB.yaml --platform k8s`"
            )
        return asyncio.run(keep(*arguments))
    except errors.SpringtideError as error:
        log.error("%s", error)
        return AGAIN


async def keep(namespace: str, name: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Client.open(namespace=namespace) as client:
        job = await read(client, name)
        return OVER if job is None else await hold(client, job, stop)


async def read(client: Client, name: str) -> JobObject | None:
    """Return the job. Return None if the job is over, is being deleted, or is invalid; the job's status has the
    reason.
    """
    thing = await client.get(ELASTIC_JOBS, name)
    try:
        job = job_objects.read(thing)
    except errors.UserError as error:
        log.error("%s", error)
        await StatusWriter(client, name).write(job_status.failed(name, str(error)))
        return None
    return None if job.over or job.deleting else job


async def hold(client: Client, job: JobObject, stop: asyncio.Event) -> int:
    pod = await client.get(PODS, names.master(job.name))
    lease = JobLease(client, names.master(job.name), pod["metadata"]["uid"])

    async def alive(holder: str) -> bool:
        masters = await client.list(PODS, labels=f"{names.JOB}={job.name},{names.ROLE}=master")
        return any(item["metadata"]["uid"] == holder for item in masters.items)

    await lease.take(alive)
    async with contextlib.AsyncExitStack() as stack:
        keeping = asyncio.create_task(lease.keep())
        running = asyncio.create_task(PodJob(client, job, lease).run())
        stopping = asyncio.create_task(stop.wait())
        for task in (running, stopping, keeping):
            stack.push_async_callback(ended, task)
        await asyncio.wait({keeping, running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.warning("%s", "this pod is asked to end" if stopping.done() else "another agent has the job")
            await ended(running)
            await lease.give_back()
            return AGAIN
        try:
            await running
        except errors.Fenced as error:
            log.warning("%s", error)
            return AGAIN
        await lease.give_back()
    return OVER


async def ended(task: "asyncio.Task[object]") -> None:
    task.cancel()
    await asyncio.wait({task})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
