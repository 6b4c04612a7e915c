"""Messages between the master and its members: joins, heartbeats, leases, handshakes. The other modules of this folder
define the messages for further subjects.

A member sends a `Request` and gets one `Reply` with the same number. msgspec checks types on both sides. Before the
first request, both sides prove that they know the secret (`rpc.transport.auth`).
"""

import functools
import operator
from typing import TYPE_CHECKING

import msgspec

from springtide.domain.core.roles import Placement, Role, RoleExit, RoleUsage, WantedRole
from springtide.domain.data.leases import Grant, LeaseKey, Progress, ReadFailure, ShrinkRequest
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.data.streams import BatchCut, PartitionRange
from springtide.domain.spec.job_spec import Blame, JobSpec
from springtide.rpc.messages import checkpoints  # noqa: F401 - its messages become part of AnyRequest and AnyReply
from springtide.rpc.messages.coordination import Shufflers
from springtide.rpc.messages.data_workers import Feeders, JoinDataWorker
from springtide.rpc.messages.types import (
    JobStatus,
    MemberReport,
    Reply,
    Request,
    RestoreOrder,
    RpcMessage,
    ServerAddresses,
    SlotGoal,
    SlotHoldings,
)

VERSION = 12
"""Protocol version. Increase this version when a message changes its meaning. Both sides of a connection must have the
same version.
"""


# ---- requests ----


class JoinServer(Request, frozen=True):
    """A server process has started. The answer is `ServerWelcome`, with which the server can build its tables."""

    rank: int
    pid: int
    incarnation: int = 0
    welcomed: bool = False
    """True if this master or an earlier one has told the server which slots the server owns."""
    birth: int = 0
    """Random number that the process drew at its start. A restarted container may have the same process id."""


class ServerReady(Request, frozen=True):
    """The server listens for data-plane connections at `address` (host:port). The master answers when all servers are
    ready."""

    address: str
    restored: int = 0
    source: str = ""
    """Folder or URL of the checkpoint from which the server restored its slots."""
    error: str = ""
    """Reason why the server could not restore its slots. A server that could not restore its slots has no address, and
    exits.
    """
    spared: tuple[str, ...] = ()
    """Files that the server read from a mirror, each with the reason, one sentence each."""
    unusable: tuple[str, ...] = ()
    """Checkpoints that the server could not restore, each with the reason, one sentence each."""


class JoinWorker(Request, frozen=True):
    """A worker's script has called `st.join()`. The master answers with `WorkerWelcome` when all servers are ready.

    The worker repeats this request on every new connection, and to every new master. If the incarnation is the same,
    the repeated request is from the same member.
    """

    rank: int
    pid: int
    incarnation: int = 0
    birth: int = 0
    """Random number that the process drew at its start, as in `JoinServer`."""


class JoinAgent(Request, frozen=True):
    """The agent that starts and watches the roles of a host has connected."""

    pid: int


class Heartbeat(Request, frozen=True):
    """A member is alive, and reports its progress."""

    report: MemberReport | None = None
    progress: tuple[Progress, ...] = ()
    """Progress of each lease that the worker holds or has just finished. A report about a lease renews the lease."""
    failures: tuple[ReadFailure, ...] = ()
    era: int = 0
    """Era of the leases in this message: how often the ledger had rolled back when they were granted."""
    epoch: int = 0
    slots: bytes = b""
    """From a server: the slots that this server owns, each with its load (`server.slot_loads`)."""
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """From a worker: states of the user's registered objects, by name, if they were saved since the last heartbeat."""
    place: EpochPlace | None = None
    """From a worker: the place in its script where the states were saved; None for a script without epochs."""
    holding: SlotHoldings | None = None
    """From a server that knows its slots: the answer to a roll call."""
    feeders: int = 0
    """From a worker: epoch of its newest `Feeders`; 0 if the worker has none."""
    shuffle: str = ""
    """From a worker that trains from a stream: its address for batches from other workers; empty if the worker accepts
    none.
    """
    shufflers: int = 0
    """From a worker that trains from a stream: digest of its newest `Shufflers`; 0 if the worker has none."""
    usage: RoleUsage | None = None
    """Resource use, from a member that measures its own use."""


class LeaseRequest(Request, frozen=True):
    """A worker asks for leases of this data set."""

    card: DatasetCard
    progress: tuple[Progress, ...] = ()
    """Progress of every lease that the worker holds. If a lease is missing here, the master grants it again."""
    failures: tuple[ReadFailure, ...] = ()
    most: int = 1
    """Most leases that the worker accepts at once."""
    ends: int | None = None
    """Number of samples in an epoch, if the data set has no length and the reader has found its end."""
    era: int = 0
    seen: tuple[PartitionRange, ...] = ()
    """All partitions of a stream, as the reader sees them now."""
    short: int = 0
    """Samples among `ends` that do not exist, because the last mini-batches are not full."""


