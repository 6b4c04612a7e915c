"""Hand a job to a Kubernetes cluster: an ElasticJob, its code as a ConfigMap and its credentials as a Secret beside it.

In: `launch.submit`, for `springtide submit --platform k8s`. Out: these objects in the cluster; the operator does
the rest, and this process may go. Code and credentials go when the job is deleted. Many may read ElasticJobs and pods,
few may read Secrets: environment variables that look like credentials are only there.
"""

import asyncio
import base64
import contextlib
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from springtide import errors
from springtide.domain.core import redaction
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, ELASTIC_JOBS, SECRETS, Object, ObjectKind
from springtide.platforms.k8s.client import code_archive
from springtide.platforms.k8s.job import job_status
from springtide.platforms.k8s.objects import job_object, names

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
        beside: list[tuple[ObjectKind, str]] = []
        try:
            job = await ship_credentials(client, job, beside)
            body = schema.to_plain(replace(job, working_dir=""), namespace=client.namespace)
            wish = job.kubernetes
            body["metadata"] |= {"labels": dict(wish.labels), "annotations": dict(wish.annotations)}
            if archive is not None:
                code = await ship(client, job.name, archive)
                beside.append((CONFIG_MAPS, code))
                body["metadata"]["annotations"][names.CODE] = code
            made = await client.create(ELASTIC_JOBS, body)
        except errors.SpringtideError:
            for kind, name in beside:
                with contextlib.suppress(errors.SpringtideError):
                    await client.delete(kind, name)
            raise
        owner = [job_object.owner(job_object.read(made))]
        for kind, name in beside:
            await client.patch(kind, name, {"metadata": {"ownerReferences": owner}})
        if readable := readable_credentials(job):
            say(
                f"{', '.join(readable)} of the spec looks like a credential: whoever may read ElasticJobs or pods of "
                f"namespace {client.namespace} can read it. As a variable of `environment` it would become a Secret"
            )
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


async def ship_credentials(client: Client, job: ElasticJob, beside: list[tuple[ObjectKind, str]]) -> ElasticJob:
    """The job without the variables that look like credentials: they are in a Secret of its own, which is noted."""
    hidden = {name: value for name, value in job.environment.items() if redaction.is_secret_variable(name)}
    hidden |= {name: value for name, value in job.environment.items() if redaction.redact(value) != value}
    if not hidden:
        return job
    body: Object = SECRETS.body("", client.namespace)
    body["metadata"] = {"generateName": f"{job.name}-environment-", "labels": names.labels_of(job.name)}
    body |= {
        "type": "Opaque",
        "data": {name: base64.b64encode(each.encode()).decode() for name, each in hidden.items()},
    }
    made = str((await client.create(SECRETS, body))["metadata"]["name"])
    beside.append((SECRETS, made))
    wish = replace(job.kubernetes, environment_secrets=(*job.kubernetes.environment_secrets, made))
    left = {name: value for name, value in job.environment.items() if name not in hidden}
    return replace(job, environment=left, kubernetes=wish)


def readable_credentials(job: ElasticJob) -> list[str]:
    """Fields of a spec whose text looks like a credential."""
    plain: Object = schema.to_plain(job)["spec"]
    found = [] if redaction.redact_arguments(job.arguments) == job.arguments else ["arguments"]
    return found + [
        name for name, value in plain.items() if name != "arguments" and redaction.redact_all(value) != value
    ]  # fmt: skip
