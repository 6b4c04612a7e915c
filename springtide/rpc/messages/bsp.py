"""Messages of workers that synchronize: bsp groups, and pushes of bounded staleness.

In: `worker.bsp.group` and `worker.step.step`. Next: `master.servers.bsp_group` and `master.core.waiters` hold the
requests until they can be answered. `rpc.messages.messages` includes all of them.
"""

from springtide.rpc.messages.types import RpcMessage


class GroupRequest(RpcMessage, frozen=True):
    """A worker of a bsp job waits for its first or next group. Answered with `GroupReply`."""

    fresh: bool
    """True if the worker has no trained dense parameters and takes the parameters of the group."""
    idle: bool
    """True if the worker has no step in progress."""
    resting: bool = False
    """True if the worker's script has ended, and it stays only to pass its parameters on."""
    generation: int = 0
    """Newest generation that the worker was told of, even if its members could not connect."""
    bound: bool = False
    """True if cached rows, or a part of the current step, were lost with a member."""


class GroupReply(RpcMessage, frozen=True):
    """The new bsp group."""

    generation: int
    ranks: tuple[int, ...]
    leader: int
    """Rank whose dense parameters the group takes."""
    first: bool = False
    """True if no rank has trained yet. The leader's parameters and weights are then as its script initialized them."""
    resting: tuple[int, ...] = ()
    """Ranks whose scripts have ended, so that they take no more steps."""
    over: bool = False
    """True if the receiver no longer takes part. The group continues without it, or not at all."""
    at_rest: bool = False
    """True if no rank has a step in progress. All trained ranks are then after the same step, or the model's step if no
    rank has trained."""
    restored: bool = False
    """True if no rank has the model, but the servers have the model of a checkpoint. The leader reads it from there."""
    deaths: int = 0
    """Number of workers lost from a group so far."""
    watched_s: float = 0.0
    """Seconds since the first group formed, over which `deaths` were counted."""
    return_s: float = 0.0
    """Extra seconds of a rollback, compared with waiting for one worker (`job.recovery.bsp_breaks`)."""
    saved: bool = False
    """True if there is a complete checkpoint."""
    save: int = 0
    """Number of the final checkpoint, if training is over for all. The leader must put the model on the servers for it.
    """


class MeetRequest(RpcMessage, frozen=True):
    """A member of a newly formed group shares values with the other members, such as the addresses of its sockets.

    Answered with `MeetReply` once all `wanted` keys are there, or with `GroupChanged` if this group cannot meet any
    more.
    """

    generation: int
    given: dict[str, bytes]
    """All values that the member has shared so far. Repeating the request, even to a new master, loses nothing."""
    wanted: tuple[str, ...] = ()


class MeetReply(RpcMessage, frozen=True):
    """Values that the members of the group have shared so far, by key."""

    values: dict[str, bytes]


class AtStep(RpcMessage, frozen=True):
    """The group's lowest rank has put its dense parameters and optimizers, as of `step`, on the servers.

    Answered when the slots are copied. The final checkpoint is answered when it is complete or abandoned. Until the
    answer, no rank can take the next step.
    """

    number: int
    """Number of the requested checkpoint."""
    step: int
    shard: int
    first: int
    """First sample of this shard that is not trained yet. Everything before it is trained."""
    last: bool = False


class Regroup(RpcMessage, frozen=True):
    """The bsp group forms again before the next shard. Ask for the new group when no step is in progress."""


class Enter(RpcMessage, frozen=True):
    """The worker wants to read values, and no push may be staler than `bound`. Answered when the worker is admitted."""

    bound: int


class Leave(RpcMessage, frozen=True):
    """The push that was computed from these values has been applied."""
