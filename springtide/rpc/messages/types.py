"""What messages are made of: their base, and nouns that travel inside others.

In: `domain`. Out: how members report, how a job is shown, what a server is to bring back. Next:
`rpc.messages.messages`.
"""

import msgspec

from springtide.domain.core.roles import Placement, Role, RoleUsage
from springtide.domain.core.shape import Shape
from springtide.domain.data.data_workers import FeedState, LeftOut
from springtide.domain.data.leases import Poisoned
from springtide.domain.data.streams import StreamUse
from springtide.domain.model.cache_rules import CacheUse
from springtide.domain.model.checkpoints import Lineage
from springtide.domain.spec.job_spec import Blame, JobPhase
from springtide.domain.spec.online_job import OnlineState


class RpcMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all messages; the class name travels as the tag."""


class MemberReport(RpcMessage, frozen=True):
    """What a member has done so far. Totals since it joined, so that a lost or repeated report does no harm."""

    step: int = 0
    samples: int = 0
    loss: float | None = None
    """Mean over the samples since the report before."""
    metrics: dict[str, float] = {}
    """Anything the user reports by name, such as auc; the job shows their mean weighted by samples."""
    seconds: dict[str, float] = {}
    """Totals of the parts of a step: gradient, update, synchronization, lookup (Eqns 1-6), and waits."""
    counters: dict[str, float] = {}
    """A server's own: rows, bytes, requests."""
    cache: CacheUse | None = None
    """Of a worker in a bsp group that could keep rows."""
    feed: FeedState | None = None
    """Of a worker that data workers could feed."""
    stream: StreamUse | None = None
    """Of a worker that trains from a stream."""


class MemberView(RpcMessage, frozen=True):
    """One role as the job's status shows it."""

    role: Role
    alive: bool
    joined: bool
    report: MemberReport = MemberReport()
    incarnation: int = 0
    state: str = ""
    """`job.core.nodes.NodeState`, for people."""
    usage: RoleUsage | None = None
    """As the agent measured it last."""
    low: bool = False
    """A worker of low priority, beyond the quota."""


class JobStatus(RpcMessage, frozen=True):
    """The whole job at one moment: what progress views and `status` show."""

    name: str
    phase: JobPhase
    why: str
    """Reason of the last change of phase; for a failed job the first line is the user's error or the lost role."""
    elapsed_s: float
    blame: Blame = Blame.NONE
    detail: str = ""
    """More on a failure: the user's traceback."""
    trained_s: float = 0.0
    """Seconds from the first shard handed out to the last sample: without start, preparation of data, evaluation."""
    samples: int = 0
    samples_before: int = 0
    """Of them, those that were trained by the run that this one goes on from."""
    samples_per_s: float = 0.0
    """Over the last few seconds."""
    loss: float | None = None
    metrics: dict[str, float] = {}
    shards_done: int = 0
    shards_leased: int = 0
    shards_total: int = 0
    epochs: int = 0
    members: tuple[MemberView, ...] = ()
    workers_alive: int = 0
    workers_wanted: int = 0
    servers_alive: int = 0
    servers_wanted: int = 0
    data_workers_alive: int = 0
    data_workers_wanted: int = 0
    data_workers_why: str = ""
    """Why there are so many, or none: the last word on them."""
    feed: FeedState | None = None
    """Of all workers together: how full their queues are, and how long they have waited; None: nobody could be fed."""
    decision: str = ""
    """The last thing the master decided: relaunch, fence, scale."""
    decision_why: str = ""
    lacks: str = ""
    """What it does without for now, because no host had room for it, and when it asks again; empty: nothing."""
    relaunches: int = 0
    """Processes started again so far."""
    poisoned: tuple[Poisoned, ...] = ()
    """Shards that no worker could train."""
    left_out: tuple[LeftOut, ...] = ()
    """The first of the batches that were trained without samples that cannot be made, as `--poison skip` asks for."""
    samples_left_out: int = 0
    """How many such samples there are in all."""
    loop_lag_s: float = 0.0
    """The longest that the master has let anyone wait in the last ten seconds before it looked at what came."""
    slots_moving: int = 0
    """Slots on their way to another server."""
    term: int = 0
    """Which master this is: 1 for the first, one more after each restart."""
    checkpoint: int = 0
    """The last complete one; 0: none."""
    checkpoint_at: float = 0.0
    """Time of day at which that began."""
    checkpoint_trouble: str = ""
    """What became of the last one, if it was not completed."""
    disk_trouble: str = ""
    """Why the master can write nothing for now: it makes no decisions and gives no leases until it can."""
    uploaded: int = 0
    """The last one that is at the checkpoint URL too; 0: none."""
    saving_last: bool = False
    """All workers have ended, and the last checkpoint is being written."""
    staleness: int | None = None
    """Most pushes that a server has applied between reading the rows of a push and applying that push; async only."""
    staleness_p50: int | None = None
    """The median of that over all pushes, on the server where it is largest."""
    cache: CacheUse | None = None
    """Of all workers of a bsp group."""
    stage: str = ""
    """`domain.spec.planning_config.PlanningStage`, of a job that plans for itself; empty: nobody plans."""
    shape: Shape | None = None
    """What all of such a job has now; None while it changes."""
    target: Shape | None = None
    """The plan that is being carried out."""
    extra_workers: int = 0
    """Of the workers, those of low priority beyond the quota; the shape does not count them."""
    settled: bool = False
    """It has reached its plan, and the last word on it was to leave it as it is."""
    online: OnlineState | None = None
    """Of a job that reads a stream: how it keeps up."""


class RestoreOrder(RpcMessage, frozen=True):
    """Slots to bring back from a checkpoint before anything is served: `server.restore.restore`."""

    where: str
    """Folder or URL."""
    number: int
    slots: tuple[int, ...]
    lineage: Lineage
    """Checkpoints of other runs are refused."""
    fallback: str = ""
    """Folder or URL to look at when that one is not whole; older ones at both places are tried too."""


class SlotParcel(RpcMessage, frozen=True):
    """Slots that a server is to hand to another."""

    server: int
    address: str
    slots: tuple[int, ...]


class SlotGoal(RpcMessage, frozen=True):
    """What a server should know of the others' slots, and do about its own."""

    placement: Placement
    addresses: tuple[str, ...]
    """By rank; empty for one that has left or is away."""
    parcels: tuple[SlotParcel, ...] = ()
    call: int = 0
    """To be answered with a heartbeat, when nothing is being handed over any more (`job.recovery.rollcall`)."""
    settled: bool = True
    """Whether all have answered, or nobody was asked: the placement is right then, except for slots under way."""
    hurry: bool = False
    """All wait for them: handing them over comes before serving."""
    leave: bool = False
    """It is to go: it takes no more slots, and says so."""


class SlotHoldings(RpcMessage, frozen=True):
    """A server's answer to a roll call, beside the slots that it owns."""

    call: int
    doubts: dict[int, int] = {}
    """Slots that it has closed for another server whose answer never came, and which server that is."""
    closed: bool = False
    """It takes no more: the slots that it names are all that it will ever have."""


class SlotsMoved(RpcMessage, frozen=True):
    """A server has handed slots to another, which has acknowledged that they are its own."""

    slots: tuple[int, ...]
    server: int
    bytes: int = 0
    seconds: float = 0.0
    longest_freeze_s: float = 0.0
    """The longest that any of them had no owner."""


class ServerAddresses(RpcMessage, frozen=True):
    """Where the servers are. Whoever is connected to an earlier life of one turns to this one."""

    addresses: tuple[str, ...]
    """By rank; empty while a server is away."""
    lives: tuple[int, ...]
