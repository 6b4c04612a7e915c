"""Every message of the control plane, made of `rpc.messages.types`; more are in its neighbours.

A member sends a `Request` and gets one `Reply` with the same number; msgspec checks types on both sides, so nothing
malformed gets past `rpc.transport.frames`. Before the first request both sides prove that they know the secret
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
"""Raised when a message changes meaning; both sides must have the same."""


# ---- requests ----


class JoinServer(RpcMessage, frozen=True):
    """A server process is up. Answered with `ServerWelcome`, so that it can build its tables."""

    rank: int
    pid: int
    incarnation: int = 0
    welcomed: bool = False
    """It was told its slots already, by this master or the one before."""
    birth: int = 0
    """Drawn when its process began: a container that is started again in its place has the same process id."""


class ServerReady(RpcMessage, frozen=True):
    """The server listens for data-plane connections at `address` (host:port). Answered once all servers do."""

    address: str
    restored: int = 0
    """A next life: number of the checkpoint that its slots come from."""
    source: str = ""
    """Where that checkpoint lies."""
    error: str = ""
    """Its slots could not be brought back: why. Then it has no address, and leaves."""
    spared: tuple[str, ...] = ()
    """What it has read from a mirror, and why, each in a sentence."""
    unusable: tuple[str, ...] = ()
    """Checkpoints that it was to bring back and could not, and why, each in a sentence."""


class JoinWorker(RpcMessage, frozen=True):
    """A worker's script has called `st.join()`. Answered with `Welcome` once all servers are there.

    Said again on every new connection, to a new master too: the same incarnation is the same member.
    """

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """As in `JoinServer`."""


class JoinAgent(RpcMessage, frozen=True):
    """The agent that starts and watches the roles of a host."""

    pid: int


class Heartbeat(RpcMessage, frozen=True):
    """I am alive, and this is how far I am."""

    report: MemberReport | None = None
    progress: tuple[Progress, ...] = ()
    """A word on each lease that it holds, which renews it, or has just ended."""
    failures: tuple[ReadFailure, ...] = ()
    """Samples that it could not read."""
    era: int = 0
    """Of the leases it speaks of: how often the book had gone back when they were granted."""
    epoch: int = 0
    """Of the placement that the member goes by."""
    slots: bytes = b""
    """Of a server: the slots it owns, with the load of each (`server.slot_loads`)."""
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Of a worker: states of the user's own objects, by name, if they were taken since the last one."""
    place: EpochPlace | None = None
    """Of a worker: the place in its script where these states were taken; None: its script has no epochs."""
    holding: SlotHoldings | None = None
    """Of a server that knows its slots."""
    feeders: int = 0
    """Of a worker: the epoch of the `Feeders` that it knows; 0: of none."""
    shuffle: str = ""
    """Of a worker that trains from a stream: where it takes batches from others; empty: nowhere."""
    shufflers: int = 0
    """Of the same: digest of the `Shufflers` that it knows; 0: of none."""
    usage: RoleUsage | None = None
    """What it takes, where it was told to measure that itself."""


class LeaseRequest(RpcMessage, frozen=True):
    """Give me leases of this data set."""

    card: DatasetCard
    progress: tuple[Progress, ...] = ()
    """A word on every lease that it holds: those it does not name are granted again, their answer was lost."""
    failures: tuple[ReadFailure, ...] = ()
    most: int = 1
    """How many leases it would take at once."""
    ends: int | None = None
    """The data set has no length, and this is where its reader has found the end: samples of an epoch."""
    era: int = 0
    """As in `Heartbeat`."""
    seen: tuple[PartitionRange, ...] = ()
    """All partitions of a stream, as its reader sees them now."""


class EpochBegun(RpcMessage, frozen=True):
    """A worker's script begins an epoch, or a loop over `batches`: its next life begins there, with these states."""

    place: EpochPlace
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """As in `Heartbeat`."""


class PlaceRequest(RpcMessage, frozen=True):
    """Which place is this rank's script to begin with? Asked before it joins; answered with `PlaceFound`."""

    rank: int


class FinishRequest(RpcMessage, frozen=True):
    """The worker's script has ended well."""

    progress: tuple[Progress, ...] = ()
    report: MemberReport | None = None
    era: int = 0
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """As in `Heartbeat`."""
    place: EpochPlace | None = None
    """As in `Heartbeat`."""


class ScriptError(RpcMessage, frozen=True):
    """A worker's script has raised, perhaps before it joined. `error` is its first line, `trace` the rest."""

    rank: int
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    """Infrastructure when it raised because a server or the master could not be reached."""
    incarnation: int = 0


class RoleExitReport(RpcMessage, frozen=True):
    """Agent: a process that it had started has ended."""

    exit: RoleExit


class AgentPoll(RpcMessage, frozen=True):
    """Agent, a few times a second: which roles must exist, and how is the job? Answered with `Outlook`."""

    usage: tuple[RoleUsage, ...] = ()


class ScaleRequest(RpcMessage, frozen=True):
    """Run the job with so many workers and servers from now on; None leaves them. The highest ranks drain."""

    workers: int | None = None
    servers: int | None = None
    why: str = "asked by the user"
    data_workers: int | None = None


class StatusRequest(RpcMessage, frozen=True):
    """How is the job?"""


class StopRequest(RpcMessage, frozen=True):
    """Drain the job: workers finish the batch in hand and stop."""

    why: str


class ShutdownRequest(RpcMessage, frozen=True):
    """Agent: everything is over, the master may go."""


# ---- replies ----


class Ok(RpcMessage, frozen=True):
    """Done."""


