"""Writes a job's status to its ElasticJob: fields for people, conditions, and the full report for programs."""

import asyncio
import contextlib
import logging
import time

import msgspec

from springtide import errors
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, Object
from springtide.platforms.k8s.objects.job_objects import (
    FAILED,
    STOPPED,
    SUCCEEDED,
    JobCondition,
    merge_patch,
    with_conditions,
)
from springtide.rpc.messages.types import JobStatus

PHASES = {
    JobPhase.STARTING: "Starting",
    JobPhase.RUNNING: "Running",
    JobPhase.DRAINING: "Draining",
    JobPhase.FINISHED: SUCCEEDED,
    JobPhase.STOPPED: STOPPED,
    JobPhase.FAILED: FAILED,
}
REPORT = "report"
MEMBERS = 200
"""Most members to list, lowest ranks first, because the object must stay small."""
WORDS = 1000

log = logging.getLogger(__name__)
EVERY_S = 2.0
TRIES = 10


def fields(status: JobStatus, *, generation: int) -> Object:
    """Return the status fields. The client sends NaN and infinite values as null, because JSON has neither."""
    roles, master = status.roles, status.master
    decision = f"{master.decision}: {master.decision_why}" if master.decision else ""
    members = status.members[:MEMBERS]
    report = msgspec.to_builtins(msgspec.structs.replace(status, members=members), str_keys=True)
    return {
        "phase": PHASES[status.phase],
        "message": clipped(status.why if status.phase.over else roles.lacks or status.why),
        "workers": f"{roles.workers.alive}/{roles.workers.wanted}",
        "servers": f"{roles.servers.alive}/{roles.servers.wanted}",
        "dataWorkers": f"{roles.data_workers.alive}/{roles.data_workers.wanted}",
        "samples": status.samples,
        "samplesPerSecond": round(status.training.samples_per_s, 1),
        "loss": status.training.loss,
        "decision": clipped(decision),
        "observedGeneration": generation,
        REPORT: report,
    }


def conditions(status: JobStatus) -> list[JobCondition]:
    """Return the conditions Ready (the job trains), Progressing (it starts, changes or drains), Degraded (roles are
    missing) and Finished."""
    phase, over, roles = status.phase, status.phase.over, status.roles
    all_there = all(count.alive >= count.wanted > 0 for count in (roles.workers, roles.servers))
    running = phase is JobPhase.RUNNING
    changing = not over and (phase in (JobPhase.STARTING, JobPhase.DRAINING) or not all_there or roles.slots_moving > 0)
    lacking = status.master.disk_trouble or roles.lacks or ("" if all_there or not running else "some roles do not run")
    trains = running and roles.workers.alive > 0
    return [
        JobCondition("Ready", trains, "Trains" if trains else PHASES[phase], clipped(status.why)),
        JobCondition("Progressing", changing, "Changes" if changing else "Settled"),
        JobCondition("Degraded", bool(lacking) and not over, "Lacks" if lacking else "Whole", clipped(lacking)),
        JobCondition("Finished", over, PHASES[phase], clipped(status.why) if over else ""),
    ]


def failed(name: str, why: str, blame: Blame = Blame.USER) -> JobStatus:
    return JobStatus(name=name, phase=JobPhase.FAILED, why=why, blame=blame, elapsed_s=0.0)


def read(status: Object, name: str, age_s: float) -> JobStatus:
    """Return the master's last report. If the operator wrote the status after that, phase and message come from the
    operator."""
    report = report_of(status)
    phase = phase_of(status)
    away = any(
        condition["type"] == "MasterRunning" and condition["status"] == "False"
        for condition in status.get("conditions") or ()
    )
    if report is not None and report.phase is phase and (phase.over or not away):
        return report
    why = str(status.get("message") or "the operator has not handled the plan yet; check that the operator runs")
    known = report or JobStatus(name=name, phase=phase, why="", elapsed_s=age_s)
    return msgspec.structs.replace(known, phase=phase, why=why)


def phase_of(status: Object) -> JobPhase:
    return next((phase for phase, word in PHASES.items() if word == status.get("phase")), JobPhase.STARTING)


def report_of(status: Object) -> JobStatus | None:
    try:
        return msgspec.convert(status.get(REPORT), JobStatus, str_keys=True)
    except msgspec.ValidationError:
        return None


def clipped(words: str) -> str:
    return words if len(words) <= WORDS else f"{words[: WORDS - 3]}..."


class StatusWriter:
    """Writer of one job's status."""

    def __init__(self, client: Client, job: str) -> None:
        self._client, self._job = client, job
        self.generation = 0
        self._latest: JobStatus | None = None
        self._phase = ""
        self._news = asyncio.Event()

    def note(self, status: JobStatus) -> None:
        self._latest = status
        if status.phase != self._phase:
            self._phase = status.phase
            self._news.set()

    async def keep(self) -> None:
        written: JobStatus | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), EVERY_S)
            self._news.clear()
            status = self._latest
            if status is None or status == written:
                continue
            try:
                await self.write(status)
                written = status
            except errors.TemporaryError as error:
                log.warning("cannot write the status of %s: %s", self._job, error)

    async def write(self, status: JobStatus) -> None:
        for _ in range(TRIES):
            thing = await self._client.get(ELASTIC_JOBS, self._job)
            before = thing.get("status") or {}
            now = kinds.timestamp(time.time())
            body = fields(status, generation=self.generation)
            # a message omits fields that have their default value, so the patch must remove these fields from the
            # status
            body[REPORT] = merge_patch(before.get(REPORT) or {}, body[REPORT])
            body["conditions"] = with_conditions(
                before.get("conditions") or [], conditions(status), at=now, generation=self.generation
            )
            body |= {} if before.get("startedAt") else {"startedAt": now}
            body |= {"endedAt": now} if status.phase.over and not before.get("endedAt") else {}
            version = {"resourceVersion": thing["metadata"]["resourceVersion"]}
            with contextlib.suppress(errors.Conflict):
                patch = {"metadata": version, "status": body}
                await self._client.patch(ELASTIC_JOBS, self._job, patch, subresource="status")
                return
        raise errors.Conflict(f"the status of {self._job} was changed by others {TRIES} times in a row")
