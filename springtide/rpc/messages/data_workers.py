"""What is said about data workers: how they join, who feeds whom. In: `rpc.messages.types`. Next: part of
`rpc.messages.messages`.

Mini-batches never come this way: trainers and data workers speak to each other (`dataworker.transport.channel`).
"""

from springtide.domain.data.data_workers import LeftOut, stage_of
from springtide.rpc.messages.types import RpcMessage

PACKAGE_KEY = "data workers: package"
"""Under which a trainer shares the `Package` once it lies in the job's folder; also what is claimed to write it."""


class JoinDataWorker(RpcMessage, frozen=True):
    """A data worker's process is up. Answered with `DataWorkerWelcome`; said again to every new master."""

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """Drawn when its process began."""


class DataWorkerWelcome(RpcMessage, frozen=True):
    """What a data worker needs to know."""

    job: str
    seed: int
    heartbeat_s: float
    package: str
    """Folder of the job's package, where it is seen from here; it is there once `PACKAGE_KEY` is shared."""


class DataWorkerReady(RpcMessage, frozen=True):
    """The data worker serves mini-batches at `address`."""

    address: str


class CannotFeed(RpcMessage, frozen=True):
    """A trainer cannot be fed, and nor can the others: why."""

    why: str


class WorkerDecision(RpcMessage, frozen=True):
    """A worker has decided something that the story should tell, such as which part of it data workers have."""

    what: str
    why: str


class TrainedWithout(RpcMessage, frozen=True):
    """A worker has trained a batch without samples that it cannot make; saying it twice does no harm."""

    left_out: LeftOut


class Package(RpcMessage, frozen=True):
    """The job's package is there."""

    digest: str
    """Of the program that was split. A worker that has split it otherwise cannot be fed from this package."""
    stages: int = 1
    gpu_stages: tuple[int, ...] = ()
    """Those that run on a GPU; they count from 0."""
    sealed: str = ""
    """Digest of its files, by which a data worker knows whether it sees them."""


class Feeder(RpcMessage, frozen=True):
    """A data worker that feeds."""

    name: str
    address: str
    rank: int = 0


class Feeders(RpcMessage, frozen=True):
    """All that feed now, for trainers and for data workers that stand between; told to whoever knows another epoch."""

    epoch: int
    wanted: int
    """How many there are to be: more than none, and trainers see to the package."""
    members: tuple[Feeder, ...] = ()


def feeds(roster: Feeders, *, stage: int, stages: int) -> tuple[Feeder, ...]:
    """Those of a roster that run this stage."""
    return tuple(each for each in roster.members if stage_of(each.rank, stages) == stage)
