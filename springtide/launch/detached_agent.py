"""Detached agent of a job that was submitted on this machine; closing the terminal does not end it.

In: a job as JSON on standard input, from `launch.submit`; the folder of runs as argument. Out: one line of JSON on
standard output, with the run or an error. All later output goes to the run's `agent.log`. The agent works in the folder
of the job's code. Next: `launch.local_job`.
"""

import asyncio
import contextlib
import fcntl
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from springtide import errors, private_files
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.launch import local_job
from springtide.launch.spec import resolve
from springtide.platforms.agent import agent
from springtide.telemetry import logs, redactor, run_registry


class SubmitReply(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to the submitter: the run or an error."""

    run: str = ""
    trouble: str = ""
    blame_user: bool = True


def main() -> int:
    """Fork once, so that the submitter need not wait for this process."""
    if os.fork():
        return 0
    folder = pathlib.Path(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb")
    try:
        job = schema.from_plain(msgspec.json.decode(sys.stdin.buffer.read()))
        begun = begin(job, folder)
    except errors.SpringtideError as error:
        tell(out, SubmitReply(trouble=str(error), blame_user=isinstance(error, errors.UserError)))
        return 2
    turn_to(begun.files.logs / "agent.log")
    logs.log_to_stderr()
    tell(out, SubmitReply(run=begun.files.root.name))
    asyncio.run(local_job.attend(begun, say=say, seen=lambda _: None, hang_up=False))
    return 0


def begin(job: ElasticJob, folder: pathlib.Path) -> local_job.PreparedRun:
    """Check the job and create its run folder; refuse a second running job of the same name."""
    name = job.name or resolve.name_of(job.script)
    plan = local_job.resolved(job, folder, code=pathlib.Path(), say=say)
    with alone(folder):
        for run in run_registry.find(folder):
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
        raise errors.BadInput(f"{folder}: {error.strerror}; say where runs go with --logs DIR") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def turn_to(path: pathlib.Path) -> None:
    """Redirect output to a file and detach standard input."""
    with private_files.opened(path, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)


def tell(out: BinaryIO, answer: SubmitReply) -> None:
    with contextlib.suppress(BrokenPipeError), out:
        out.write(msgspec.json.encode(answer) + b"\n")


def say(line: str) -> None:
    print(redactor.redact(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
