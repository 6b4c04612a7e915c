"""Handle of a job on Kubernetes: `platforms.agent.job_handle.JobHandle`, through the API only.

In: the job's name and the cluster. Out: its status from the ElasticJob, its events from the master pod's log, and the
logs of its pods. A ScalePlan of the user scales the job, and an edit of its spec stops it. The handle needs no
connection to the job itself.
"""

import asyncio
import datetime
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.domain.plan.scale_plan import ScalePlan
from springtide.domain.spec import schema
from springtide.platforms.agent.job_handle import JobSummary, LogLine
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, SCALE_PLANS, Object
from springtide.platforms.k8s.client import pod_logs
from springtide.platforms.k8s.job import job_status, user_edits
from springtide.platforms.k8s.objects import job_object
from springtide.platforms.k8s.objects import names as called
from springtide.platforms.k8s.objects.job_object import JobObject
from springtide.rpc.messages import messages

ANSWER_S = 20.0  # a recreated master pod is usually ready sooner
AGAIN_S = 0.2

Result = TypeVar("Result")


def open_job(name: str, where: Mapping[str, str]) -> "KubernetesJobHandle":
    reach = KubernetesJobHandle(name, where)
    try:
        reach.read()
    except errors.NotFound:
        known = names(where)
        if not known:
            raise errors.MissingFile(f"no job {name}: this namespace has none of ours (--namespace)") from None
        raise errors.UnknownName("job", name, known) from None
    return reach


def names(where: Mapping[str, str]) -> list[str]:
    async def look(client: Client) -> list[Object]:
        return (await client.list(ELASTIC_JOBS)).items

    try:
        found = run(where, look)
    except errors.NotFound:
        return []
    found.sort(key=lambda each: str(each["metadata"].get("creationTimestamp", "")), reverse=True)
    return [each["metadata"]["name"] for each in found]


def run(where: Mapping[str, str], work: Callable[[Client], Awaitable[Result]]) -> Result:
    async def within() -> Result:
        async with opened(where) as client:
            return await work(client)

    return asyncio.run(within())


def opened(where: Mapping[str, str]) -> Client:
    return Client.open(where.get("kubeconfig", ""), where.get("context", ""), where.get("namespace", ""))


class KubernetesJobHandle:
    """Handle of one job on Kubernetes."""

    platform = "k8s"

    def __init__(self, name: str, where: Mapping[str, str]) -> None:
        self.name, self._where = name, dict(where)

    def read(self) -> Object:
        return run(self._where, lambda client: client.get(ELASTIC_JOBS, self.name))

    @property
    def card(self) -> JobSummary:
        thing = self.read()
        spec = thing["spec"]
        return JobSummary(script=spec["script"], arguments=tuple(spec.get("arguments") or ()), began_at=began_at(thing))

    @property
    def places(self) -> dict[str, str]:
        space = self._job().namespace
        return {
            "job": f"kubectl -n {space} get elasticjob {self.name} -o yaml",
            "logs": f"kubectl -n {space} logs -f {called.master(self.name)}",
            "pods": f"kubectl -n {space} get pods -l {called.JOB}={self.name}",
        }

    def running(self) -> bool:
        job = self._job()
        return not job.over and not job.deleting

    def status(self) -> messages.JobStatus:
        thing = self.read()
        return job_status.read(thing.get("status") or {}, self.name, time.time() - began_at(thing))

    def ask(self, request: messages.Request) -> messages.Reply:
        """Handle `Scale`, `Stop` and `StatusRequest`; the cluster carries nothing else."""
        if isinstance(request, messages.StatusRequest):
            return self.status()
        if not self.running():
            raise errors.BadInput(
                f"job {self.name} does not run: {self.status().phase}; see `springtide status {self.name}`"
            )
        match request:
            case messages.StopRequest():
                body = {"spec": {"stopped": True}}
                run(self._where, lambda client: client.patch(ELASTIC_JOBS, self.name, body))
                return messages.Ok()
            case messages.ScaleRequest():
                return run(self._where, lambda client: self._scale(client, request))
        raise errors.BadInput(f"{type(request).__name__} cannot be asked of a job on Kubernetes")

    def story(self) -> list[dict[str, Any]]:
        async def look(client: Client) -> list[dict[str, Any]]:
            try:
                return [
                    event
                    async for line in client.logs(called.master(self.name), container="master")
                    if (event := event_of(line))
                ]
            except (errors.NotFound, errors.ClusterRefused):  # no pod exists yet, or its container has not started
                return []

        return run(self._where, look)

    def roles(self) -> Sequence[str]:
        return run(self._where, lambda client: pod_logs.roles(client, self.name))

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        found = pod_logs.read(lambda: opened(self._where), self.name, roles, lines=lines, follow=follow)
        return (line for line in found if line.role != "master" or event_of(line.text) is None)

    def _job(self) -> JobObject:
        return job_object.read(self.read())

    async def _scale(self, client: Client, request: messages.ScaleRequest) -> messages.Reply:
        """Create a ScalePlan and wait for the master's answer."""
        name = f"{self.name}-scale-{secrets.token_hex(3)}"
        plan = ScalePlan(
            job=self.name,
            workers=request.workers,
            servers=request.servers,
            data_workers=request.data_workers,
            reason=request.why,
        )
        body = SCALE_PLANS.body(name, client.namespace, spec=schema.plain_of(plan))
        owner = job_object.owner(job_object.read(await client.get(ELASTIC_JOBS, self.name)))
        body["metadata"] |= {"labels": called.labels_of(self.name), "ownerReferences": [owner | {"controller": False}]}
        await client.create(SCALE_PLANS, body)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            said = (await client.get(SCALE_PLANS, name)).get("status") or {}
            if said.get("phase") == user_edits.APPLIED:
                return messages.Ok()
            if said.get("phase"):
                raise errors.BadInput(str(said.get("message") or said["phase"]))
            await asyncio.sleep(AGAIN_S)
        raise errors.MasterUnreachable(
            f"ScalePlan {name} is made, and not answered within {ANSWER_S:g} s: the job's master may be starting. "
            f"It is done when that is there; see `kubectl -n {client.namespace} get scaleplan {name}`"
        )


def began_at(thing: Object) -> float:
    return datetime.datetime.fromisoformat(thing["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()


def event_of(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = msgspec.json.decode(line.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return event if "at" in event and "event" in event else None
