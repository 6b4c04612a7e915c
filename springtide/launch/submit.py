"""Submits a job to a platform and returns: to a detached agent on this machine, or to a cluster.

In: an `ElasticJob` and the folder of its code. Out: the job's name, and a card for later commands. Next:
`launch.detached_agent`, `launch.ray_job`, `platforms.k8s.client.submit`.
"""

import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from springtide import errors
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch import job_lookup
from springtide.launch.detached_agent import SubmitReply
from springtide.launch.job_lookup import JobLocation
from springtide.launch.spec import resolve
from springtide.telemetry import redactor
from springtide.telemetry.run_registry import RunCard

Say = Callable[[str], None]


def submit(job: ElasticJob, where: JobLocation, *, code: pathlib.Path | None = None, say: Say = lambda _: None) -> str:
    """Submit a job and return its name. `code`: folder with the script; None if the image has it."""
    if code is not None and not code.is_dir():
        raise errors.MissingFile(f"workingDir {code}: no such folder; wanted the one with {job.script}")
    if job.stopped and where.platform != "k8s":
        raise errors.BadInput("stopped: true: there is nothing to run; leave it out")
    if where.remote:
        return to_cluster(job, where, code=code, say=say)
    return here(job, where, code=code or pathlib.Path())


def here(job: ElasticJob, where: JobLocation, *, code: pathlib.Path) -> str:
    runs = pathlib.Path(where.folder).absolute()
    agent = subprocess.Popen(
        [sys.executable, "-m", "springtide.launch.detached_agent", str(runs)],
        cwd=code,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert agent.stdin is not None and agent.stdout is not None
    with agent, agent.stdin, agent.stdout:
        agent.stdin.write(msgspec.json.encode(schema.to_plain(job)))
        agent.stdin.close()
        line = agent.stdout.readline()
    if not line:
        raise errors.JobFailed("the agent of the job ended before it had begun; what it said is above")
    answer = msgspec.json.decode(line, type=SubmitReply)
    if not answer.run:
        raise errors.BadInput(answer.trouble) if answer.blame_user else errors.JobFailed(answer.trouble)
    return answer.run


def to_cluster(job: ElasticJob, where: JobLocation, *, code: pathlib.Path | None, say: Say) -> str:
    job = job if job.name else replace(job, name=cluster_name(resolve.name_of(job.script)))
    resolve.check_exports(job, elsewhere=True)
    if code is not None:
        resolve.find_script(code / job.script)
    name = job_lookup.load(where.platform, job_lookup.SUBMITTERS).submit(job, code, where.options, say) or job.name
    card = RunCard(
        name=name,
        script=job.script,
        arguments=redactor.redact_arguments(job.arguments),
        began_at=time.time(),
        platform=where.platform,
        where=dict(where.options),
    )
    job_lookup.note(pathlib.Path(where.folder), card)
    return str(name)


def cluster_name(name: str) -> str:
    """Make a valid DNS label of at most 40 characters."""
    plain = "".join(each if each.isascii() and each.isalnum() else "-" for each in name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}"
    return plain[:40].strip("-")
