"""All messages of the control plane. They use the types of `rpc.messages.types`, and include those of its neighbours.

A member sends a `Request` and gets one `Reply` with the same number. msgspec checks types on both sides, so
`rpc.transport.frames` rejects malformed messages. Before the first request, both sides prove that they know the secret
(`rpc.transport.auth`).
"""

import msgspec

from springtide.domain.core.roles import Placement, RoleExit, RoleUsage, WantedRole
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.data.leases import Grant, LeaseKey, Progress, ReadFailure, ShrinkRequest
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.domain.model.cache_rules import CacheRules
from springtide.domain.spec.job_spec import Blame, SyncMode
from springtide.rpc.messages import checkpoints
from springtide.rpc.messages.bounds import BoundsRequest as BoundsRequest
from springtide.rpc.messages.bsp import AtStep as AtStep
from springtide.rpc.messages.bsp import Enter as Enter
from springtide.rpc.messages.bsp import GroupReply as GroupReply
from springtide.rpc.messages.bsp import GroupRequest as GroupRequest
from springtide.rpc.messages.bsp import Leave as Leave
from springtide.rpc.messages.bsp import MeetReply as MeetReply
from springtide.rpc.messages.bsp import MeetRequest as MeetRequest
from springtide.rpc.messages.bsp import Regroup as Regroup
from springtide.rpc.messages.checkpoints import CopyOrder as CopyOrder
from springtide.rpc.messages.checkpoints import CopyReport as CopyReport
from springtide.rpc.messages.checkpoints import CopyRequest as CopyRequest
from springtide.rpc.messages.checkpoints import FileHolders as FileHolders
from springtide.rpc.messages.checkpoints import FileHoldersRequest as FileHoldersRequest
from springtide.rpc.messages.checkpoints import FileRun as FileRun
from springtide.rpc.messages.checkpoints import MirrorFiles as MirrorFiles
from springtide.rpc.messages.checkpoints import MirrorPart as MirrorPart
from springtide.rpc.messages.checkpoints import MissingFiles as MissingFiles
from springtide.rpc.messages.checkpoints import ReadFile as ReadFile
from springtide.rpc.messages.checkpoints import SaveOrder as SaveOrder
from springtide.rpc.messages.checkpoints import SaveReport as SaveReport
from springtide.rpc.messages.checkpoints import SaveRequest as SaveRequest
from springtide.rpc.messages.data_workers import CannotFeed as CannotFeed
from springtide.rpc.messages.data_workers import DataWorkerReady as DataWorkerReady
from springtide.rpc.messages.data_workers import DataWorkerWelcome as DataWorkerWelcome
from springtide.rpc.messages.data_workers import Feeders as Feeders
from springtide.rpc.messages.data_workers import JoinDataWorker as JoinDataWorker
from springtide.rpc.messages.data_workers import TrainedWithout as TrainedWithout
from springtide.rpc.messages.data_workers import WorkerDecision as WorkerDecision
from springtide.rpc.messages.evictions import EvictionNotice as EvictionNotice
from springtide.rpc.messages.evictions import EvictionReply as EvictionReply
from springtide.rpc.messages.handshake import HandshakeAccepted as HandshakeAccepted
from springtide.rpc.messages.handshake import HandshakeAnswer as HandshakeAnswer
from springtide.rpc.messages.handshake import HandshakeChallenge as HandshakeChallenge
from springtide.rpc.messages.packages import PackageAsk as PackageAsk
from springtide.rpc.messages.packages import PackagePart as PackagePart
from springtide.rpc.messages.packages import PackageWritten as PackageWritten
from springtide.rpc.messages.shared_values import BarrierRequest as BarrierRequest
from springtide.rpc.messages.shared_values import ClaimDone as ClaimDone
from springtide.rpc.messages.shared_values import ClaimReply as ClaimReply
from springtide.rpc.messages.shared_values import ClaimRequest as ClaimRequest
from springtide.rpc.messages.shared_values import ShareRequest as ShareRequest
from springtide.rpc.messages.shared_values import ValueFound as ValueFound
from springtide.rpc.messages.shared_values import ValueRequest as ValueRequest
from springtide.rpc.messages.shuffling import Shufflers as Shufflers
from springtide.rpc.messages.streams import CutRequest as CutRequest
from springtide.rpc.messages.streams import CutsNoted as CutsNoted
from springtide.rpc.messages.types import JobStatus as JobStatus
from springtide.rpc.messages.types import MemberReport as MemberReport
from springtide.rpc.messages.types import MemberView as MemberView
from springtide.rpc.messages.types import RestoreOrder as RestoreOrder
from springtide.rpc.messages.types import RpcMessage as RpcMessage
from springtide.rpc.messages.types import ServerAddresses as ServerAddresses
from springtide.rpc.messages.types import SlotGoal as SlotGoal
from springtide.rpc.messages.types import SlotHoldings as SlotHoldings
from springtide.rpc.messages.types import SlotParcel as SlotParcel
from springtide.rpc.messages.types import SlotsMoved as SlotsMoved

