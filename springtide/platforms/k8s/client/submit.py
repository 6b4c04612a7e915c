"""Submits a job to Kubernetes: an ElasticJob, its code as a ConfigMap and its credentials as a Secret.

The operator does the rest. Environment variables that look like credentials are stored only in the Secret, because many
users may read ElasticJobs and pods but few may read Secrets.
"""

import asyncio
import base64
import contextlib
import gzip
import io
import pathlib
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace

from springtide import errors
from springtide.domain.core import redaction
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import CONFIG_MAPS, ELASTIC_JOBS, SECRETS, Object, ObjectKind
from springtide.platforms.k8s.job import job_status
from springtide.platforms.k8s.objects import job_objects, names

MOST_BYTES = 900_000
"""Largest archive of the code, in bytes. A ConfigMap may hold 1 MiB, not counting the base64 encoding; names need the
rest."""
LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})
"""Folders that are never uploaded. Folders with a leading dot in their name are not uploaded either."""

Say = Callable[[str], None]


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") or part in LEFT_OUT for part in parts):
            found.append(path)
    return found


def pack(folder: pathlib.Path) -> bytes:
    paths = files_of(folder)
    total = sum(path.stat().st_size for path in paths)
    if total > 100 * MOST_BYTES:  # fail before reading, because no compression could make this small enough
        raise too_much(folder, paths, total)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in paths:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o755 if path.stat().st_mode & 0o100 else 0o644
            with open(path, "rb") as file:
                tar.addfile(entry, file)
    if len(out.getvalue()) > MOST_BYTES:
        raise too_much(folder, paths, len(out.getvalue()))
    return out.getvalue()


def too_much(folder: pathlib.Path, paths: list[pathlib.Path], size: int) -> errors.BadInput:
    largest = sorted(paths, key=lambda path: path.stat().st_size, reverse=True)[:3]
    named = ", ".join(f"{path.relative_to(folder)} ({path.stat().st_size / 1e6:.1f} MB)" for path in largest)
    return errors.BadInput(
        f"the code in {folder} has {size / 1e6:.1f} MB packed; {MOST_BYTES / 1e6:.1f} MB can be sent with a job. "
        f"Largest: {named}. Keep data out of it, give a smaller workingDir, or put the code into an image"
    )


def submit(job: ElasticJob, code: pathlib.Path | None, where: Mapping[str, str], say: Say = lambda _: None) -> str:
    archive = pack(code) if code is not None else None
    return asyncio.run(_submit(job, archive, where, say))


async def _submit(job: ElasticJob, archive: bytes | None, where: Mapping[str, str], say: Say) -> str:
    async with Client.at(where) as client:
        if not await client.has(ELASTIC_JOBS):
            raise errors.NotFound(
                f"the cluster ({client.access.where}) does not know ElasticJobs; `springtide k8s install` installs "
                f"the operator"
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
        owner = [job_objects.owner(job_objects.read(made))]
        for kind, name in beside:
            await client.patch(kind, name, {"metadata": {"ownerReferences": owner}})
        if readable := readable_credentials(job):
            say(
                f"{', '.join(readable)} of the spec looks like a credential: everybody who may read ElasticJobs or "
                f"pods of namespace {client.namespace} can read the value. As a variable of `environment` it would "
                f"become a "
                "Secret"
            )
        if not job.image:
            say("the spec names no image: pods run the operator's own (springtide k8s install --image)")
        say(f"job {job.name} is in namespace {client.namespace} ({client.access.where})")
        return job.name


async def check_free(client: Client, name: str) -> None:
    try:
        there = await client.get(ELASTIC_JOBS, name)
    except errors.NotFound:
        return
    space, phase = client.namespace, job_status.phase_of(there.get("status") or {})
    stands = f"job {name} runs already, in namespace {space}: stop it with `springtide stop {name}`, then"
    if phase.over:
        stands = f"an earlier job {name} is still in namespace {space} ({phase}):"
    raise errors.BadInput(
        f"{stands} delete the job with `kubectl -n {space} delete elasticjob {name}`, or give another name (--name)"
    )


async def ship(client: Client, job: str, archive: bytes) -> str:
    """Upload the code under a generated name, because two users may submit jobs with the same name at the same time."""
    body: Object = CONFIG_MAPS.body("", client.namespace)
    body["metadata"] = {"generateName": names.code(job), "labels": names.labels_of(job)}
    body["binaryData"] = {names.CODE_ARCHIVE: base64.b64encode(archive).decode()}
    made = await client.create(CONFIG_MAPS, body)
    return str(made["metadata"]["name"])


async def ship_credentials(client: Client, job: ElasticJob, beside: list[tuple[ObjectKind, str]]) -> ElasticJob:
    hidden = {name: value for name, value in job.environment.items() if redaction.is_secret_variable(name)}
    hidden |= {name: value for name, value in job.environment.items() if redaction.redact(value) != value}
    if not hidden:
        return job
    body: Object = SECRETS.body("", client.namespace)
    body["metadata"] = {"generateName": f"{job.name}-environment-", "labels": names.labels_of(job.name)}
    body |= {
        "type": "Opaque",
        "data": {name: base64.b64encode(secret.encode()).decode() for name, secret in hidden.items()},
    }
    made = str((await client.create(SECRETS, body))["metadata"]["name"])
    beside.append((SECRETS, made))
    wish = replace(job.kubernetes, environment_secrets=(*job.kubernetes.environment_secrets, made))
    left = {name: value for name, value in job.environment.items() if name not in hidden}
    return replace(job, environment=left, kubernetes=wish)


def readable_credentials(job: ElasticJob) -> list[str]:
    plain: Object = schema.to_plain(job)["spec"]
    found = [] if redaction.redact_arguments(job.arguments) == job.arguments else ["arguments"]
    return found + [
        name for name, value in plain.items() if name != "arguments" and redaction.redact_all(value) != value
    ]
