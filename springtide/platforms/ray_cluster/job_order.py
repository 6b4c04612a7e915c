"""Defines the order of a job on Ray, the names and resource requests of its actors, and the record of the finished
job.

Records of running and finished jobs (the newest 50) are in the key-value store of the cluster. A steward ends with its
job and leaves the last status, the events and the ends of the logs for `job_handle`.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from ray.experimental import internal_kv

from springtide import errors
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import RANKED, Life, RoleKind, parse_role
from springtide.domain.plan.capacity import USUAL_SERVER, USUAL_WORKER, PlatformCapacity
from springtide.domain.spec.elastic_job import RayWish
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import events, logs, output

NAMESPACE = "springtide"

USUAL_CPU = {RoleKind.WORKER: USUAL_WORKER, RoleKind.DATA_WORKER: USUAL_WORKER, RoleKind.SERVER: USUAL_SERVER}
"""Cores that a role without a limit requests from Ray. Springtide's planning assumes this number, but Ray does not
enforce it.
"""
ROLES = ("master", *(str(kind) for kind in RANKED))
"""Roles that may request custom resources; the master's resources apply to the steward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """A job for a steward to run."""

    plan: RunPlan
    wish: RayWish
    run_folder: str
    """Folder on the steward's node for journal, events, logs and checkpoints."""
    began_at: float = 0.0

    def __post_init__(self) -> None:
        for role in self.wish.resources:
            if role not in ROLES:
                raise errors.UnknownName("role in ray.resources", role, ROLES)
        if "GPU" in self.wish.resources.get("worker", {}):
            raise errors.BadInput(
                "ray.resources.worker.GPU: give workers.gpu instead, so that planning knows the number"
            )

    @property
    def name(self) -> str:
        return self.plan.spec.name


def steward_of(job: str) -> str:
    return f"springtide/{job}"


def holder_of(job: str, life: Life) -> str:
    return f"{steward_of(job)}/{life.role}.{life.incarnation}"


def life_of(job: str, name: str) -> Life | None:
    start = f"{steward_of(job)}/"
    if not name.startswith(start):
        return None
    called, _, incarnation = name[len(start) :].rpartition(".")
    role = parse_role(called)
    if role is None or role.kind not in RANKED or not incarnation.isdecimal():
        return None
    return Life(role, int(incarnation))


def noise(job: str, where: Mapping[str, str]) -> dict[str, int]:
    """Count, for each node, the other jobs of which training or data workers use the node's network. `where` has the
    node of each actor.
    """
    trained: dict[str, set[str]] = {}
    fed: dict[str, set[str]] = {}
    for name, node in where.items():
        other = name.removeprefix(steward_of("")).rpartition("/")[0]
        life = life_of(other, name)
        if life is not None and other != job and life.role.kind in (RoleKind.WORKER, RoleKind.DATA_WORKER):
            found = trained if life.role.kind is RoleKind.WORKER else fed
            found.setdefault(other, set()).add(node)
    used = [node for nodes in trained.values() if len(nodes) > 1 for node in nodes]
    used += [node for other, nodes in fed.items() for node in nodes - trained.get(other, set())]
    return {node: used.count(node) for node in set(used)}