VERSION = 10
"""Protocol version. Raise it when a message changes meaning. Both sides must have the same version."""


# ---- requests ----


class JoinServer(RpcMessage, frozen=True):
    """A server process has started. Answered with `ServerWelcome`, so that the server can build its tables."""

    rank: int
    pid: int
    incarnation: int = 0
    welcomed: bool = False
    """True if this master or its predecessor has already told the server its slots."""
    birth: int = 0
    """Random number that the process drew at its start. A restarted container may have the same process id."""


class ServerReady(RpcMessage, frozen=True):
    """The server listens for data-plane connections at `address` (host:port). Answered once all servers are ready."""

    address: str
    restored: int = 0
    """Number of the checkpoint from which a relaunched server restored its slots."""
    source: str = ""
    """Folder or URL of that checkpoint."""
    error: str = ""
    """Why the server could not restore its slots. It then has no address, and exits."""
    spared: tuple[str, ...] = ()
    """Files that the server read from a mirror, and why, one sentence each."""
    unusable: tuple[str, ...] = ()
    """Checkpoints that the server could not restore, and why, one sentence each."""


class JoinWorker(RpcMessage, frozen=True):
    """A worker's script has called `st.join()`. Answered with `WorkerWelcome` once all servers are ready.

    The worker sends it again on every new connection, also to a new master. The same incarnation is the same member.
    """

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """Random number that the process drew at its start, as in `JoinServer`."""


class JoinAgent(RpcMessage, frozen=True):
    """The agent that starts and watches the roles of a host has connected."""

    pid: int


class Heartbeat(RpcMessage, frozen=True):
    """A member is alive, and reports its progress."""

    report: MemberReport | None = None
    progress: tuple[Progress, ...] = ()
    """Progress of each lease that the worker holds or has just finished. A report renews the lease."""
    failures: tuple[ReadFailure, ...] = ()
    """Samples that the worker could not read."""
    era: int = 0
    """Era of the leases in this message: the number of ledger rollbacks when they were granted."""
    epoch: int = 0
    """Epoch of the placement that the member uses."""
    slots: bytes = b""
    """From a server: the slots that it owns, with the load of each (`server.slot_loads`)."""
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """From a worker: states of the user's registered objects, by name, if they were taken since the last heartbeat."""
    place: EpochPlace | None = None
    """From a worker: the place in its script where these states were taken; None if the script has no epochs."""
    holding: SlotHoldings | None = None
    """From a server that knows its slots: its answer to a roll call."""
    feeders: int = 0
    """From a worker: epoch of the `Feeders` that it knows; 0 if it knows none."""
    shuffle: str = ""
    """From a worker that trains from a stream: its address for batches from other workers; empty if it accepts none."""
    shufflers: int = 0
    """From a worker that trains from a stream: digest of the `Shufflers` that it knows; 0 if it knows none."""
    usage: RoleUsage | None = None
    """Resource use, from a member that measures its own."""


class LeaseRequest(RpcMessage, frozen=True):
    """A worker asks for leases of this data set."""

    card: DatasetCard
    progress: tuple[Progress, ...] = ()
    """Progress of every lease that the worker holds. Leases missing here are granted again, because their reply was
    lost."""
    failures: tuple[ReadFailure, ...] = ()
    most: int = 1
    """Largest number of leases that the worker accepts at once."""
    ends: int | None = None
    """Samples in an epoch, if the data set has no length and the reader has found its end."""
    era: int = 0
    """Era of the leases, as in `Heartbeat`."""
    seen: tuple[PartitionRange, ...] = ()
    """All partitions of a stream, as the reader sees them now."""


class EpochBegun(RpcMessage, frozen=True):
    """A worker's script begins an epoch, or a loop over `batches`. A relaunched worker restarts there with these
    states.
    """

    place: EpochPlace
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's registered objects, as in `Heartbeat`."""


class PlaceRequest(RpcMessage, frozen=True):
    """Asks at which place this rank's script should begin, before the worker joins. Answered with `PlaceReply`."""

    rank: int


