"""Handle of a job on Kubernetes: a `platforms.agent.job_handle.JobHandle` that uses only the Kubernetes API.

The job's status comes from the ElasticJob, and its events come from the log of the master pod. `scale` creates a
ScalePlan, and `stop` edits the ElasticJob's spec. The handle needs no connection to the job itself.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from springtide import errors
from springtide.domain.plan.scale_plan import ScalePlan
from springtide.domain.spec import schema
from springtide.platforms.agent.job_handle import LogLine, not_running
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client, with_client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, PODS, SCALE_PLANS, Object
from springtide.platforms.k8s.job import job_status
from springtide.platforms.k8s.objects import job_objects
from springtide.platforms.k8s.objects import names as object_names
from springtide.platforms.k8s.objects.job_objects import JobObject
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.telemetry import events
from springtide.telemetry.logs import RunCard

ANSWER_S = 20.0  # seconds to wait for an answer; a recreated master pod is usually ready sooner
AGAIN_S = 0.2

LOOK_S = 1.0


def open_job(name: str, where: Mapping[str, str]) -> "KubernetesJobHandle":
    reach = KubernetesJobHandle(name, where)
    try:
        reach.read()
    except errors.NotFound:
        known = names(where)
        if not known:
            raise errors.MissingFile(
                f"no job {name}: this namespace has no ElasticJob of this name (--namespace)"
            ) from None
        raise errors.UnknownName("job", name, known) from None
    return reach


def names(where: Mapping[str, str]) -> list[str]:
    async def list_jobs(client: Client) -> list[Object]:
        return (await client.list(ELASTIC_JOBS)).items

    try:
        found = with_client(where, list_jobs)
    except errors.NotFound:
        return []
    found.sort(key=lambda job: str(job["metadata"].get("creationTimestamp", "")), reverse=True)
    return [job["metadata"]["name"] for job in found]


class KubernetesJobHandle:
    """Handle of one job on Kubernetes."""

    platform = "k8s"

    def __init__(self, name: str, where: Mapping[str, str]) -> None:
        self.name, self._where = name, dict(where)

    def read(self) -> Object:
        return with_client(self._where, lambda client: client.get(ELASTIC_JOBS, self.name))

    @property
    def card(self) -> RunCard:
        thing = self.read()
        spec, began = thing["spec"], began_at(thing)
        arguments = tuple(spec.get("arguments") or ())
        return RunCard(name=self.name, script=spec["script"], arguments=arguments, began_at=began, platform="k8s")

    @property
    def places(self) -> dict[str, str]:
        space = self._job().namespace
        return {
            "job": f"kubectl -n {space} get elasticjob {self.name} -o yaml",
            "logs": f"kubectl -n {space} logs -f {object_names.master(self.name)}",
            "pods": f"kubectl -n {space} get pods -l {object_names.JOB}={self.name}",
        }

    def running(self) -> bool:
        job = self._job()
        return not job.over and not job.deleting

    def status(self) -> JobStatus:
        thing = self.read()
        return job_status.read(thing.get("status") or {}, self.name, time.time() - began_at(thing))

    def ask(self, request: Request) -> Reply:
        """Handle `Scale`, `Stop` and `StatusRequest`; no other request can be passed on through the Kubernetes API."""
        if isinstance(request, messages.StatusRequest):
            return self.status()
        if not self.running():
            raise not_running(self.name, self.status().phase)
        match request:
            case messages.StopRequest():
                body = {"spec": {"stopped": True}}
                with_client(self._where, lambda client: client.patch(ELASTIC_JOBS, self.name, body))
                return messages.Ok()
            case messages.ScaleRequest():
                return with_client(self._where, lambda client: self._scale(client, request))
        raise errors.BadInput(f"{type(request).__name__} is not available for a job on Kubernetes")

    def story(self) -> list[dict[str, Any]]:
        async def read_events(client: Client) -> list[dict[str, Any]]:
            try:
                return [
                    event
                    async for line in client.logs(object_names.master(self.name), container="master")
                    if (event := event_of(line))
                ]
            except (errors.NotFound, errors.ClusterRefused):  # no pod exists yet, or its container has not started
                return []

        return with_client(self._where, read_events)

    def roles(self) -> Sequence[str]:
        labels = f"{object_names.JOB}={self.name}"
        return list(newest_lives(with_client(self._where, lambda client: client.list(PODS, labels=labels)).items))

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        found = read_logs(self._where, self.name, roles, lines=lines, follow=follow)
        return (line for line in found if line.role != "master" or event_of(line.text) is None)

    def _job(self) -> JobObject:
        return job_objects.read(self.read())

    async def _scale(self, client: Client, request: messages.ScaleRequest) -> Reply:
        name = f"{self.name}-scale-{secrets.token_hex(3)}"
        plan = ScalePlan(
            job=self.name,
            workers=request.workers,
            servers=request.servers,
            data_workers=request.data_workers,
            reason=request.why,
        )
        body = SCALE_PLANS.body(name, client.namespace, spec=schema.plain_of(plan))
        owner = job_objects.owner(job_objects.read(await client.get(ELASTIC_JOBS, self.name)))
        body["metadata"] |= {
            "labels": object_names.labels_of(self.name),
            "ownerReferences": [owner | {"controller": False}],
        }
        await client.create(SCALE_PLANS, body)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            status = (await client.get(SCALE_PLANS, name)).get("status") or {}
            if status.get("phase") == job_objects.APPLIED:
                return messages.Ok()
            if status.get("phase"):
                raise errors.BadInput(str(status.get("message") or status["phase"]))
            await asyncio.sleep(AGAIN_S)
        raise errors.MasterUnreachable(
            f"ScalePlan {name} was created, but the job's master has not answered within {ANSWER_S:g} s; it may be "
            f"starting, and then applies the plan; see `kubectl -n {client.namespace} get scaleplan {name}`"
        )


def began_at(thing: Object) -> float:
    return kinds.seconds(thing["metadata"]["creationTimestamp"])


def event_of(line: str) -> dict[str, Any] | None:
    return events.parse_line(line.encode()) if line.startswith("{") else None


def newest_lives(pods: Sequence[Object]) -> dict[str, Object]:
    found: dict[str, tuple[int, Object]] = {}
    for pod in pods:
        life = object_names.life_of(pod)
        if life is not None and life.incarnation >= found.get(str(life.role), (-1, {}))[0]:
            found[str(life.role)] = (life.incarnation, pod)
    return {role: pod for role, (_, pod) in sorted(found.items())}


def read_logs(
    where: Mapping[str, str], job: str, wanted: Sequence[str], *, lines: int, follow: bool
) -> Iterator[LogLine]:
    """Yield log lines. Following a log includes pods and incarnations that start later, until the job is over."""
    found = pod_logs(where, PodLogReader(job=job, wanted=wanted, lines=lines), follow=follow)

    async def next_line() -> LogLine | None:
        return await anext(found, None)

    with asyncio.Runner() as runner:
        try:
            while (line := runner.run(next_line())) is not None:
                yield line
        finally:
            runner.run(found.aclose())


async def pod_logs(where: Mapping[str, str], reader: "PodLogReader", *, follow: bool) -> AsyncGenerator[LogLine, None]:
    came: asyncio.Queue[LogLine | None] = asyncio.Queue()
    async with Client.at(where) as client:
        work = reader.follow(client, came.put_nowait) if follow else reader.read(client, came.put_nowait)
        reading = asyncio.create_task(work)
        reading.add_done_callback(lambda _: came.put_nowait(None))
        try:
            while (line := await came.get()) is not None:
                yield line
            reading.result()  # raise the error with which the reader failed, if it failed
        finally:
            reading.cancel()
            await asyncio.wait([reading])


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLogReader:
    """Reader of the logs of one job's pods."""

    job: str
    wanted: Sequence[str]
    lines: int

    async def read(self, client: Client, give: Callable[[LogLine], object]) -> None:
        for role, pod in (await self._pods(client)).items():
            with contextlib.suppress(errors.NotFound, errors.ClusterRefused):  # no container has started
                own = object_names.container_of(pod)
                async for line in client.logs(pod["metadata"]["name"], container=own, lines=self.lines):
                    give(LogLine(role, line))

    async def follow(self, client: Client, give: Callable[[LogLine], object]) -> None:
        following: dict[str, asyncio.Task[None]] = {}
        lines: int | None = self.lines
        try:
            while True:
                job = job_objects.read(await client.get(ELASTIC_JOBS, self.job))
                for role, pod in (await self._pods(client)).items():
                    uid = pod["metadata"]["uid"]
                    if uid not in following:
                        following[uid] = asyncio.create_task(tail(client, role, pod, give, lines=lines))
                if job.over:
                    await asyncio.wait(following.values(), timeout=LOOK_S)
                    return
                lines = None  # for pods that start later, read all lines
                await asyncio.sleep(LOOK_S)
        finally:
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)

    async def _pods(self, client: Client) -> dict[str, Object]:
        found = newest_lives((await client.list(PODS, labels=f"{object_names.JOB}={self.job}")).items)
        return {role: pod for role, pod in found.items() if not self.wanted or role in self.wanted}


async def tail(client: Client, role: str, pod: Object, give: Callable[[LogLine], object], *, lines: int | None) -> None:
    """Stream one pod's log to its end. Wait for a pod that has not started."""
    while True:
        try:
            name, own = pod["metadata"]["name"], object_names.container_of(pod)
            async for line in client.logs(name, container=own, lines=lines, follow=True):
                give(LogLine(role, line))
            return
        except errors.NotFound:
            return
        except (errors.ClusterRefused, errors.ClusterUnreachable):
            await asyncio.sleep(LOOK_S)
