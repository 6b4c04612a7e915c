"""How a job ended: text for people, whose first line is the error; an object for scripts; an exit code."""

from collections.abc import Mapping
from typing import Any

import msgspec

from springtide.cli.common.render import saving_of, show, wrap
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.rpc.messages.messages import JobStatus
from springtide.telemetry import output

OK, USER_CODE, INFRASTRUCTURE, INTERRUPTED = 0, 1, 3, 130


def exit_code(status: JobStatus) -> int:
    match status.phase:
        case JobPhase.FINISHED:
            return OK
        case JobPhase.STOPPED:
            return INTERRUPTED
        case _:
            return USER_CODE if status.blame is Blame.USER else INFRASTRUCTURE


def text(status: JobStatus, places: Mapping[str, str], *, debug: bool = False) -> str:
    lines = []
    if status.phase is JobPhase.FAILED:
        lines += [status.why, f"job {status.name} failed after {status.elapsed_s:.1f} s; {numbers(status)}"]
        lines += measures(status)
        if status.detail and debug:
            lines += ["", status.detail.rstrip(), ""]
        elif status.detail:
            lines.append("the traceback is in the log; --debug shows it here")
    elif status.phase is JobPhase.STOPPED:
        lines += [f"job {status.name} stopped after {status.elapsed_s:.1f} s: {status.why}", numbers(status)]
        lines += measures(status)
    else:
        lines.append(f"job {status.name} finished in {status.elapsed_s:.1f} s: {numbers(status)}")
        if not status.samples and not status.shards_total:
            lines += wrap("nothing was trained: the script never looped over the batches that job.prepare(...) gives")
        lines += measures(status)
    told = status.why if status.phase is JobPhase.FAILED else ""
    lines += [
        line for poisoned in status.poisoned if str(poisoned) not in told for line in wrap(f"given up: {poisoned}")
    ]
    if status.poisoned:
        lines.append("mend what cannot be read, or train without it: --poison skip")
    lines += left_out(status)
    if status.checkpoint_trouble:
        lines += wrap(f"saved   {saving_of(status)}")
    elif status.phase is not JobPhase.FINISHED and status.checkpoint:
        lines.append(f"saved   checkpoint {status.checkpoint}, which --resume goes on from")
    lines += [f"{what:<7} {place}" for what, place in places.items()]
    return output.redact("\n".join(lines))


def called(status: JobStatus, run: str) -> JobStatus:
    """Return the status with the name of the run's folder, because a second run of a job has a different name."""
    return msgspec.structs.replace(status, name=run)


def numbers(status: JobStatus) -> str:
    shards = f" ({status.shards_done:,} of {status.shards_total:,} shards)" if status.shards_total else ""
    if status.online is not None and status.shards_total:
        shards = f" of {status.shards_total:,} partition{'' if status.shards_total == 1 else 's'}"
    return f"{status.samples:,} samples{shards}, {rate(status):,.0f} samples/s"


def rate(status: JobStatus) -> float:
    return (status.samples - status.samples_before) / status.trained_s if status.trained_s else 0.0


def left_out(status: JobStatus) -> list[str]:
    if not status.left_out:
        return []
    shown, count = sum(len(each.indices) for each in status.left_out), status.samples_left_out
    lines = wrap(f"without {count:,} sample{'' if count == 1 else 's'} that could not be made (--poison skip):")
    lines += [line for each in status.left_out for line in wrap(f"  {each}")]
    return [*lines, f"  and {count - shown:,} more: springtide events has them all"] if count > shown else lines


def measures(status: JobStatus) -> list[str]:
    parts = [] if status.loss is None else [f"loss {status.loss:.4f}"]
    parts += [f"{name} {show(name, value)}" for name, value in sorted(status.metrics.items())]
    if status.staleness is not None and (status.staleness or status.workers_wanted > 1):
        parts.append(f"staleness {status.staleness_p50} pushes at the median, {status.staleness} at most")
    return wrap(", ".join(parts)) if parts else []


def as_object(status: JobStatus, places: Mapping[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(status)
    plain.pop("type", None)
    if status.phase.over:
        plain["samples_per_s"] = rate(status)
    return {**output.redact_all(plain), "exit_code": exit_code(status), **places}