class FinishRequest(RpcMessage, frozen=True):
    """The worker's script ended without an error."""

    progress: tuple[Progress, ...] = ()
    report: MemberReport | None = None
    era: int = 0
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's registered objects, as in `Heartbeat`."""
    place: EpochPlace | None = None
    """Place where these states were taken, as in `Heartbeat`."""


class ScriptError(RpcMessage, frozen=True):
    """A worker's script raised, possibly before it joined. `error` is the first line, `trace` the rest."""

    rank: int
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    """Infrastructure if the script raised because it could not reach a server or the master."""
    incarnation: int = 0


class RoleExitReport(RpcMessage, frozen=True):
    """The agent reports that a process it started has exited."""

    exit: RoleExit


class AgentPoll(RpcMessage, frozen=True):
    """The agent asks a few times a second which roles must exist, and for the job's status. Answered with
    `AgentOrders`.
    """

    usage: tuple[RoleUsage, ...] = ()


class ScaleRequest(RpcMessage, frozen=True):
    """Set the number of workers, servers and data workers; None leaves a number unchanged. The highest ranks drain."""

    workers: int | None = None
    servers: int | None = None
    why: str = "asked by the user"
    data_workers: int | None = None


class StatusRequest(RpcMessage, frozen=True):
    """Asks for the job's status."""


class StopRequest(RpcMessage, frozen=True):
    """Drain the job: workers finish their current batch and stop."""

    why: str


class ShutdownRequest(RpcMessage, frozen=True):
    """The agent tells the master to exit, because the job is over."""


# ---- replies ----


class Ok(RpcMessage, frozen=True):
    """The request succeeded."""


class HeartbeatReply(RpcMessage, frozen=True):
    """The reply to a heartbeat."""

    drain: bool = False
    """Finish the current batch, then stop."""
    stop: bool = False
    """The job is over, so a server may exit."""
    tidy: bool = False
    """The final checkpoint is safe elsewhere, so the server may also delete the files on its own disk."""
    fenced: bool = False
    """The master has fenced this incarnation and given its leases to others. Exit: no further message counts."""
    revoked: tuple[LeaseKey, ...] = ()
    """Leases that the worker no longer holds and must drop."""
    hurry: bool = False
    """To a worker: unfinished work of a lost worker waits, so ask for a lease now. To a server: the job waits for the
    checkpoint that the server may be writing."""
    group_lost: int = 0
    """Generation of a bsp group that has lost a member; 0 if none is lost."""
    truncate: tuple[ShrinkRequest, ...] = ()
    """Leases that should end early, so that other workers can train the rest."""
    era: int = 0
    """Number of ledger rollbacks after server losses. Leases of an earlier era are over."""
    servers: ServerAddresses | None = None
    """Server addresses, if a server has been lost. Apply them before a new era."""
    healing: bool = False
    """True while a server is down. Send the next heartbeat at once; the master holds its reply until there is news."""
    save: int = 0
    """Number of the checkpoint that is due in the bsp group."""
    goal: SlotGoal | None = None
    """To a server: the owner of every slot, and the slots to hand over. To a worker with an old placement: the new one.
    """
    feeders: Feeders | None = None
    """New roster of data workers, if it changed."""
    shufflers: Shufflers | None = None
    """New list of workers that accept stream batches, if it changed."""


class ServerWelcome(RpcMessage, frozen=True):
    """Everything that a server needs to build its tables."""

    job: str
    slots: int
    seed: int
    workers: int
    sync: SyncMode
    heartbeat_s: float
    restore: RestoreOrder | None = None
    placement: Placement | None = None
    """Placement, for a relaunched server."""
    checkpoints: str = ""
    """Folder for the server's part of checkpoints; empty if the job keeps none."""
    run: str = ""
    """Identity of the run, which is part of its file names."""
    claim: str = ""
    """The run's claim in that folder. A server that does not find the claim has its own disk. Empty if no claim could
    be written."""
    mirror: bool = False
    """True if the server writes to its own subfolder, and another server mirrors each file."""
    generation: int = 0
    """Generation of the bsp group. Frames of earlier generations are rejected."""


class PlacementReply(RpcMessage, frozen=True):
    """The owner of every slot. The server may start serving."""

    placement: Placement


