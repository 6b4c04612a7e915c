"""Records of running and finished jobs (the newest 50) in the key-value store of a Ray cluster, which lasts as long as
the cluster.

A steward ends with its job and leaves the last status, the events and the ends of the logs for `job_handle`.
"""

import time
import zlib
from typing import Any

import msgspec
from ray.experimental import internal_kv

from springtide.platforms.ray_cluster import job_order
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import events, logs, output

KEPT = 50
TAIL = 200
EVENTS = 5000
SPACE = job_order.NAMESPACE.encode()


class RayJobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one job."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    began_at: float
    run_folder: str = ""
    begun: bool = False
    """True once a steward has started the job; a later steward resumes it, or reports why it cannot."""
    ended_at: float = 0.0
    status: JobStatus | None = None
    """Final status; None while the job is not over."""
    story: tuple[dict[str, Any], ...] = ()
    logs: dict[str, list[str]] = {}


def fresh(wanted: job_order.JobOrder) -> RayJobRecord:
    plan = wanted.plan
    return RayJobRecord(
        name=wanted.name,
        script=plan.script,
        arguments=output.redact_arguments(plan.arguments),
        began_at=wanted.began_at,
        run_folder=wanted.run_folder,
    )


def ended(wanted: job_order.JobOrder, status: JobStatus, files: logs.RunFiles) -> RayJobRecord:
    tails = {path.stem: logs.tail(path, TAIL) for path in sorted(files.logs.glob("*.log"))}
    return msgspec.structs.replace(
        fresh(wanted),
        begun=True,
        ended_at=time.time(),
        status=status,
        story=tuple(events.read(files.events)[-EVENTS:]),
        logs=tails,
    )


def write(record: RayJobRecord) -> None:
    packed = zlib.compress(msgspec.msgpack.encode(record), 1)
    internal_kv._internal_kv_put(_key(record.name), packed, overwrite=True, namespace=SPACE)
    if record.ended_at:
        over = sorted((each for each in every() if each.ended_at), key=lambda each: each.ended_at)
        for old in over[:-KEPT]:
            internal_kv._internal_kv_del(_key(old.name), namespace=SPACE)


def begin(wanted: job_order.JobOrder) -> bool:
    """Record that a steward starts this job; return True for the first one."""
    before = read(wanted.name)
    if before is not None and before.begun and before.began_at == wanted.began_at:
        return False
    write(msgspec.structs.replace(fresh(wanted), begun=True))
    return True


def end_of(wanted: job_order.JobOrder) -> JobStatus | None:
    found = read(wanted.name)
    return found.status if found is not None and found.ended_at and found.began_at == wanted.began_at else None


def read(name: str) -> RayJobRecord | None:
    packed = internal_kv._internal_kv_get(_key(name), namespace=SPACE)
    return None if packed is None else msgspec.msgpack.decode(zlib.decompress(packed), type=RayJobRecord)


def every() -> list[RayJobRecord]:
    names = [key.decode().removeprefix("job:") for key in internal_kv._internal_kv_list(b"job:", namespace=SPACE)]
    found = [record for name in names if (record := read(name)) is not None]
    return sorted(found, key=lambda record: record.began_at, reverse=True)


def _key(name: str) -> bytes:
    return f"job:{name}".encode()
