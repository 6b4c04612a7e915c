"""Handle of a job on a Ray cluster. The handle asks the job's steward, or reads the record of a finished job."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray import exceptions

from springtide import errors
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.platforms.agent.job_handle import LogLine, not_running
from springtide.platforms.ray_cluster import cluster, job_order
from springtide.rpc.messages.types import JobStatus, Reply, Request
from springtide.telemetry.logs import RunCard

ANSWER_S = 30.0
AGAIN_S = 0.5


def open_job(name: str, where: Mapping[str, str]) -> "RayJobHandle":
    cluster.connect(where.get("address", ""))
    if job_order.read_record(name) is None:
        known = [record.name for record in job_order.all_records()]
        if not known:
            raise errors.MissingFile(f"no job {name}: this Ray cluster has no Springtide job of this name")
        raise errors.UnknownName("job", name, known)
    return RayJobHandle(name)


def names(where: Mapping[str, str]) -> list[str]:
    cluster.connect(where.get("address", ""))
    return [record.name for record in job_order.all_records()]


class RayJobHandle:
    """Handle of one job on Ray."""

    platform = "ray"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def card(self) -> RunCard:
        record = self._record()
        return RunCard(
            name=self.name, script=record.script, arguments=record.arguments, began_at=record.began_at, platform="ray"
        )

    @property
    def places(self) -> dict[str, str]:
        return {"folder": f"{self._record().run_folder} on the node of {job_order.steward_of(self.name)}"}

    def running(self) -> bool:
        return self._record().status is None and cluster.find_steward(self.name) is not None

    def status(self) -> JobStatus:
        found: JobStatus | None = self._call("status")
        return found if found is not None else self._last()

    def ask(self, request: Request) -> Reply:
        reply: Reply | None = self._call("ask", request)
        if reply is None:
            raise not_running(self.name, self._last().phase)
        return reply

    def story(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] | None = self._call("story")
        return found if found is not None else list(self._record().story)

    def roles(self) -> Sequence[str]:
        found: list[str] | None = self._call("roles")
        return found if found is not None else sorted(self._record().logs)

    def logs(self, roles: Sequence[str], *, lines: int, follow: bool) -> Iterator[LogLine]:
        offsets: dict[str, int] = {}
        for role in roles or self.roles():
            found = self._call("tail", role, lines)
            log_lines, offsets[role] = found if found is not None else (self._record().logs.get(role, [])[-lines:], 0)
            yield from (LogLine(role, line) for line in log_lines)
        while follow and cluster.find_steward(self.name) is not None:
            more = self._call("more", offsets) or {}
            for role, (log_lines, offset) in more.items():
                offsets[role] = offset
                if not roles or role in roles:
                    yield from (LogLine(role, line) for line in log_lines)
            if not more:
                time.sleep(AGAIN_S)

    def kill(self) -> None:
        self._call("kill")

    # ---- the steward ----

    def _record(self) -> job_order.RayJobRecord:
        record = job_order.read_record(self.name)
        if record is None:
            raise errors.MissingFile(f"job {self.name}: this Ray cluster no longer has its record")
        return record

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the steward. If the steward is restarting, wait for it. Return None if the job is over."""
        deadline = time.monotonic() + ANSWER_S
        while (steward := cluster.find_steward(self.name)) is not None:
            try:
                return ray.get(getattr(steward, method).remote(*arguments), timeout=ANSWER_S)
            except (exceptions.RayTaskError, exceptions.RayActorError, exceptions.GetTimeoutError) as error:
                # with a Ray client, a steward that ends between two calls looks like a failed Ray task
                cause = error.cause if isinstance(error, exceptions.RayTaskError) else None
                if cause is not None and not isinstance(cause, exceptions.RayError):
                    raise error.as_instanceof_cause() from None
                if time.monotonic() > deadline:
                    raise errors.MasterUnreachable(
                        f"job {self.name}: its steward does not answer; Ray may be restarting the steward"
                    ) from None
            time.sleep(AGAIN_S)
        return None

    def _last(self) -> JobStatus:
        record = self._record()
        if record.status is not None:
            return record.status
        return JobStatus(
            name=self.name,
            phase=JobPhase.FAILED,
            why="its steward was ended from outside, which ended the job",
            elapsed_s=max(0.0, time.time() - record.began_at),
            blame=Blame.INFRASTRUCTURE,
        )