class WorkerWelcome(RpcMessage, frozen=True):
    """Everything that a worker needs to start training."""

    job: str
    rank: int
    workers: int
    """Number of workers at the start of the job, which share a batch. Scaling does not change it, so batches stay the
    same."""
    servers: tuple[str, ...]
    """Data-plane addresses of servers, in the order of the placement's server numbers."""
    placement: Placement
    slots: int
    seed: int
    sync: SyncMode
    heartbeat_s: float
    incarnation: int = 0
    lives: tuple[int, ...] = ()
    """Incarnations of the servers, by rank."""
    generation: int = 0
    """Generation of the present bsp group."""
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's registered objects, from this rank's last report, else from another rank's
    (`JobRecord.objects_for`)."""
    place: EpochPlace | None = None
    """Place in the script where these states were taken; None if the script begins at its first epoch."""
    lived: bool = False
    """True if the place is from an earlier incarnation of this rank, False if it is from another rank."""
    cache: CacheRules = CacheRules()
    """Rules for the row cache of workers in a bsp group."""
    checkpoint_s: float | None = None
    """Seconds between checkpoints; None if the job makes none."""
    feeding: FeedRules = FeedRules(workers=0)
    """Rules for data workers that may feed this worker."""
    package: str = ""
    """Folder for the data workers' package."""
    secret: bytes = b""
    """The job's secret, for the data plane. Never sent: the link fills it in from the worker's own file."""
    certificates: str = ""
    """Folder with this worker's certificates, in a job with TLS. Never sent: the link fills it in."""
    host: str = ""
    """Address at which the worker itself listens. Never sent: the link fills it in."""


class PlaceReply(RpcMessage, frozen=True):
    """The reply to `PlaceRequest`; None means the first epoch."""

    place: EpochPlace | None = None


class LeaseReply(RpcMessage, frozen=True):
    """Parts of shards to train: `data.shards.indices(card, epoch=epoch, index=nth, first=first, end=end)` for each
    grant.

    In bsp, every rank leases the same shards in the same order, and trains its part of each batch (`shards.rank_part`).
    """

    grants: tuple[Grant, ...]
    era: int = 0
    servers: ServerAddresses | None = None
    """Server addresses, as in `HeartbeatReply`."""
    cuts: tuple[BatchCut, ...] = ()
    """For a stream: known ends of batches that are not full, in these leases."""


class WaitReply(RpcMessage, frozen=True):
    """No lease is available now, but other workers hold shards. Ask again: the master has already held this request a
    while.
    """


class DataEnd(RpcMessage, frozen=True):
    """No lease is left in this pass: all shards are done or held by the asking worker, or the job drains."""

    stop: bool = False
    """True if the job drains and cuts the pass short. The worker's script should end."""


class AgentOrders(RpcMessage, frozen=True):
    """Roles that must exist, and the job's status. The agent starts, ends and reports roles; repeating is harmless."""

    status: JobStatus
    wanted: tuple[WantedRole, ...] = ()
    term: int = 0


class RequestRefused(RpcMessage, frozen=True):
    """The request failed. `kind` names a class of `springtide.errors`."""

    kind: str
    error: str


Join = JoinServer | JoinWorker | JoinDataWorker
Request = (
    JoinServer
    | ServerReady
    | JoinWorker
    | JoinDataWorker
    | DataWorkerReady
    | PackageWritten
    | PackagePart
    | PackageAsk
    | CannotFeed
    | WorkerDecision
    | TrainedWithout
    | JoinAgent
    | Heartbeat
    | LeaseRequest
    | CutRequest
    | BarrierRequest
    | ShareRequest
    | ValueRequest
    | ClaimRequest
    | ClaimDone
    | GroupRequest
    | MeetRequest
    | AtStep
    | Enter
    | Leave
    | EpochBegun
    | PlaceRequest
    | FinishRequest
    | ScriptError
    | RoleExitReport
    | AgentPoll
    | EvictionNotice
    | BoundsRequest
    | ScaleRequest
    | checkpoints.Requests
    | SlotsMoved
    | StatusRequest
    | StopRequest
    | ShutdownRequest
)
Reply = (
    Ok
    | HeartbeatReply
    | ServerWelcome
    | DataWorkerWelcome
    | PlacementReply
    | WorkerWelcome
    | PlaceReply
    | LeaseReply
    | CutsNoted
    | GroupReply
    | MeetReply
    | Regroup
    | WaitReply
    | DataEnd
    | ValueFound
    | ClaimReply
    | checkpoints.Replies
    | PackagePart
    | AgentOrders
    | JobStatus
    | EvictionReply
    | RequestRefused
)
Handshake = HandshakeChallenge | HandshakeAnswer | HandshakeAccepted | RequestRefused


class RequestFrame(msgspec.Struct, frozen=True, array_like=True):
    """A request with its number."""

    id: int
    body: Request


class ReplyFrame(msgspec.Struct, frozen=True, array_like=True):
    """The reply to the request with this number."""

    id: int
    body: Reply
