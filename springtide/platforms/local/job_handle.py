"""Handle of a job on this machine. The job's master answers; for a finished job, its events do."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from springtide import errors
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.agent import job_handle
from springtide.platforms.agent.job_handle import LogLine
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import CheckpointStatus, JobStatus, Reply, Request
from springtide.telemetry import events, logs
from springtide.telemetry.host import disks

LOOK_S = 0.2  # seconds between two checks of the log files


def places_of(files: logs.RunFiles, *, over: bool = False) -> dict[str, str]:
    """Return the paths of a run. For a run that is `over`, `trace` is the log with the traceback of a script that
    failed.
    """
    story = events.read(files.events) if over else []
    why = story[-1]["status"]["why"] if story and story[-1]["event"] == "ended" else ""
    failed = [event for event in story if event["event"] == "failed" and event.get("trace") and event["error"] == why]
    trace = {"trace": str(files.logs / f"{failed[0]['role']}.log")} if failed else {}
    return {"logs": str(files.logs), "events": str(files.events), **trace}


class LocalJobHandle:
    """Handle of one local run."""

    platform = "local"

    def __init__(self, run: logs.JobRun) -> None:
        self.run = run

    @property
    def name(self) -> str:
        return self.run.job

    @property
    def card(self) -> logs.RunCard:
        return self.run.card

    @property
    def places(self) -> dict[str, str]:
        return places_of(self.run.files, over=not self.run.running)

    def running(self) -> bool:
        return self.run.running

    def status(self) -> JobStatus:
        if self.run.running:
            try:
                status = self._ask(messages.StatusRequest())
                assert isinstance(status, JobStatus)
                return status
            except (errors.MasterUnreachable, OSError) as error:
                root = self.run.files.root
                if self.run.running and (why := disks.write_error(root)):
                    raise errors.MasterUnreachable(
                        f"{root} accepts no files ({why}): free some space. {error}"
                    ) from None
                if self.run.running:
                    raise
        return last_status(self.run)

    def ask(self, request: Request) -> Reply:
        if not self.run.running:
            raise job_handle.not_running(self.name, self.status().phase)
        return self._ask(request)

    def _ask(self, request: Request) -> Reply:
        import asyncio  # imported here, because these imports take 60 ms and only a running job has a master

        from springtide.platforms.agent import master_client

        return asyncio.run(master_client.ask_master(self.run.files, request, running=lambda: self.run.running))

    def story(self) -> list[dict[str, Any]]:
        return events.read(self.run.files.events)

    def roles(self) -> list[str]:
        return self.run.files.logged_roles()

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        tails: dict[str, logs.LogTail] = {}
        for role in roles or self.roles():
            tails[role] = logs.LogTail(self.run.files.logs / f"{role}.log")
            yield from [LogLine(role, text) for text in tails[role].more() if text.strip()][-lines:]
        while follow:
            # read `running` before the last check of the log files, so that this check sees all output of the job
            running = self.run.running
            for role in roles or self.roles():
                tail = tails.setdefault(role, logs.LogTail(self.run.files.logs / f"{role}.log"))
                yield from (LogLine(role, text) for text in tail.more())
            if not running:
                return
            time.sleep(LOOK_S)


def last_status(run: logs.JobRun) -> JobStatus:
    """Return the status from the last event. If the agent was killed, rebuild the status from the events."""
    story = events.read(run.files.events)
    if story and story[-1]["event"] == "ended":
        return msgspec.convert(story[-1]["status"], JobStatus)
    until = max((event["at"] for event in story), default=run.card.began_at)
    phases = [event for event in story if event["event"] == "phase"]
    saved = [event for event in story if event["event"] == "checkpoint" and event["outcome"] == "complete"]
    phase, why = JobPhase.FAILED, "the command that ran the job was killed, which ended the job"
    if phases and JobPhase(phases[-1]["phase"]).over:
        phase, why = JobPhase(phases[-1]["phase"]), phases[-1]["why"]
    elif phases:
        why += f" (it was {phases[-1]['phase']})"
    return JobStatus(
        name=run.card.name,
        phase=phase,
        why=why,
        blame=Blame.INFRASTRUCTURE if phase is JobPhase.FAILED else Blame.NONE,
        elapsed_s=until - run.card.began_at,
        samples=max((event.get("samples", 0) for event in (*phases, *saved)), default=0),
        checkpoints=CheckpointStatus(number=saved[-1]["number"] if saved else 0),
    )
