"""Writes how a job is into its ElasticJob: at once when its phase changes, else every few seconds, if anything changed.

In: `launch.k8s.agent_pod` gives it every look at the job. Out: patches of the status; conditions of others (the
operator's) stay. A cluster that does not answer delays them, and nothing else.
"""

import asyncio
import contextlib
import datetime
import logging

from springtide import errors
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS
from springtide.platforms.k8s.job import job_status
from springtide.platforms.k8s.objects.job_object import merge_patch, with_conditions
from springtide.rpc.messages import messages

log = logging.getLogger(__name__)

EVERY_S = 2.0
TRIES = 10


class StatusWriter:
    """Of one job."""

    def __init__(self, client: Client, job: str, *, every_s: float = EVERY_S) -> None:
        self._client, self._job, self._every_s = client, job, every_s
        self.generation = 0
        """Of the spec that the agent goes by."""
        self._latest: messages.JobStatus | None = None
        self._phase = ""
        self._news = asyncio.Event()

    def note(self, status: messages.JobStatus) -> None:
        """How the job is now; cheap, and never waits."""
        self._latest = status
        if status.phase != self._phase:
            self._phase = status.phase
            self._news.set()

    async def keep(self) -> None:
        """For ever."""
        written: messages.JobStatus | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._every_s)
            self._news.clear()
            status = self._latest
            if status is None or status == written:
                continue
            try:
                await self.write(status)
                written = status
            except errors.TemporaryError as error:
                log.warning("the status of %s is not written: %s", self._job, error)

    async def write(self, status: messages.JobStatus) -> None:
        """Now."""
        for _ in range(TRIES):
            thing = await self._client.get(ELASTIC_JOBS, self._job)
            before = thing.get("status") or {}
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body = job_status.fields(status, generation=self.generation)
            # a message leaves out what is at its default: what it does not say any more must go
            body[job_status.REPORT] = merge_patch(before.get(job_status.REPORT) or {}, body[job_status.REPORT])
            body["conditions"] = with_conditions(
                before.get("conditions") or [], job_status.conditions(status), at=now, generation=self.generation
            )
            body |= {} if before.get("startedAt") else {"startedAt": now}
            body |= {"endedAt": now} if status.phase.over and not before.get("endedAt") else {}
            version = {"resourceVersion": thing["metadata"]["resourceVersion"]}
            with contextlib.suppress(errors.Conflict):
                patch = {"metadata": version, "status": body}
                await self._client.patch(ELASTIC_JOBS, self._job, patch, subresource="status")
                return
        raise errors.Conflict(f"the status of {self._job} was changed by others {TRIES} times in a row")
