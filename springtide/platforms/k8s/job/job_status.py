"""How a job is, as its ElasticJob's status says it: some fields for people, conditions, and all for programs.

In: the master's `JobStatus`. Out: a patch of the status. `platforms.k8s.client.job_handle` reads it back, so that
`springtide status` says the same as on any platform. Next: `platforms.k8s.job.status_writer`.
"""

from typing import Any

import msgspec

from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.k8s.api.kinds import Object
from springtide.platforms.k8s.objects.job_object import FAILED, STOPPED, SUCCEEDED, JobCondition
from springtide.rpc.messages import messages

PHASES = {
    JobPhase.STARTING: "Starting",
    JobPhase.RUNNING: "Running",
    JobPhase.DRAINING: "Draining",
    JobPhase.FINISHED: SUCCEEDED,
    JobPhase.STOPPED: STOPPED,
    JobPhase.FAILED: FAILED,
}
REPORT = "report"
"""Field of the status: the whole `JobStatus`."""
MEMBERS = 200
"""Of a larger job only so many are listed, lowest ranks first: an object has to stay small."""
WORDS = 1000


def fields(status: messages.JobStatus, *, generation: int) -> Object:
    """All but conditions."""
    decision = f"{status.decision}: {status.decision_why}" if status.decision else ""
    members = status.members[:MEMBERS]
    report = msgspec.to_builtins(msgspec.structs.replace(status, members=members), str_keys=True)
    return {
        "phase": PHASES[status.phase],
        "message": clipped(status.why if status.phase.over else status.lacks or status.why),
        "workers": f"{status.workers_alive}/{status.workers_wanted}",
        "servers": f"{status.servers_alive}/{status.servers_wanted}",
        "dataWorkers": f"{status.data_workers_alive}/{status.data_workers_wanted}",
        "samples": status.samples,
        "samplesPerSecond": round(status.samples_per_s, 1),
        "loss": status.loss if status.loss is None or status.loss == status.loss else None,
        "decision": clipped(decision),
        "observedGeneration": generation,
        REPORT: plain(report),
    }


def conditions(status: messages.JobStatus) -> list[JobCondition]:
    """Ready: it trains. Progressing: it starts, changes or drains. Degraded: it has less than it should. Finished."""
    phase, over = status.phase, status.phase.over
    all_there = (
        status.workers_alive >= status.workers_wanted > 0 and status.servers_alive >= status.servers_wanted > 0
    )  # fmt: skip
    running = phase is JobPhase.RUNNING
    changing = not over and (
        phase in (JobPhase.STARTING, JobPhase.DRAINING) or not all_there or status.slots_moving > 0
    )
    lacking = status.disk_trouble or status.lacks or ("" if all_there or not running else "some roles are away")
    trains = running and status.workers_alive > 0
    return [
        JobCondition(
            type="Ready", status=trains, reason="Trains" if trains else PHASES[phase], message=clipped(status.why)
        ),
        JobCondition(type="Progressing", status=changing, reason="Changes" if changing else "Settled"),
        JobCondition(
            type="Degraded", status=bool(lacking) and not over, reason="Lacks" if lacking else "Whole",
            message=clipped(lacking),
        ),
        JobCondition(type="Finished", status=over, reason=PHASES[phase], message=clipped(status.why) if over else ""),
    ]  # fmt: skip


def failed(name: str, why: str, blame: Blame = Blame.USER) -> messages.JobStatus:
    """Of a job that cannot even begin."""
    return messages.JobStatus(name=name, phase=JobPhase.FAILED, why=why, blame=blame, elapsed_s=0.0)


def read(status: Object, name: str, age_s: float) -> messages.JobStatus:
    """How a job is, by its ElasticJob's status: the master's own words; where the operator has spoken since, as it does
    of a job without a master, its phase and its message over them."""
    told = report_of(status)
    phase = phase_of(status)
    away = any(each["type"] == "MasterRunning" and each["status"] == "False" for each in status.get("conditions") or ())
    if told is not None and told.phase is phase and (phase.over or not away):
        return told
    why = str(status.get("message") or "the operator has not looked at it yet: does it run?")
    known = told or messages.JobStatus(name=name, phase=phase, why="", elapsed_s=age_s)
    return msgspec.structs.replace(known, phase=phase, why=why)


def phase_of(status: Object) -> JobPhase:
    """As every platform calls it; what has no master yet starts."""
    return next((phase for phase, word in PHASES.items() if word == status.get("phase")), JobPhase.STARTING)


def report_of(status: Object) -> messages.JobStatus | None:
    """What its master wrote there; None: nothing yet, or by another version."""
    try:
        return msgspec.convert(status.get(REPORT), messages.JobStatus, str_keys=True)
    except msgspec.ValidationError:
        return None


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: they are left out."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def clipped(words: str) -> str:
    """No longer than a person reads."""
    return words if len(words) <= WORDS else f"{words[: WORDS - 3]}..."
