"""Reads the logs of a job's pods through the API, one role after another, or follows all of them.

In: `platforms.k8s.client.job_handle`. Out: `LogLine`s. Following includes later pods and the next lives of ended pods,
until the job is over. A separate thread reads the logs.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from springtide import errors
from springtide.platforms.agent.job_handle import LogLine
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, PODS, Object
from springtide.platforms.k8s.objects import job_object, names

LOOK_S = 1.0
Open = Callable[[], Client]


def newest(pods: Sequence[Object]) -> dict[str, Object]:
    found: dict[str, tuple[int, Object]] = {}
    for pod in pods:
        life = names.life_of(pod)
        if life is not None and life.incarnation >= found.get(str(life.role), (-1, {}))[0]:
            found[str(life.role)] = (life.incarnation, pod)
    return {role: pod for role, (_, pod) in sorted(found.items())}


async def roles(client: Client, job: str) -> list[str]:
    return list(newest((await client.list(PODS, labels=f"{names.JOB}={job}")).items))


def read(open_client: Open, job: str, wanted: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
    came: queue.Queue[LogLine | Exception | None] = queue.Queue()
    loop = asyncio.new_event_loop()
    reader = PodLogReader(open_client, job, wanted, lines, follow, came.put)

    def work() -> None:
        try:
            loop.run_until_complete(reader.run())
            came.put(None)
        except errors.SpringtideError as error:
            came.put(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, name="pod-logs", daemon=True)
    thread.start()
    try:
        while (line := came.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(reader.over.set)
        thread.join()


class PodLogReader:
    """Reader of the logs of one job's pods."""

    def __init__(
        self,
        open_client: Open,
        job: str,
        wanted: Sequence[str],
        lines: int,
        follow: bool,
        give: Callable[[LogLine], None],
    ) -> None:
        self._open, self._job, self._wanted, self._lines, self._follow = open_client, job, wanted, lines, follow
        self._give = give
        self.over = asyncio.Event()
        """Set from outside when the reader is no longer needed."""

    async def run(self) -> None:
        async with self._open() as client:
            if self._follow:
                await self._follow_all(client)
                return
            for role, pod in (await self._pods(client)).items():
                with contextlib.suppress(errors.NotFound, errors.ClusterRefused):  # no container has started
                    own = names.container_of(pod)
                    async for line in client.logs(pod["metadata"]["name"], container=own, lines=self._lines):
                        self._give(LogLine(role, line))

    async def _pods(self, client: Client) -> dict[str, Object]:
        found = newest((await client.list(PODS, labels=f"{names.JOB}={self._job}")).items)
        return {role: pod for role, pod in found.items() if not self._wanted or role in self._wanted}

    async def _follow_all(self, client: Client) -> None:
        following: dict[str, asyncio.Task[None]] = {}
        first = True
        try:
            while not self.over.is_set():
                job = job_object.read(await client.get(ELASTIC_JOBS, self._job))
                for role, pod in (await self._pods(client)).items():
                    uid = pod["metadata"]["uid"]
                    if uid not in following:
                        lines = self._lines if first else None
                        following[uid] = asyncio.create_task(self._tail(client, role, pod, lines=lines))
                if job.over:
                    await asyncio.wait(following.values(), timeout=LOOK_S)
                    return
                first = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.over.wait(), LOOK_S)
        finally:
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)

    async def _tail(self, client: Client, role: str, pod: Object, *, lines: int | None) -> None:
        """Follow one pod's log to its end; wait for a pod that has not started."""
        name = pod["metadata"]["name"]
        while True:
            try:
                async for line in client.logs(name, container=names.container_of(pod), lines=lines, follow=True):
                    self._give(LogLine(role, line))
                return
            except errors.NotFound:
                return
            except (errors.ClusterRefused, errors.ClusterUnreachable):
                await asyncio.sleep(LOOK_S)
