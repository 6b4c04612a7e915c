"""The table of the API: each path with its query, its document and the function that answers it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from springtide import __version__, errors
from springtide.brain.service import queries
from springtide.brain.service.messages import BrainStatus, Inspect
from springtide.brain.service.queries import BrainLocation
from springtide.dashboard import control, plan_explorer
from springtide.dashboard.documents import (
    CheckpointList,
    Document,
    Done,
    EventList,
    JobHistory,
    JobList,
    JobPage,
    LogPage,
    Nothing,
    PlanPage,
    ScaleOrder,
    ServerInfo,
    TriedShape,
)
from springtide.dashboard.job_reader import JobReader
from springtide.domain.core.shape import Shape
from springtide.platforms.agent.job_handle import JobHandle
from springtide.rpc.messages.types import JobMap

T = TypeVar("T")


class DashboardSources(NamedTuple):
    """The content that a dashboard shows."""

    reader: JobReader
    job: str = ""
    """Job to show first."""
    control: bool = False
    brain: BrainLocation = BrainLocation()


class ApiCall(NamedTuple):
    """One request to the API: its path parameters, its query and its body."""

    sources: DashboardSources
    parameters: Mapping[str, Any]
    query: Mapping[str, str]
    body: bytes

    @property
    def handle(self) -> JobHandle:
        return self.sources.reader.find(self.parameters["job"])

    def value(self, name: str, kind: Any, default: T) -> T:
        """Return a value of the query."""
        if name not in self.query:
            return default
        try:
            found: T = msgspec.convert(self.query[name], kind, strict=False)
            return found
        except msgspec.ValidationError as error:
            raise errors.BadInput(f"{name}={self.query[name]!r}: {error}") from None

    def document(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except msgspec.DecodeError as error:
            raise errors.BadInput(f"the body is no {kind.__name__}: {error}") from None


class Endpoint(NamedTuple):
    """One path of the API."""

    path: str
    summary: str
    answer: type[msgspec.Struct]
    call: Callable[[ApiCall], msgspec.Struct]
    query: Mapping[str, tuple[type, str]] = {}
    """Values of the query, each with its type and its meaning."""
    body: type[Document] | None = None
    """Document that the request carries; such a request is a POST."""

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


def info(call: ApiCall) -> ServerInfo:
    sources = call.sources
    where = sources.reader.where
    return ServerInfo(
        version=__version__,
        folder=where.platform if where.remote else where.folder,
        job=sources.job,
        brain=sources.brain.known,
        control=sources.control,
    )


def shape_of(call: ApiCall) -> Shape:
    return Shape(
        workers=call.value("workers", int, 1),
        servers=call.value("servers", int, 1),
        worker_cpu=call.value("worker_cpu", float, 1.0),
        server_cpu=call.value("server_cpu", float, 1.0),
    )


JOB = "/api/jobs/{job}"
ENDPOINTS = (
    Endpoint("/api/info", "What this dashboard serves.", ServerInfo, info),
    Endpoint(
        "/api/brain",
        "State of the brain that plans for many jobs: capacity, live jobs and their last decisions.",
        BrainStatus,
        lambda call: queries.ask(Inspect(), BrainStatus, call.sources.brain),
    ),
    Endpoint("/api/jobs", "All jobs, newest first.", JobList, lambda call: call.sources.reader.jobs()),
    Endpoint(JOB, "A job at this moment.", JobPage, lambda call: call.sources.reader.page(call.handle)),
    Endpoint(
        f"{JOB}/history",
        "Recorded series of a job.",
        JobHistory,
        lambda call: call.sources.reader.history(call.handle, call.value("since", float, 0.0)),
        {"since": (float, "Only points after this Unix time.")},
    ),
    Endpoint(
        f"{JOB}/events",
        "Events of a job, in order.",
        EventList,
        lambda call: call.sources.reader.events(call.handle, call.value("after", int, -1)),
        {"after": (int, "Only events behind this position in the job's event log.")},
    ),
    Endpoint(
        f"{JOB}/checkpoints",
        "Checkpoints of a job, oldest first.",
        CheckpointList,
        lambda call: call.sources.reader.checkpoints(call.handle, verify=call.value("verify", bool, False)),
        {"verify": (bool, "Compare all checksums, not only sizes.")},
    ),
    Endpoint(
        f"{JOB}/logs",
        "The last lines of the logs of one role or of all roles.",
        LogPage,
        lambda call: call.sources.reader.logs(
            call.handle,
            role=call.value("role", str, ""),
            lines=call.value("lines", int, 200),
            search=call.value("search", str, ""),
        ),
        {
            "role": (str, "Role, such as worker-1. Default: all roles."),
            "lines": (int, "Number of last lines of each role. Default: 200."),
            "search": (str, "Only lines that contain this text, in any case."),
        },
    ),
    Endpoint(
        f"{JOB}/map",
        "Where every slot, shard and partition of a running job is.",
        JobMap,
        lambda call: call.sources.reader.map(call.handle),
    ),
    Endpoint(
        f"{JOB}/plan",
        "What the planner decides about a job now, with its alternatives.",
        PlanPage,
        lambda call: plan_explorer.explore(call.handle, call.value("epoch", int | None, None)),
        {"epoch": (int, "Instead of now: at the plan of this epoch, if the event `plan` of that epoch is explained.")},
    ),
    Endpoint(
        f"{JOB}/plan/shape",
        "Expected throughput and cost of one shape.",
        TriedShape,
        lambda call: plan_explorer.try_shape(call.handle, shape_of(call)),
        {
            "workers": (int, "Number of workers."),
            "servers": (int, "Number of servers."),
            "worker_cpu": (float, "Cores of each worker."),
            "server_cpu": (float, "Cores of each server."),
        },
    ),
    Endpoint(
        f"{JOB}/checkpoint",
        "Begin a checkpoint of a running job now. Needs --allow-control.",
        Done,
        lambda call: control.checkpoint(call.handle),
        body=Nothing,
    ),
    Endpoint(
        f"{JOB}/scale",
        "Scale a running job. Needs --allow-control.",
        Done,
        lambda call: control.scale(call.handle, call.document(ScaleOrder)),
        body=ScaleOrder,
    ),
    Endpoint(
        f"{JOB}/stop",
        "Drain a running job. Needs --allow-control.",
        Done,
        lambda call: control.stop(call.handle),
        body=Nothing,
    ),
)
