"""Building blocks of messages: their base class, and types that several messages contain."""

import msgspec

from springtide.domain.core.roles import Placement, Role, RoleKind, RoleUsage
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import FeedState, LeftOut
from springtide.domain.data.leases import Poisoned
from springtide.domain.data.streams import StreamUse
from springtide.domain.model.cache_rules import CacheUse
from springtide.domain.model.checkpoints import Lineage
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.domain.spec.online_job import OnlineState


class RpcMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base class of all messages. The class name is the tag on the wire."""


class Request(RpcMessage, frozen=True):
    """Base class of requests. Each subclass is a message of the control plane, and `master.handlers` has its
    handler."""


class Reply(RpcMessage, frozen=True):
    """Base class of replies."""


class FilePart(Request, Reply, frozen=True):
    """A range of a file: of a mirrored segment file, or of the data workers' package. The first range begins the
    file anew, and the last range completes it.
    """

    name: str
    offset: int
    content: bytes
    last: bool = False
    checksum: int = 0
    """CRC-32 of the whole file, sent with the last range."""


class MemberReport(RpcMessage, frozen=True):
    """Progress of a member, in totals since the member joined, so that a lost or repeated report does no harm."""

    step: int = 0
    samples: int = 0
    loss: float | None = None
    """Mean loss over the samples since the previous report."""
    metrics: dict[str, float] = {}
    """Metrics that the user reports by name, such as auc. The job shows the mean of these numbers, weighted by
    samples."""
    seconds: dict[str, float] = {}
    """Total seconds of the parts of a step: gradient, update, synchronization, lookup (Eqns 1-6), and waits."""
    counters: dict[str, float] = {}
    """Counters of a server: rows, bytes, requests."""
    cache: CacheUse | None = None
    """Statistics of the cache, from a worker of a bsp group that can cache rows."""
    feed: FeedState | None = None
    """Statistics of the input queue, from a worker that data workers can serve."""
    stream: StreamUse | None = None


class MemberView(RpcMessage, frozen=True):
    """A role, as the job's status shows it."""

    role: Role
    alive: bool
    joined: bool
    report: MemberReport = MemberReport()
    incarnation: int = 0
    state: str = ""
    """Value of `job.core.nodes.NodeState`, for people."""
    usage: RoleUsage | None = None
    pid: int = 0
    """Process id on the role's host; 0 until the process has joined."""


class StatusPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base class of the parts of a `JobStatus`, one for each subject."""


class TrainingStatus(StatusPart, frozen=True):
    """Speed and quality of the training."""

    trained_s: float = 0.0
    """Seconds from the first granted shard to the last sample, without startup, data preparation and evaluation."""
    samples_before: int = 0
    """Samples trained by the run from which this run resumed; `JobStatus.samples` includes them."""
    samples_per_s: float = 0.0
    """Sample rate over the last few seconds."""
    loss: float | None = None
    metrics: dict[str, float] = {}
    staleness: int | None = None
    """Largest number of pushes that a server applied between the read of rows and the push computed from them; async
    only."""
    staleness_p50: int | None = None
    """Median staleness over all pushes, on the server where it is largest."""
    cache: CacheUse | None = None


class EpochProgress(msgspec.Struct, frozen=True):
    """Progress of the present pass over the data."""

    number: int
    """Number of the epoch, from 1."""
    done: int
    """Samples trained in this epoch."""
    samples: int
    """Samples of the epoch."""


class DataStatus(StatusPart, frozen=True):
    """Progress through the data set, and the samples that could not be read."""

    epoch: EpochProgress | None = None
    """None if the length of the data is unknown."""

    shards_done: int = 0
    shards_leased: int = 0
    shards_total: int = 0
    epochs: int = 0
    feed: FeedState | None = None
    """Fill of the queues and waiting times of all workers together; None if data workers cannot serve any worker."""
    poisoned: tuple[Poisoned, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """First batches that were trained without unreadable samples, as `--poison skip` allows."""
    samples_left_out: int = 0


class RoleCount(msgspec.Struct, frozen=True):
    """Number of processes of one role."""

    alive: int = 0
    wanted: int = 0


class RoleStatus(StatusPart, frozen=True):
    """Processes that the job has, processes that it lacks, and processes that it has lost."""

    workers: RoleCount = RoleCount()
    servers: RoleCount = RoleCount()
    data_workers: RoleCount = RoleCount()
    data_workers_why: str = ""
    """Reason for the current number of data workers."""
    lacks: str = ""
    """Roles for which no host has resources, and the time of the next request; empty if no role is missing."""
    relaunches: int = 0
    slots_moving: int = 0

    def of_kind(self, kind: RoleKind) -> RoleCount:
        return {RoleKind.WORKER: self.workers, RoleKind.SERVER: self.servers}.get(kind, self.data_workers)


class CheckpointStatus(StatusPart, frozen=True):
    """Checkpoints of the job."""

    number: int = 0
    """Number of the last complete checkpoint; 0 if no checkpoint is complete."""
    begun_at: float = 0.0
    """Time of day when that checkpoint began."""
    trouble: str = ""
    """Reason why the last checkpoint was not completed; empty if it was completed."""
    uploaded: int = 0
    """Number of the last checkpoint that is also at the checkpoint URL; 0 if the URL has no checkpoint."""
    saving_last: bool = False
    """True while the final checkpoint is written, after all workers have ended."""


class MasterStatus(StatusPart, frozen=True):
    """Health and last decision of the master."""

    term: int = 0
    """Term of the master: 1 for the first master, one more after each restart."""
    decision: str = ""
    """Last decision of the master, such as a relaunch, a fence or a scaling."""
    decision_why: str = ""
    loop_lag_s: float = 0.0
    """Longest delay of the master's event loop in the last ten seconds."""
    disk_trouble: str = ""
    """Reason why the master cannot write to its journal at the moment. Until the master can write, it makes no
    decisions and grants no leases.
    """