def needs(kind: RoleKind, limits: ProcessLimits, resources: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return Ray's options for a role. The options spread servers over the nodes."""
    cpu = USUAL_CPU.get(kind, 0.0) if limits.cpu is None else limits.cpu
    asked: dict[str, Any] = {"num_cpus": whole(cpu)}
    if limits.memory is not None:
        asked["memory"] = limits.memory
    custom = dict(resources.get(str(kind), {}))
    if gpus := custom.pop("GPU", 0.0) or limits.gpu:
        asked["num_gpus"] = gpus
    if custom:
        asked["resources"] = custom
    asked["scheduling_strategy"] = "SPREAD" if kind is RoleKind.SERVER else "DEFAULT"
    return asked


def capacity_of(nodes: Sequence[Mapping[str, Any]]) -> PlatformCapacity:
    resources = [node["Resources"] for node in nodes]
    if not any(has.get("CPU") for has in resources):
        raise errors.BadInput("this Ray cluster has no node with processors (CPU): see `ray status`")
    return PlatformCapacity(
        cpu=sum(has.get("CPU", 0.0) for has in resources),
        memory=sum(has.get("memory", 0.0) for has in resources),
        node_cpu=max(has.get("CPU", 0.0) for has in resources),
        node_memory=max(has.get("memory", 0.0) for has in resources),
        gpus=sum(int(has.get("GPU", 0.0)) for has in resources),
        holds=False,
        trouble="Ray does not change the resources of a running role",
    )


def whole(cpu: float) -> float:
    """Round a number of cores as Ray requires: below one core, fractions are allowed; above, only whole cores."""
    return round(cpu, 4) if cpu <= 1 else float(-(-cpu // 1))


def lacking(asked: Mapping[str, Any], free: Mapping[str, Mapping[str, float]]) -> str:
    plain = {"CPU": asked.get("num_cpus", 0.0), "GPU": asked.get("num_gpus", 0.0), "memory": asked.get("memory", 0.0)}
    wanted = {**plain, **asked.get("resources", {})}
    wanted = {name: amount for name, amount in wanted.items() if amount}
    takes = [node for node, has in free.items() if all(has.get(name, 0.0) >= more for name, more in wanted.items())]
    amounts = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items()) or "nothing"
    if takes:
        return (
            f"the role asks for {amounts}; {len(takes)} of {len(free)} nodes have that, but Ray did not start the role"
        )
    most = {name: max((has.get(name, 0.0) for has in free.values()), default=0.0) for name in wanted}
    left = ", ".join(f"{amount:g} {name}" for name, amount in most.items())
    return f"the role asks for {amounts} on one node, but none of {len(free)} nodes has that free (the most: {left})"


KEPT = 50
TAIL = 200
EVENTS = 5000
SPACE = NAMESPACE.encode()


class RayJobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one job."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    began_at: float
    run_folder: str = ""
    begun: bool = False
    """True if a steward has started the job. A later steward then resumes it, or reports why it cannot."""
    ended_at: float = 0.0
    status: JobStatus | None = None
    """Final status; None while the job is not over."""
    story: tuple[dict[str, Any], ...] = ()
    logs: dict[str, list[str]] = {}


def new_record(order: JobOrder) -> RayJobRecord:
    plan = order.plan
    return RayJobRecord(
        name=order.name,
        script=plan.script,
        arguments=output.redact_arguments(plan.arguments),
        began_at=order.began_at,
        run_folder=order.run_folder,
    )


def ended_record(order: JobOrder, status: JobStatus, files: logs.RunFiles) -> RayJobRecord:
    tails = {path.stem: logs.tail(path, TAIL) for path in sorted(files.logs.glob("*.log"))}
    return msgspec.structs.replace(
        new_record(order),
        begun=True,
        ended_at=time.time(),
        status=status,
        story=tuple(events.read(files.events)[-EVENTS:]),
        logs=tails,
    )


def write_record(record: RayJobRecord) -> None:
    packed = zlib.compress(msgspec.msgpack.encode(record), 1)
    internal_kv._internal_kv_put(_key(record.name), packed, overwrite=True, namespace=SPACE)
    if record.ended_at:
        over = sorted((known for known in all_records() if known.ended_at), key=lambda known: known.ended_at)
        for old in over[:-KEPT]:
            internal_kv._internal_kv_del(_key(old.name), namespace=SPACE)


def begin_record(order: JobOrder) -> bool:
    """Record that a steward starts this job; return True for the first steward."""
    before = read_record(order.name)
    if before is not None and before.begun and before.began_at == order.began_at:
        return False
    write_record(msgspec.structs.replace(new_record(order), begun=True))
    return True


def end_of(order: JobOrder) -> JobStatus | None:
    found = read_record(order.name)
    return found.status if found is not None and found.ended_at and found.began_at == order.began_at else None


def read_record(name: str) -> RayJobRecord | None:
    packed = internal_kv._internal_kv_get(_key(name), namespace=SPACE)
    return None if packed is None else msgspec.msgpack.decode(zlib.decompress(packed), type=RayJobRecord)


def all_records() -> list[RayJobRecord]:
    names = [key.decode().removeprefix("job:") for key in internal_kv._internal_kv_list(b"job:", namespace=SPACE)]
    found = [record for name in names if (record := read_record(name)) is not None]
    return sorted(found, key=lambda record: record.began_at, reverse=True)


def _key(name: str) -> bytes:
    return f"job:{name}".encode()
