"""Hand a job to a Kubernetes cluster: an ElasticJob, and its code as a ConfigMap beside it.

In: `launch.submitting`, for `springtide submit --platform k8s`. Out: both objects in the cluster; the operator does the
rest, and this process may go. The code goes when the job is deleted.
"""

import asyncio
import base64
import contextlib
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from springtide import errors
from springtide.domain import spelling
from springtide.domain.elastic_job import ElasticJob
from springtide.platforms.k8s import code_archive, job_object, job_status, names
from springtide.platforms.k8s.client import Client
from springtide.platforms.k8s.kinds import CONFIG_MAPS, ELASTIC_JOBS, Object

Say = Callable[[str], None]


def submit(job: ElasticJob, code: pathlib.Path | None, where: Mapping[str, str], say: Say = lambda _: None) -> str:
    """Make the job; its name."""
    archive = code_archive.pack(code) if code is not None else None
    return asyncio.run(_submit(job, archive, where, say))


async def _submit(job: ElasticJob, archive: bytes | None, where: Mapping[str, str], say: Say) -> str:
    async with Client.open(where.get("kubeconfig", ""), where.get("context", ""), where.get("namespace", "")) as client:
        if not await client.has(ELASTIC_JOBS):
            raise errors.NotFound(
                f"the cluster ({client.access.where}) does not know ElasticJobs; `springtide k8s install` sets it up"
            )
        await check_free(client, job.name)
        body = spelling.to_plain(replace(job, working_dir=""), namespace=client.namespace)
        wish = job.kubernetes
        body["metadata"] |= {"labels": dict(wish.labels), "annotations": dict(wish.annotations)}
        code = await ship(client, job.name, archive) if archive is not None else ""
        if code:
            body["metadata"]["annotations"][names.CODE] = code
        try:
            made = await client.create(ELASTIC_JOBS, body)
        except errors.SpringtideError:
            if code:
                with contextlib.suppress(errors.SpringtideError):
                    await client.delete(CONFIG_MAPS, code)
            raise
        if code:
            owner = [job_object.owner(job_object.read(made))]
            await client.patch(CONFIG_MAPS, code, {"metadata": {"ownerReferences": owner}})
        if not job.image:
            say("the spec names no image: pods run the operator's own (springtide k8s install --image)")
        say(f"job {job.name} is in namespace {client.namespace} ({client.access.where})")
        return job.name


async def check_free(client: Client, name: str) -> None:
    """Refuse a name that is taken."""
    try:
        there = await client.get(ELASTIC_JOBS, name)
    except errors.NotFound:
        return
    space, phase = client.namespace, job_status.phase_of(there.get("status") or {})
    stands = f"job {name} runs already, in namespace {space}: stop it with `springtide stop {name}`, then"
    if phase.over:
        stands = f"job {name} of before is still in namespace {space} ({phase}):"
    raise errors.BadInput(
        f"{stands} delete it with `kubectl -n {space} delete elasticjob {name}`, or give another name (--name)"
    )


async def ship(client: Client, job: str, archive: bytes) -> str:
    """The code, under a name that nobody else has: two may submit a job of one name at the same moment."""
    body: Object = CONFIG_MAPS.body("", client.namespace)
    body["metadata"] = {"generateName": names.code(job), "labels": names.labels_of(job)}
    body["binaryData"] = {names.CODE_ARCHIVE: base64.b64encode(archive).decode()}
    made = await client.create(CONFIG_MAPS, body)
    return str(made["metadata"]["name"])
