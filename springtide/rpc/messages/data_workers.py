"""Messages about data workers: how they join, the list of data workers, and the package that they run.

Mini-batches do not use these messages: trainers and data workers connect directly (`dataworker.transport.channel`).
Receivers of a package check its seal before they unpickle anything (`dataworker.processes.job_package`).
"""

from springtide.domain.data.data_workers import LeftOut, stage_of
from springtide.domain.spec.job_spec import JobSpec
from springtide.rpc.messages.types import Reply, Request, RpcMessage

PACKAGE_KEY = "data workers: package"
"""Key under which a trainer first claims, and then shares, the `Package` in the job's folder."""


class JoinDataWorker(Request, frozen=True):
    """A data worker's process has started. The data worker sends the message again to every new master. The answer is
    `DataWorkerWelcome`."""

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """Random number that the process drew at its start."""


class DataWorkerWelcome(Reply, frozen=True):
    """Everything that a data worker needs to begin."""

    spec: JobSpec
    package: str
    """Folder of the job's package, if this data worker can see it. When `PACKAGE_KEY` is shared, the package is
    complete."""


class DataWorkerReady(Request, frozen=True):
    """The data worker serves mini-batches at `address`."""

    address: str


class CannotFeed(Request, frozen=True):
    """A trainer reports that data workers cannot serve it, and therefore cannot serve any trainer of the job."""

    why: str


class WorkerDecision(Request, frozen=True):
    """A worker reports a decision for the event log, such as the part of its program that data workers take over."""

    what: str
    why: str


class TrainedWithout(Request, frozen=True):
    """A worker trained a batch without samples that it could not produce. Sending the message twice does no harm."""

    left_out: LeftOut


class Package(RpcMessage, frozen=True):
    """The job's package is complete."""

    digest: str
    """Digest of the program that was split into parts for data workers and trainers. A worker that split its program
    differently cannot use this package."""
    stages: int = 1
    gpu_stages: tuple[int, ...] = ()
    """Numbers of the stages that run on a GPU, counted from 0."""
    sealed: str = ""
    """Digest of the package's files, with which a data worker checks that it has the right files."""


class Feeder(RpcMessage, frozen=True):
    """A data worker that serves mini-batches."""

    name: str
    address: str
    rank: int = 0


class Feeders(RpcMessage, frozen=True):
    """Data workers that serve now. Trainers and data workers of later stages use this list. The master sends the
    list to members that have a different epoch of it.
    """

    epoch: int
    wanted: int
    """Number of data workers that the job wants. If the number is above 0, a trainer makes the package."""
    members: tuple[Feeder, ...] = ()


def feeds(roster: Feeders, *, stage: int, stages: int) -> tuple[Feeder, ...]:
    return tuple(member for member in roster.members if stage_of(member.rank, stages) == stage)


class PackageWritten(Request, frozen=True):
    """A trainer has written the package. The message has the files of the package, by name and size in bytes. The
    answer names the missing files."""

    sealed: str
    """Digest of the package's list of contents."""
    files: tuple[tuple[str, int], ...]


class PackageAsk(Request, frozen=True):
    """A data worker asks for a file of the package, from an offset on. The answer is a `FilePart`."""

    sealed: str
    name: str
    offset: int = 0