class HeartbeatReply(RpcMessage, frozen=True):
    """Answer to a heartbeat."""

    drain: bool = False
    """Finish the batch in hand, then stop."""
    stop: bool = False
    """The job is over: a server may go."""
    tidy: bool = False
    """And the last checkpoint is elsewhere: what is on the server's own disk can go too."""
    fenced: bool = False
    """The master has given up this incarnation and its leases are with others: leave, nothing you say counts."""
    revoked: tuple[LeaseKey, ...] = ()
    """Leases that are not the worker's any more: drop them."""
    hurry: bool = False
    """What another has left unfinished waits to be trained: ask for a lease now, whatever is in hand. To a server: the
    checkpoint it may be writing is waited for."""
    group_lost: int = 0
    """The generation of a bsp group that has lost a member: 0 when it has not."""
    truncate: tuple[ShrinkRequest, ...] = ()
    """Leases that should end early, so that others can take their tails."""
    era: int = 0
    """How often the book has gone back because a server was lost; leases of an earlier era are over."""
    servers: ServerAddresses | None = None
    """Where servers are, once one has been lost. To be heeded before a new era is."""
    healing: bool = False
    """A server is away: ask again at once, the answer is held until there is news."""
    save: int = 0
    """A checkpoint of the bsp group is due: its number."""
    goal: SlotGoal | None = None
    """To a server: whose slots are whose, and which to hand over. To a worker: where slots are, when it lags."""
    feeders: Feeders | None = None
    """Who feeds, where that is news."""
    shufflers: Shufflers | None = None
    """Where workers take batches of a stream from each other, where that is news."""


class ServerWelcome(RpcMessage, frozen=True):
    """What a server needs to build its tables."""

    job: str
    slots: int
    seed: int
    workers: int
    sync: SyncMode
    heartbeat_s: float
    restore: RestoreOrder | None = None
    placement: Placement | None = None
    """A next life is told at once."""
    checkpoints: str = ""
    """Folder for its part of checkpoints; empty: none are kept."""
    run: str = ""
    """Identity of the run, which is in the names of its files."""
    claim: str = ""
    """The run's claim in that folder: a server that does not find it has a disk of its own. Empty: none could be
    written."""
    mirror: bool = False
    """Its files lie in a folder of its own in there, and another server has a copy of each."""
    generation: int = 0
    """Frames of a bsp group before this one are refused."""


class PlacementReply(RpcMessage, frozen=True):
    """Which slots are whose: a server may start serving."""

    placement: Placement


class WorkerWelcome(RpcMessage, frozen=True):
    """What a worker needs to start training."""

    job: str
    rank: int
    workers: int
    """How many the job began with: what a batch is shared by. Scaling does not change it, so a batch stays the same."""
    servers: tuple[str, ...]
    """Data-plane addresses, in the order of the placement's server numbers."""
    placement: Placement
    slots: int
    seed: int
    sync: SyncMode
    heartbeat_s: float
    incarnation: int = 0
    lives: tuple[int, ...] = ()
    """Incarnations of the servers."""
    generation: int = 0
    """Of the bsp group as it is now."""
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's own objects, as this rank told them last; else as another rank did: `Record.objects_for`."""
    place: EpochPlace | None = None
    """The place in the script where these states were taken; None: the script begins at its first epoch."""
    lived: bool = False
    """Whether the place is of an earlier life of this rank, rather than of another rank."""
    cache: CacheRules = CacheRules()
    """What the workers of a bsp group keep of the rows they train."""
    checkpoint_s: float | None = None
    """Seconds between checkpoints; None: there are none."""
    feeding: FeedRules = FeedRules(workers=0)
    """Whether data workers may come to feed it."""
    package: str = ""
    """Folder for what they need to do so."""
    secret: bytes = b""
    """The job's secret, for the data plane. Never sent: the link fills it in from the worker's own file."""
    certificates: str = ""
    """Folder of this worker's own, where the job has TLS. Never sent either."""
    host: str = ""
    """Where the worker itself listens for others. Never sent either."""


class PlaceReply(RpcMessage, frozen=True):
    """Answer to `PlaceRequest`; None: the first epoch."""

    place: EpochPlace | None = None


class LeaseReply(RpcMessage, frozen=True):
    """Parts of shards to train: `data.shards.indices(card, epoch=epoch, index=nth, first=first, end=end)` of each.

    In bsp every rank leases the same shards in the same order and trains its part of each batch (`shards.rank_part`).
    """

    grants: tuple[Grant, ...]
    era: int = 0
    servers: ServerAddresses | None = None
    """As in `Pulse`."""
    cuts: tuple[BatchCut, ...] = ()
    """Of a stream: where batches of these leases end that are not full, as far as is known."""


class WaitReply(RpcMessage, frozen=True):
    """Nothing to hand out now, but others hold shards: ask again. The master has held the call for a while."""


class DataEnd(RpcMessage, frozen=True):
    """Nothing of this pass is left to hand out: all shards are done, or held by the asker itself; or the job drains."""

    stop: bool = False
    """The job drains, and the pass is cut short: the asker's script is to end."""


class AgentOrders(RpcMessage, frozen=True):
    """What must exist, and how the job is. The agent compares and acts: start, end, report; twice is harmless."""

    status: JobStatus
    wanted: tuple[WantedRole, ...] = ()
    term: int = 0


class RequestRefused(RpcMessage, frozen=True):
    """The request cannot be served. `kind` names a class of `springtide.errors`."""

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
    """A numbered request."""

    id: int
    body: Request


class ReplyFrame(msgspec.Struct, frozen=True, array_like=True):
    """The reply to the request of that number."""

    id: int
    body: Reply
