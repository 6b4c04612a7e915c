"""Reads the documents about jobs: from their handles on any platform, and from the run folders of this machine.

Methods wait for disks and sockets, so `endpoints` calls them in threads. The reader loads a file again only after the
file has changed.
"""

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.dashboard.documents import (
    Checkpoint,
    CheckpointList,
    EventList,
    EventRow,
    Forecast,
    JobHistory,
    JobList,
    JobPage,
    JobRow,
    LogPage,
    LogText,
)
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.online_job import OnlinePoint
from springtide.launch import checkpoint_list, job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.platforms.agent.job_handle import JobHandle
from springtide.platforms.local.job_handle import LocalJobHandle
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobMap, JobStatus
from springtide.telemetry import event_sentences, events, output, progress
from springtide.telemetry.logs import RunFiles
from springtide.telemetry.progress import ProgressPoint

T = TypeVar("T")
SPARK_POINTS = 40
MOST_EVENTS = 2000
"""Most events to send at once, the newest; a week of a busy job has more."""
MOST_LINES = 2000
MOST_ROLES_READ = 64
"""Most logs to read for one page of lines, because each log is a file."""
REMOTE_POINTS = 1200
KEPT_FIELDS = ("at", "event", "why", "role", "trace")


class JobReader:
    """Reader of the jobs at one location."""

    def __init__(self, where: JobLocation) -> None:
        self.where = where
        self._files: dict[pathlib.Path, tuple[tuple[int, int], Any]] = {}
        """Newest content of each file that was read, with the file's size and time of change."""
        self._polled: dict[str, list[ProgressPoint]] = {}
        """Progress of jobs on clusters since this dashboard was opened. The files of such jobs are not on this
        machine.
        """

    def find(self, name: str) -> JobHandle:
        return job_lookup.find(name, self.where)

    def jobs(self) -> JobList:
        return JobList(jobs=tuple(self._row(handle) for handle in job_lookup.every(self.where)))

    def page(self, handle: JobHandle) -> JobPage:
        """Return the job's status. If the master of a running job does not answer, return what is known, with the
        reason."""
        running, files, trouble = handle.running(), files_of(handle), ""
        try:
            status = handle.status()
        except (errors.SpringtideError, OSError) as error:
            trouble = output.redact(str(error))
            status = JobStatus(name=handle.name, phase=JobPhase.STARTING, why=trouble, elapsed_s=0.0)
        status = msgspec.convert(output.redact_all(msgspec.to_builtins(status)), JobStatus)
        training, master = status.training, status.master
        trained = status.samples - training.samples_before
        if handle.platform != "local":
            self._note(handle.name, status)
        return JobPage(
            name=handle.name,
            running=running,
            platform=handle.platform,
            script=handle.card.script,
            arguments=handle.card.arguments,
            began_at=handle.card.began_at,
            now=time.time(),
            status=status,
            mean_samples_per_s=trained / training.trained_s if training.trained_s else 0.0,
            decision=f"{master.decision}: {master.decision_why}" if master.decision_why else master.decision,
            places=dict(handle.places),
            planned=files is not None and files.view.exists(),
            trouble=trouble,
        )

    def history(self, handle: JobHandle, since: float = 0.0) -> JobHistory:
        """Return the recorded points after a time."""
        files = files_of(handle)
        points: Sequence[ProgressPoint] = self._polled.get(handle.name, [])
        online: Sequence[OnlinePoint] = ()
        forecast = None
        if files is not None:
            points = self._read(files.progress, progress.read) or []
            online = self._read(files.online, lambda path: events.read_points(path, OnlinePoint)) or []
            forecast = self._read(files.forecast, read_forecast)
        plans = [event for event in self._events(handle) if event["event"] == "plan" and event["outcome"] == "taken"]
        return JobHistory(
            progress=tuple(point for point in points if point.at > since),
            online=tuple(point for point in online if point.at > since),
            forecast=forecast,
            predicted=tuple((plan["at"], plan["throughput"]) for plan in plans if plan.get("throughput")),
        )

    def events(self, handle: JobHandle, after: int = -1) -> EventList:
        """Return the newest events behind position `after`."""
        story = self._events(handle)
        first = max(after + 1, len(story) - MOST_EVENTS)
        files = files_of(handle)
        kept = {path.stem for path in files.views.glob("*.json")} if files is not None else set()
        return EventList(events=tuple(event_of(number, story[number], kept) for number in range(first, len(story))))

    def map(self, handle: JobHandle) -> JobMap:
        found = handle.ask(messages.MapRequest())
        assert isinstance(found, JobMap)
        return found

    def checkpoints(self, handle: JobHandle, *, verify: bool = False) -> CheckpointList:
        found = checkpoint_list.listed(self._events(handle), verify=verify)
        usable = any(row["outcome"] == "complete" and (row["kept"] or row["uploaded"]) for row in found)
        resume = f"springtide run {handle.card.script} --resume {handle.name}" if usable else ""
        return CheckpointList(checkpoints=msgspec.convert(found, tuple[Checkpoint, ...]), resume=resume)

    def logs(self, handle: JobHandle, *, role: str = "", lines: int = 200, search: str = "") -> LogPage:
        """Return the last lines of one role or of all roles, each role's lines together."""
        known = tuple(handle.roles())
        if role and role not in known:
            raise errors.UnknownName(f"role of job {handle.name}", role, known)
        chosen = [role] if role else list(known[:MOST_ROLES_READ])
        deep = lines if not search else MOST_LINES
        found = [
            LogText(role=line.role, text=output.redact(line.text))
            for line in handle.logs(chosen, lines=min(deep, MOST_LINES), follow=False)
            if not search or search.lower() in line.text.lower()
        ]
        shortened = len(found) > MOST_LINES or len(known) > len(chosen) > 1
        return LogPage(roles=known, lines=tuple(found[-MOST_LINES:]), shortened=shortened)

    def _row(self, handle: JobHandle) -> JobRow:
        page = self.page(handle)
        status = page.status
        points = self.history(handle).progress
        step = max(1, -(-len(points) // SPARK_POINTS))
        return JobRow(
            name=page.name,
            phase=status.phase,
            running=page.running,
            platform=page.platform,
            script=page.script,
            began_at=page.began_at,
            elapsed_s=status.elapsed_s,
            samples=status.samples,
            samples_per_s=status.training.samples_per_s if page.running else page.mean_samples_per_s,
            shards_done=status.data.shards_done,
            shards_total=status.data.shards_total,
            why=status.why.partition("\n")[0],
            spark=tuple(point.samples_per_s for point in points[::step]),
        )

    def _events(self, handle: JobHandle) -> list[dict[str, Any]]:
        files = files_of(handle)
        return handle.story() if files is None else self._read(files.events, events.read) or []

    def _read(self, path: pathlib.Path, read: Callable[[pathlib.Path], T]) -> T | None:
        try:
            seen = path.stat()
        except OSError:
            return None
        version = (seen.st_size, seen.st_mtime_ns)
        if self._files.get(path, (None,))[0] != version:
            self._files[path] = (version, read(path))
        content: T = self._files[path][1]
        return content

    def _note(self, name: str, status: JobStatus) -> None:
        from springtide.master.core.progress import point_of

        points = self._polled.setdefault(name, [])
        points.append(point_of(status, at=time.time()))
        del points[:-REMOTE_POINTS]


def files_of(handle: JobHandle) -> RunFiles | None:
    """Return the files of a job on this machine; None for a job on a cluster."""
    return handle.run.files if isinstance(handle, LocalJobHandle) else None


def event_of(number: int, event: dict[str, Any], kept: set[str]) -> EventRow:
    text = event_sentences.sentence(event)
    why = event.get("why") or event.get("error") or ""
    if event["event"] == "ended":
        text = f"the job is {event['status']['phase']}: {event['status']['why']}"
    return EventRow(
        number=number,
        at=event["at"],
        kind=event["event"],
        text=text,
        role=str(event.get("role", "")),
        why=str(why),
        inputs={name: value for name, value in event.items() if name not in (*KEPT_FIELDS, "status")},
        explained=event["event"] == "plan" and event["outcome"] == "taken" and str(event.get("epoch")) in kept,
    )


def read_forecast(path: pathlib.Path) -> Forecast | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Forecast)
    except (OSError, *UNDECODABLE):
        return None