class PlanningStatus(StatusPart, frozen=True):
    """Shape of a job that plans its own size; empty for any other job."""

    stage: str = ""
    """Value of `domain.spec.planning_config.PlanningStage`."""
    shape: Shape | None = None
    """Present shape; None during a change of the shape."""
    target: Shape | None = None
    settled: bool = False
    """True if the job has reached its plan, and the last advice was to keep the shape."""


class JobStatus(Reply, frozen=True):
    """The whole job at one moment, for progress views and `springtide status`."""

    name: str
    phase: JobPhase
    why: str
    """Reason for the last phase change. For a failed job, the first line is the user's error or the lost role."""
    elapsed_s: float
    blame: Blame = Blame.NONE
    detail: str = ""
    samples: int = 0
    training: TrainingStatus = TrainingStatus()
    data: DataStatus = DataStatus()
    members: tuple[MemberView, ...] = ()
    roles: RoleStatus = RoleStatus()
    checkpoints: CheckpointStatus = CheckpointStatus()
    master: MasterStatus = MasterStatus()
    planning: PlanningStatus = PlanningStatus()
    online: OnlineState | None = None


class SlotMap(msgspec.Struct, frozen=True, kw_only=True):
    """Owner and load of every slot."""

    owners: tuple[int, ...] = ()
    """Rank of the server that owns each slot; empty until all servers listen."""
    bytes: tuple[float, ...] = ()
    requests: tuple[float, ...] = ()
    """Keys that were pulled from or pushed to each slot between two recent reports of its server, smoothed."""
    goals: dict[int, int] = {}
    """Target server of each slot that must move."""
    epoch: int = 0


class ShardMap(msgspec.Struct, frozen=True, kw_only=True):
    """State of every shard of all passes, in order, as one letter each: p pending, l leased, d done, x given up. If
    there are too many shards, one letter stands for several shards: the state of the shard that is furthest from done.
    """

    states: str = ""
    total: int = 0


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    """Backlog of one partition of a stream."""

    partition: int
    backlog: int
    lag_s: float
    owner: int | None = None
    """Rank of the worker that reads the partition."""


class JobMap(Reply, frozen=True, kw_only=True):
    """The owner of every slot, shard and partition of a job, for people. The status is too frequent for so much
    detail.
    """

    slots: SlotMap = SlotMap()
    shards: ShardMap = ShardMap()
    partitions: tuple[PartitionLag, ...] = ()
    memory: tuple[str, ...] = ()
    """Forecast of each server's memory, in words."""
    short_of_memory: bool = False
    """True if a forecast says that a server will run out of memory."""


class RestoreOrder(RpcMessage, frozen=True):
    """Slots to restore from a checkpoint before serving (`server.recovery.restore`)."""

    where: str
    """Folder or URL of the checkpoint."""
    number: int
    slots: tuple[int, ...]
    lineage: Lineage
    """Runs whose checkpoints the server accepts. Checkpoints of other runs are rejected."""
    fallback: str = ""
    """Folder or URL to try if the first one has no complete checkpoint. Older checkpoints at both places are tried
    too."""


class SlotParcel(RpcMessage, frozen=True):
    """Slots that a server must hand over to another server."""

    server: int
    address: str
    slots: tuple[int, ...]


class SlotGoal(RpcMessage, frozen=True):
    """Placement that a server should know, and the slots that it should hand over."""

    placement: Placement
    addresses: tuple[str, ...]
    """Server addresses by rank; empty for a server that has left or is down."""
    parcels: tuple[SlotParcel, ...] = ()
    call: int = 0
    """Number of a roll call. The server answers the call after it has stopped handing slots over."""
    settled: bool = True
    """True if no roll call is open. The placement is then right, except for slots that are moving."""
    hurry: bool = False
    """True if the job waits for these slots. The server then gives the handover priority over requests."""
    leave: bool = False
    """True if the server must leave. After this order, the server accepts no more slots, and reports this."""


class SlotHoldings(RpcMessage, frozen=True):
    """A server's answer to a roll call, in addition to the slots that it owns."""

    call: int
    doubts: dict[int, int] = {}
    """Slots that the server closed for a transfer, each with its receiver. The receiver has not confirmed the
    transfer.
    """
    closed: bool = False
    """True if the server accepts no more slots, so that it will never have more slots than now."""


class SlotsMoved(Request, frozen=True):
    """A server has handed slots to another server, which has acknowledged its ownership."""

    slots: tuple[int, ...]
    server: int
    bytes: int = 0
    seconds: float = 0.0
    longest_freeze_s: float = 0.0
    """Longest time in seconds for which one of these slots had no owner."""


class ServerAddresses(RpcMessage, frozen=True):
    """Addresses and incarnations of the servers. Clients that know earlier incarnations reconnect to these
    addresses."""

    addresses: tuple[str, ...]
    """Server addresses by rank; an address is empty while its server is lost."""
    lives: tuple[int, ...]
