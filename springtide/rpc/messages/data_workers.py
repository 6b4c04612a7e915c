"""Messages about data workers: joining, the roster, and the package that they run.

Mini-batches do not use these messages: trainers and data workers connect directly (`dataworker.transport.channel`).
Receivers check the seal of a package before they unpickle anything (`dataworker.processes.job_package`).
"""

from springtide.domain.data.data_workers import LeftOut, stage_of
from springtide.domain.spec.job_spec import JobSpec
from springtide.rpc.messages.types import Reply, Request, RpcMessage

PACKAGE_KEY = "data workers: package"
"""Key under which a trainer claims, and then shares, the `Package` in the job's folder."""


class JoinDataWorker(Request, frozen=True):
    """A data worker's process has started. Sent again to every new master. Answered with `DataWorkerWelcome`."""

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """Random number that the process drew at its start."""


class DataWorkerWelcome(Reply, frozen=True):
    """Everything that a data worker needs to begin."""

    spec: JobSpec
    package: str
    """Folder of the job's package, if visible from here. The package is complete once `PACKAGE_KEY` is shared."""


class DataWorkerReady(Request, frozen=True):
    """The data worker serves mini-batches at `address`."""

    address: str


class CannotFeed(Request, frozen=True):
    """A trainer reports that data workers cannot feed it, and therefore cannot feed any trainer of the job."""

    why: str


class WorkerDecision(Request, frozen=True):
    """A decision of a worker for the event log, such as the part of its program that data workers take over."""

    what: str
    why: str


class TrainedWithout(Request, frozen=True):
    """A worker trained a batch without samples that it could not produce. Sending it twice does no harm."""

    left_out: LeftOut


class Package(RpcMessage, frozen=True):
    """The job's package is complete."""

    digest: str
    """Digest of the program that was split. A worker that split its program differently cannot use this package."""
    stages: int = 1
    gpu_stages: tuple[int, ...] = ()
    """Stages that run on a GPU, counted from 0."""
    sealed: str = ""
    """Digest of the package's files, with which a data worker checks that it sees the right files."""


class Feeder(RpcMessage, frozen=True):
    """A data worker that serves mini-batches."""

    name: str
    address: str
    rank: int = 0


class Feeders(RpcMessage, frozen=True):
    """Data workers that serve now, for trainers and data workers of later stages. The master sends the roster to
    members with a different epoch.
    """

    epoch: int
    wanted: int
    """Number of data workers that the job wants. If the number is above 0, trainers make the package."""
    members: tuple[Feeder, ...] = ()


def feeds(roster: Feeders, *, stage: int, stages: int) -> tuple[Feeder, ...]:
    return tuple(member for member in roster.members if stage_of(member.rank, stages) == stage)


class PackageWritten(Request, frozen=True):
    """A trainer has written the package: its files by name and bytes. Answered with the missing files."""

    sealed: str
    """Digest of the package's list of contents."""
    files: tuple[tuple[str, int], ...]


class PackageAsk(Request, frozen=True):
    """A data worker asks for a file of the package, from an offset. Answered with a `FilePart`."""

    sealed: str
    name: str
    offset: int = 0
