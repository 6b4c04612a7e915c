"""Documents of the dashboard's API. `openapi` describes the documents, and `tools/dashboard_types.py` writes their
TypeScript types.

Statuses, progress points and points of online jobs appear as they are in the product; the classes here add the rest.
"""

from typing import Any

import msgspec

from springtide.domain.core.shape import Shape
from springtide.domain.spec.online_job import OnlinePoint
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry.progress import ProgressPoint


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the API's documents."""


class ServerInfo(Document, frozen=True, kw_only=True):
    """Description of what this dashboard serves."""

    version: str
    folder: str
    """Folder of runs, or the cluster that is searched for jobs."""
    job: str
    """Job to show first; empty if there is none."""
    brain: bool
    """True if a brain has served jobs here, so that the cluster can be shown."""
    control: bool
    """True if users of this dashboard may scale and stop jobs."""


class JobRow(Document, frozen=True, kw_only=True):
    """A job in the list of jobs."""

    name: str
    phase: str
    running: bool
    platform: str
    script: str
    began_at: float
    elapsed_s: float
    samples: int
    samples_per_s: float
    shards_done: int
    shards_total: int
    why: str
    spark: tuple[float, ...]
    """Samples per second over the life of the job, at most 40 values."""


class JobList(Document, frozen=True, kw_only=True):
    """All jobs, newest first."""

    jobs: tuple[JobRow, ...]


class JobPage(Document, frozen=True, kw_only=True):
    """A job at one moment."""

    name: str
    running: bool
    platform: str
    script: str
    arguments: tuple[str, ...]
    began_at: float
    now: float
    status: JobStatus
    mean_samples_per_s: float
    """Samples per second over the whole training."""
    decision: str
    places: dict[str, str]
    planned: bool
    """True if the job's planner has saved a view, so that the plan can be shown."""
    trouble: str = ""
    """Reason why this status may be old; empty if the master has answered."""


class EventRow(Document, frozen=True, kw_only=True):
    """An event of a job: what happened, and why."""

    number: int
    """Position in the job's event log."""
    at: float
    kind: str
    text: str
    """The event as a sentence; empty for an event that explains nothing."""
    role: str = ""
    why: str = ""
    inputs: dict[str, Any] = {}
    """All other fields of the event."""
    explained: bool = False
    """True if the job recorded the inputs of this decision, so that the dashboard can compute its alternatives."""


class JobHistory(Document, frozen=True, kw_only=True):
    """Recorded series of a job."""

    progress: tuple[ProgressPoint, ...] = ()
    online: tuple[OnlinePoint, ...] = ()
    forecast: "Forecast | None" = None
    predicted: tuple[tuple[float, float], ...] = ()
    """Pairs of time and expected samples per second, one for each plan that was carried out."""


class Forecast(Document, frozen=True, kw_only=True):
    """Forecast of a stream's traffic, in samples per second. Value n is for the step from `at + n * step_s` on."""

    at: float
    step_s: float
    mean: tuple[float, ...]
    high: tuple[float, ...]


class LiveUpdate(Document, frozen=True, kw_only=True):
    """The news of a job since the last update."""

    page: JobPage
    history: JobHistory
    events: tuple[EventRow, ...]
    whole: bool
    """True for the first update, which has everything."""


class EventList(Document, frozen=True, kw_only=True):
    """Events of a job, in order."""

    events: tuple[EventRow, ...]


class Checkpoint(Document, frozen=True, kw_only=True):
    """A checkpoint of a job."""

    number: int
    at: float
    seconds: float
    bytes: int
    samples: int
    kind: str
    outcome: str
    where: str
    uploaded: str
    """URL to which the checkpoint was copied; empty if it was not copied."""
    mirror: str
    why: str
    kept: bool
    """True if the files still exist, with the sizes that the manifest gives."""
    apart: tuple[str, ...]
    """Servers with files on their own disks."""
    verified: bool


class CheckpointList(Document, frozen=True, kw_only=True):
    """Checkpoints of a job, oldest first."""

    checkpoints: tuple[Checkpoint, ...]
    resume: str
    """Command that continues from the newest checkpoint; empty if there is no usable checkpoint."""


class LogText(Document, frozen=True, kw_only=True):
    """Lines of one role's log."""

    role: str
    text: str


class LogPage(Document, frozen=True, kw_only=True):
    """The last lines of the logs of a job."""

    roles: tuple[str, ...]
    """All roles that have logs."""
    lines: tuple[LogText, ...]
    shortened: bool
    """True if the file has more lines than one page may contain."""


class Candidate(Document, frozen=True, kw_only=True):
    """A possible shape of a job."""

    shape: Shape
    cost: float
    throughput: float | None
    """Expected samples per second; None without a prediction."""
    chosen: bool = False
    now: bool = False


class PlanPage(Document, frozen=True, kw_only=True):
    """The decision that the planner would make about a job now, and the reason."""

    policy: str
    why: str
    notes: tuple[str, ...]
    measured: float | None
    model: str
    """The performance model in words, or the reason why there is none."""
    shapes: str
    """Number of shapes considered."""
    candidates: tuple[Candidate, ...]
    least: Shape
    most: Shape
    now: Shape | None


class TriedShape(Document, frozen=True, kw_only=True):
    """The planner's prediction for a shape."""

    shape: Shape
    cost: float | None = None
    throughput: float | None = None
    allowed: bool = False
    why: str = ""
    """Reason why the shape has no prediction, or why the job may not have this shape."""


class Done(Document, frozen=True, kw_only=True):
    """A command was accepted."""

    what: str


class ScaleOrder(Document, frozen=True, kw_only=True):
    """Numbers of roles to set; None leaves a number unchanged."""

    workers: int | None = None
    servers: int | None = None
    data_workers: int | None = None


class Nothing(Document, frozen=True, kw_only=True):
    """An empty body."""


class ApiError(Document, frozen=True, kw_only=True):
    """Why a request failed."""

    error: str
