"""Messages about data workers: joining, and the roster. In: `rpc.messages.types`. Next: `rpc.messages.messages`
includes them.

Mini-batches do not use these messages: trainers and data workers connect directly (`dataworker.transport.channel`).
"""

from springtide.domain.data.data_workers import LeftOut, stage_of
from springtide.rpc.messages.types import RpcMessage

PACKAGE_KEY = "data workers: package"
"""Key under which a trainer shares the `Package` once it is in the job's folder. Trainers also claim this key to write
it."""


class JoinDataWorker(RpcMessage, frozen=True):
    """A data worker's process has started. Sent again to every new master. Answered with `DataWorkerWelcome`."""

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """Random number that the process drew at its start."""


class DataWorkerWelcome(RpcMessage, frozen=True):
    """Everything that a data worker needs to begin."""

    job: str
    seed: int
    heartbeat_s: float
    package: str
    """Folder of the job's package, if visible from here. The package is complete once `PACKAGE_KEY` is shared."""


class DataWorkerReady(RpcMessage, frozen=True):
    """The data worker serves mini-batches at `address`."""

    address: str


class CannotFeed(RpcMessage, frozen=True):
    """Data workers cannot feed this trainer, nor any other trainer."""

    why: str


class WorkerDecision(RpcMessage, frozen=True):
    """A decision of a worker for the event log, such as the part of its program that data workers take over."""

    what: str
    why: str


class TrainedWithout(RpcMessage, frozen=True):
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
    """Digest of the package's files, with which a data worker checks that it sees them."""


class Feeder(RpcMessage, frozen=True):
    """A data worker that serves mini-batches."""

    name: str
    address: str
    rank: int = 0


class Feeders(RpcMessage, frozen=True):
    """Data workers that serve now, for trainers and intermediate data workers. Sent to members with another epoch."""

    epoch: int
    wanted: int
    """Number of data workers that the job wants. If it is above 0, trainers make the package."""
    members: tuple[Feeder, ...] = ()


def feeds(roster: Feeders, *, stage: int, stages: int) -> tuple[Feeder, ...]:
    """Return the data workers of a roster that run this stage."""
    return tuple(each for each in roster.members if stage_of(each.rank, stages) == stage)
