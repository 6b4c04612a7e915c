"""Submits a job to a platform and returns. The platform is a cluster, or this machine with a detached agent
(`main`).

The agent gets the job as JSON on standard input, replies with one line of JSON, and works in the folder of the job's
code. Closing the terminal does not end the agent. The agent's output goes to the run's `agent.log`.
"""

import asyncio
import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

import msgspec

from springtide import errors, private_files
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch import job_lookup, local_job
from springtide.launch.job_lookup import JobLocation
from springtide.launch.spec import resolve
from springtide.platforms.agent import agent
from springtide.telemetry import logs, output
from springtide.telemetry.logs import RunCard

__all__ = ["submit"]

Say = Callable[[str], None]


class SubmitReply(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to the submitter: the run or an error."""

    run: str = ""
    trouble: str = ""
    blame_user: bool = True


def main() -> int:
    """Start the agent in a forked child, so that the submitter need not wait for the agent."""
    if os.fork():
        return 0
    folder = pathlib.Path(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb")
    try:
        job = schema.from_plain(msgspec.json.decode(sys.stdin.buffer.read()))
        begun = begin(job, folder)
    except errors.SpringtideError as error:
        send_reply(out, SubmitReply(trouble=str(error), blame_user=isinstance(error, errors.UserError)))
        return 2
    turn_to(begun.files.logs / "agent.log")
    logs.log_to_stderr()
    send_reply(out, SubmitReply(run=begun.files.root.name))
    asyncio.run(local_job.attend(begun, say=say, seen=lambda _: None, hang_up=False))
    return 0


def begin(job: ElasticJob, folder: pathlib.Path) -> local_job.PreparedRun:
    name = job.name or resolve.name_of(job.script)
    plan = local_job.resolved(job, folder, code=pathlib.Path(), say=say)
    with alone(folder):
        for run in logs.find_runs(folder):
            if run.card.name == name and run.running:
                raise errors.BadInput(
                    f"job {name} runs already, as {run.job}: stop it with `springtide stop {run.job}`, or give another "
                    "name (--name)"
                )
        begun = local_job.PreparedRun(job=job, plan=plan, files=logs.make_run(folder, name))
        agent.write_card(plan, begun.files)
    return begun


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("ab")
    except OSError as error:
        raise errors.BadInput(f"{folder}: {error.strerror}; choose a folder for runs with --logs DIR") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def turn_to(path: pathlib.Path) -> None:
    with private_files.opened(path, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)


def send_reply(out: BinaryIO, answer: SubmitReply) -> None:
    with contextlib.suppress(BrokenPipeError), out:
        out.write(msgspec.json.encode(answer) + b"\n")


def say(line: str) -> None:
    print(output.redact(line), file=sys.stderr, flush=True)


def submit(job: ElasticJob, where: JobLocation, *, code: pathlib.Path | None = None, say: Say = lambda _: None) -> str:
    """Submit a job and return its name. `code`: folder with the script; None if the image contains the code."""
    if code is not None and not code.is_dir():
        raise errors.MissingFile(f"workingDir {code}: no such folder; expected the folder with {job.script}")
    if job.stopped and where.platform != "k8s":
        raise errors.BadInput("stopped: true: the job would not run; leave this field out")
    if where.remote:
        return to_cluster(job, where, code=code, say=say)
    return here(job, where, code=code or pathlib.Path())


def here(job: ElasticJob, where: JobLocation, *, code: pathlib.Path) -> str:
    runs = pathlib.Path(where.folder).absolute()
    agent = subprocess.Popen(
        [sys.executable, "-m", "springtide.launch.submit", str(runs)],
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
        raise errors.JobFailed("the job's agent ended before the job began; its output is above")
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
        arguments=output.redact_arguments(job.arguments),
        began_at=time.time(),
        platform=where.platform,
        where=dict(where.options),
    )
    job_lookup.note(pathlib.Path(where.folder), card)
    return str(name)


def cluster_name(name: str) -> str:
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}"
    return plain[:40].strip("-")


if __name__ == "__main__":
    sys.exit(main())