class EpochBegun(Request, frozen=True):
    """A worker's script begins an epoch or a loop over `batches`. A relaunched worker restarts there."""

    place: EpochPlace
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's registered objects, as in `Heartbeat`."""


class PlaceRequest(Request, frozen=True):
    """Asks at which place this rank's script should begin, before the worker joins. The answer is `PlaceReply`."""

    rank: int


class FinishRequest(Request, frozen=True):
    """The worker's script ended without an error."""

    progress: tuple[Progress, ...] = ()
    report: MemberReport | None = None
    era: int = 0
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's registered objects, as in `Heartbeat`."""
    place: EpochPlace | None = None
    """Place in the script where the states were saved, as in `Heartbeat`."""


class ScriptError(Request, frozen=True):
    """A worker's script raised, possibly before it joined. `error` is the first line of the error, and `trace` has the
    rest."""

    rank: int
    error: str
    trace: str = ""
    blame: Blame = Blame.USER
    """Which party is to blame: `INFRASTRUCTURE` if the script raised because it could not reach a server or the
    master."""
    incarnation: int = 0


class RoleExitReport(Request, frozen=True):
    """The agent reports that a process it started has exited."""

    exit: RoleExit


class AgentPoll(Request, frozen=True):
    """The agent asks which roles must exist, and for the job's status. The answer is `AgentOrders`."""

    usage: tuple[RoleUsage, ...] = ()


class ScaleRequest(Request, frozen=True):
    """Set the number of workers, servers and data workers. None leaves a number unchanged. If a number becomes
    smaller, the highest ranks drain.
    """

    workers: int | None = None
    servers: int | None = None
    why: str = "asked by the user"
    data_workers: int | None = None


class StatusRequest(Request, frozen=True):
    """Asks for the job's status."""


class MapRequest(Request, frozen=True):
    """Asks where every slot, shard and partition is. The answer is `JobMap`."""


class CheckpointRequest(Request, frozen=True):
    """Begin the next checkpoint now. The answer is `Ok`."""


class StopRequest(Request, frozen=True):
    """Drain the job: workers finish their current batch and stop."""

    why: str


class ShutdownRequest(Request, frozen=True):
    """The agent tells the master to exit, because the job is over."""


# ---- replies ----


class Ok(Reply, frozen=True):
    """The request succeeded."""


class HeartbeatReply(Reply, frozen=True):
    """The reply to a heartbeat."""

    drain: bool = False
    """True if the member should finish its current batch and then stop."""
    stop: bool = False
    """True if the job is over, so that a server may exit."""
    tidy: bool = False
    """True if the final checkpoint is stored elsewhere, so that the server may delete the files on its own disk."""
    fenced: bool = False
    """True if the master has fenced this incarnation and granted its leases to other workers. The process must exit;
    its further messages are ignored.
    """
    revoked: tuple[LeaseKey, ...] = ()
    """Leases that the worker no longer holds and must drop."""
    hurry: bool = False
    """For a worker: the worker should request a lease now. For a server: the job waits for its part of a checkpoint."""
    group_lost: int = 0
    truncate: tuple[ShrinkRequest, ...] = ()
    """Leases that should end early, so that other workers can train the rest."""
    era: int = 0
    """Number of times that the ledger was rolled back after the loss of a server. Leases of an earlier era are over."""
    servers: ServerAddresses | None = None
    """Server addresses, if a server was lost. The worker must use these addresses before it enters a new era."""
    healing: bool = False
    """True while a server is lost. The member must then send the next heartbeat immediately. The master holds the reply
    until the server is back, or until a timeout."""
    save: int = 0
    """Number of the checkpoint that the bsp group should make next."""
    goal: SlotGoal | None = None
    """For a server: the placement, and slots to hand over. For a worker with an old placement: the new placement."""
    feeders: Feeders | None = None
    """New list of data workers, if it has changed."""
    shufflers: Shufflers | None = None
    """New list of workers that accept batches of a stream, if it has changed."""


class ServerWelcome(Reply, frozen=True):
    """Everything that a server needs to build its tables."""

    spec: JobSpec
    restore: RestoreOrder | None = None
    placement: Placement | None = None
    checkpoints: str = ""
    """Folder for the server's part of checkpoints; empty if the job makes no checkpoints."""
    run: str = ""
    """Identity of the run, which is part of the run's file names."""
    claim: str = ""
    """File name of the run's claim in that folder; empty if unknown. A server that does not find this file there cannot
    see the job's folder, so the server uses its own disk.
    """
    generation: int = 0
    """Generation of the bsp group. Servers reject frames of earlier generations."""


