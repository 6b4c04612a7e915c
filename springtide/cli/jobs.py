"""Which job a command means, and how to ask its master.

In: a name, or none for the newest. Out: its run; a reply of its running master; or the last status, read from the story
of a job that is over. Next: `cli.status`, `cli.story`, `cli.steer`, `cli.logs`.
"""

import asyncio
import pathlib
import time

import msgspec

from springtide import errors
from springtide.domain.job import Blame, Phase
from springtide.rpc import connection, messages, whereabouts
from springtide.telemetry import events, runs

ANSWER_S = 15.0  # a master that is being replaced is back within some seconds


def pick(name: str | None, folder: str) -> runs.Run:
    """The run of that name, or the newest one."""
    found = runs.find(pathlib.Path(folder))
    if not found:
        raise errors.MissingFile(
            f"no jobs in {folder}; start one with `springtide run train.py`, or say where they are with --logs DIR"
        )
    if name is None:
        return found[0]
    for run in found:
        if run.job == name:
            return run
    raise errors.UnknownName("job", name, [run.job for run in found])


def ask(run: runs.Run, request: messages.Request) -> messages.Reply:
    """Ask the master of a running job; one that is being replaced is waited for."""
    if not run.running:
        raise errors.BadInput(f"job {run.job} does not run: {status_of(run).phase}; see `springtide status {run.job}`")
    return asyncio.run(_ask(run, request))


async def _ask(run: runs.Run, request: messages.Request) -> messages.Reply:
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            secret = bytes.fromhex(run.files.secret.read_text())
            where = whereabouts.read(run.files.master)
            if where is not None and where.address:
                return await _ask_at(where.address, secret, run.files.certificates(), request)
        except (errors.MasterUnreachable, OSError):
            if not run.running or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise errors.MasterUnreachable(f"job {run.job} has no master yet; see {run.files.logs / 'master.log'}")
        await asyncio.sleep(0.1)


async def _ask_at(address: str, secret: bytes, certificates: str, request: messages.Request) -> messages.Reply:
    master = await connection.connect(address, secret, within_s=0.5, certificates=certificates)
    try:
        async with asyncio.timeout(ANSWER_S):
            return await master.ask(request)
    except TimeoutError:
        raise errors.MasterUnreachable(f"the master at {address} does not answer") from None
    finally:
        await master.close()


def status_of(run: runs.Run) -> messages.JobStatus:
    """How a job is now, or how it ended."""
    if run.running:
        try:
            status = asyncio.run(_ask(run, messages.StatusRequest()))
            assert isinstance(status, messages.JobStatus)
            return status
        except (errors.MasterUnreachable, OSError):
            if run.running:
                raise
    return last_status(run)


def last_status(run: runs.Run) -> messages.JobStatus:
    """From the last line of the story, or from what was told before its agent was killed."""
    story = events.read(run.files.events)
    if story and story[-1]["event"] == "ended":
        return msgspec.convert(story[-1]["status"], messages.JobStatus)
    until = max((event["at"] for event in story), default=run.card.began_at)
    told = [event for event in story if event["event"] == "phase"]
    return messages.JobStatus(
        name=run.card.name,
        phase=Phase.FAILED,
        why="the command that ran it was killed, and the job with it"
        + (f" (it was {told[-1]['phase']})" if told else ""),
        blame=Blame.INFRASTRUCTURE,
        elapsed_s=until - run.card.began_at,
        samples=told[-1].get("samples", 0) if told else 0,
    )
