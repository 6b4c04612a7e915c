"""Messages of workers that coordinate: bsp groups, bounded staleness, barriers, shared values, and stream batches.

Next: `master.handlers`. Workers that shuffle a stream send batches directly to each other (`worker.online.peers`); the
master only distributes their addresses.
"""

import zlib
from collections.abc import Iterable

from springtide.domain.data.streams import BatchCut
from springtide.rpc.messages.types import Reply, Request, RpcMessage


class GroupRequest(Request, frozen=True):
    """A worker of a bsp job waits for its first or next group. The answer is `GroupReply`."""

    fresh: bool
    """True if the worker has no trained dense parameters and takes those of the group."""
    idle: bool
    resting: bool = False
    """True if the worker's script has ended, so that the worker stays only to pass its parameters on."""
    generation: int = 0
    """Newest generation of the group that the worker knows of, even if the members of that group could not connect."""
    bound: bool = False
    """True if rows in a cache, or a part of the current step, were lost together with a member."""


class GroupReply(Reply, frozen=True):
    """The new bsp group."""

    generation: int
    ranks: tuple[int, ...]
    leader: int
    """Rank whose dense parameters all members of the group copy."""
    first: bool = False
    """True if no rank has trained yet. All ranks then start with the values that the leader's script gave its
    parameters and weights."""
    resting: tuple[int, ...] = ()
    """Ranks whose scripts have ended, so that these ranks make no more steps."""
    over: bool = False
    """True if the receiver is no longer a member. The group continues without this worker, or ends."""
    at_rest: bool = False
    """True if no rank is in the middle of a step, so that all trained ranks have completed the same step."""
    restored: bool = False
    """True if no rank has the model, but the servers have the model of a checkpoint. The leader reads the model from
    the servers."""
    deaths: int = 0
    """Number of workers that groups of this job have lost so far."""
    watched_s: float = 0.0
    """Seconds since the first group formed; `deaths` were counted over this time."""
    return_s: float = 0.0
    """Extra seconds that a rollback takes, compared with waiting for one worker (`job.recovery`)."""
    saved: bool = False
    save: int = 0
    """Number of the final checkpoint, for which the leader must write the model to the servers."""


class MeetRequest(Request, frozen=True):
    """A member of a newly formed group shares values with the other members, such as the addresses of its sockets.

    The reply is `MeetReply` as soon as all `wanted` keys are present, or `GroupChanged` if this group is incomplete.
    """

    generation: int
    given: dict[str, bytes]
    """All values that the member has shared so far. A new master gets these values when the member repeats the
    request."""
    wanted: tuple[str, ...] = ()


class MeetReply(Reply, frozen=True):
    """Values that the members of the group have shared so far, by key."""

    values: dict[str, bytes]


class AtStep(Request, frozen=True):
    """The group's lowest rank has written its dense parameters and optimizers, as they are after `step`, to the
    servers.

    The master answers when the slots are copied. For the final checkpoint, the master answers when the checkpoint is
    complete or abandoned. Until the answer, no rank can take the next step.
    """

    number: int
    step: int
    shard: int
    first: int
    """First untrained sample of this shard."""
    last: bool = False


class Regroup(Reply, frozen=True):
    """The bsp group forms again before the next shard. The worker must ask for the new group as soon as it is not in
    the middle of a step."""


class Enter(Request, frozen=True):
    """The worker wants to read values. The master answers when the worker may read. The delay ensures that at most
    `bound` other pushes come between the worker's read and its push."""

    bound: int


class Leave(Request, frozen=True):
    """The worker's push after its last `Enter` has been applied."""


class ShareRequest(Request, frozen=True):
    """Share a small value with the other workers."""

    key: str
    value: bytes


class ValueRequest(Request, frozen=True):
    """Asks for a shared value. The master answers as soon as a worker has shared the value."""

    key: str


class ClaimRequest(Request, frozen=True):
    """Claims a task that the job must do only once, such as initializing the weights of tables.

    The answer is `ClaimReply`. The first worker gets its answer immediately. Other workers wait until the task is done.
    If the claimant is lost, one of the waiting workers takes over the task.
    """

    key: str


class ClaimDone(Request, frozen=True):
    """The worker has finished the task that it had claimed."""

    key: str


class GatherRequest(Request, frozen=True):
    """Sends this worker's value, and asks for the values that all workers send in the same call of their scripts.

    The answer is `GatherReply`. The reply is `Regroup` if a bsp group must form again before all values can arrive, and
    `DataEnd` if this worker must leave.
    """

    place: int
    """Position of the script in its epochs, from `worker.epochs`."""
    number: int
    """Number of the call at this position."""
    value: bytes


class GatherReply(Reply, frozen=True):
    """Values of all workers that took part, by rank. Every worker gets the same values."""

    values: dict[int, bytes]


class ValueFound(Reply, frozen=True):
    """The value that a `ValueRequest` asked for."""

    value: bytes


class ClaimReply(Reply, frozen=True):
    """Says whether the worker that asked must do the task. If False, the task is done."""

    yours: bool


class Shuffler(RpcMessage, frozen=True):
    """A worker that accepts batches."""

    name: str
    """Name of the worker with its incarnation, such as `worker-2.0`."""
    address: str


class Shufflers(RpcMessage, frozen=True):
    """All workers that accept batches. The master sends this list to workers that have an older list."""

    digest: int
    members: tuple[Shuffler, ...] = ()


def listed(members: Iterable[Shuffler]) -> Shufflers:
    """Return the list of these workers, with its digest, which is never 0. All masters compute the same digest for the
    same workers."""
    ordered = tuple(sorted(members, key=lambda member: member.name))
    text = "\n".join(f"{member.name} {member.address}" for member in ordered)
    return Shufflers(zlib.crc32(text.encode()) + 1, ordered)


class CutRequest(Request, frozen=True):
    """End batches of these leases early. The answer is `CutsNoted`. Sending the request again does no harm."""

    cuts: tuple[BatchCut, ...]
    era: int = 0


class CutsNoted(Reply, frozen=True):
    """Cuts that are valid from now on, for every reader of the partition."""

    cuts: tuple[BatchCut, ...]
    era: int = 0