class PlacementReply(Reply, frozen=True):
    """The owner of every slot. With this reply, the server may start to serve."""

    placement: Placement


class WorkerWelcome(Reply, frozen=True):
    """Everything that a worker needs to start training."""

    spec: JobSpec
    """The job's spec at its start. `spec.workers`, which determines how a batch is shared, does not change when the job
    scales."""
    rank: int
    servers: tuple[str, ...]
    """Data-plane addresses of the servers, in the order of the server numbers in the placement."""
    placement: Placement
    incarnation: int = 0
    lives: tuple[int, ...] = ()
    """Incarnations of the servers, by rank."""
    generation: int = 0
    objects: dict[str, bytes] = msgspec.field(default_factory=dict)
    """States of the user's registered objects, from this rank's last report or from another rank's report."""
    place: EpochPlace | None = None
    """Place in the script where the states were saved; None if the script begins at its first epoch."""
    lived: bool = False
    """True if an earlier incarnation of this rank saved the place, False if another rank saved it."""
    package: str = ""
    secret: bytes = b""
    """The job's secret, for the data plane. The master never sends it: the worker's link reads it from a file.
    """
    certificates: str = ""
    """Folder with this worker's certificates, in a job with TLS. The worker's link sets this field; the master never
    sends it.
    """
    host: str = ""
    """Address at which the worker itself listens. The worker's link sets this field; the master never sends it."""


class PlaceReply(Reply, frozen=True):
    """The reply to `PlaceRequest`; None means the first epoch."""

    place: EpochPlace | None = None


class LeaseReply(Reply, frozen=True):
    """Parts of shards to train: `data.shards.indices(card, epoch=epoch, index=nth, first=first, end=end)` for each
    grant.

    In bsp, every rank leases the same shards in the same order, and trains one part of each batch (`shards.rank_part`).
    """

    grants: tuple[Grant, ...]
    era: int = 0
    servers: ServerAddresses | None = None
    cuts: tuple[BatchCut, ...] = ()
    """For a stream: the known ends, within these leases, of batches that are not full."""


class WaitReply(Reply, frozen=True):
    """No lease is available at the moment. The worker may ask again immediately, because the master has already held
    the request for some time.
    """


class DataEnd(Reply, frozen=True):
    """No lease is left in this pass: all shards are done or held by the worker that asks, or the job drains."""

    stop: bool = False
    """True if the job drains and cuts the pass short, so that the worker's script should end."""


class AgentOrders(Reply, frozen=True):
    """Roles that must exist, and the job's status. The agent starts, ends and reports roles. Repeating this message
    does no harm."""

    status: JobStatus
    wanted: tuple[WantedRole, ...] = ()
    term: int = 0


class RequestRefused(Reply, frozen=True):
    """The request failed. `kind` names a class of `springtide.errors`."""

    kind: str
    error: str


class BoundsRequest(Request, frozen=True):
    """Sets the bounds within which plans choose the numbers of workers and servers; None leaves a bound unchanged. The
    answer is `Ok`."""

    workers: tuple[int, int] | None = None
    servers: tuple[int, int] | None = None
    why: str = "asked by the user"


class EvictionNotice(Request, frozen=True):
    """The host will end this incarnation of a role. The sender repeats the notice until `EvictionReply` says that the
    process may exit."""

    role: Role
    incarnation: int
    why: str


class EvictionReply(Reply, frozen=True):
    """Says whether the process may exit, because the job no longer needs it."""

    free: bool


class HandshakeChallenge(RpcMessage, frozen=True):
    """The listener's challenge, which is the first message on a connection."""

    version: int
    nonce: bytes


class HandshakeAnswer(RpcMessage, frozen=True):
    """The caller's proof that it knows the secret."""

    version: int
    nonce: bytes
    proof: bytes


class HandshakeAccepted(RpcMessage, frozen=True):
    """The listener's proof that it knows the secret."""

    proof: bytes
    term: int = 0
    """Term of the master that answers. A member that has seen a higher term disconnects."""


Join = JoinServer | JoinWorker | JoinDataWorker
if TYPE_CHECKING:
    AnyRequest = Request
    AnyReply = Reply
else:  # msgspec selects the class by the tag
    AnyRequest = functools.reduce(operator.or_, Request.__subclasses__())
    AnyReply = functools.reduce(operator.or_, Reply.__subclasses__())
Handshake = HandshakeChallenge | HandshakeAnswer | HandshakeAccepted | RequestRefused


class RequestFrame(msgspec.Struct, frozen=True, array_like=True):
    """A request with its number."""

    id: int
    body: AnyRequest


class ReplyFrame(msgspec.Struct, frozen=True, array_like=True):
    """The reply to the request with this number."""

    id: int
    body: AnyReply
