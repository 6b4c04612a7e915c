"""Agent of a job on Kubernetes, in the master pod: `python -m springtide.launch.k8s.agent_pod NAMESPACE JOB`.

In: the ElasticJob from the API; secret, certificates and run folder as mounts. The agent takes the job's Lease, runs
the master as its child (`platforms.agent.agent`) and all other roles as pods (`platforms.k8s.job.platform`).

Out: the job's status in the cluster, and its events on standard output. Exit status 0 means that the job is over; 1
asks the kubelet for a restart. An agent that loses the Lease ends its master, leaves the roles running and exits. Next:
`launch.k8s.pod_job`.
"""

import asyncio
import contextlib
import logging
import signal
import sys

from springtide import config, errors
from springtide.launch.k8s import pod_job
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, PODS
from springtide.platforms.k8s.job import job_status
from springtide.platforms.k8s.job.job_status import StatusWriter
from springtide.platforms.k8s.job.lease import JobLease
from springtide.platforms.k8s.objects import job_object, names
from springtide.platforms.k8s.objects.job_object import JobObject
from springtide.telemetry import logs

log = logging.getLogger(__name__)

AGAIN, OVER = 1, 0


def main(arguments: list[str]) -> int:
    try:
        logs.log_to_stderr(debug=config.load().debug)
        namespace, name = wanted(arguments)
        return asyncio.run(keep(namespace, name))
    except errors.SpringtideError as error:
        log.error("%s", error)
        return AGAIN


def wanted(arguments: list[str]) -> tuple[str, str]:
    if len(arguments) != 2:
        said = " ".join(arguments) or "nothing"
        raise errors.BadInput(
            f"{said}: wanted NAMESPACE JOB. The operator starts this in a job's master pod; jobs are begun by "
            "`springtide submit JOB.yaml --platform k8s`"
        )
    return arguments[0], arguments[1]


async def keep(namespace: str, name: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Client.open(namespace=namespace) as client:
        job = await read(client, name)
        return OVER if job is None else await hold(client, job, stop)


async def read(client: Client, name: str) -> JobObject | None:
    """Return the job; None if it is over, being deleted or invalid (its status says so then)."""
    thing = await client.get(ELASTIC_JOBS, name)
    try:
        job = job_object.read(thing)
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
        return any(each["metadata"]["uid"] == holder for each in masters.items)

    await lease.take(alive)
    async with contextlib.AsyncExitStack() as stack:
        keeping = asyncio.create_task(lease.keep())
        running = asyncio.create_task(pod_job.PodJob(client, job, lease).run())
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
