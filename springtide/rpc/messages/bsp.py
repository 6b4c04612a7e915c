"""Messages of workers that depend on one another: bsp groups, and pushes of bounded staleness.

In: `worker.bsp.group` and `worker.step.step`. Next: `master.servers.bsp_group` and `master.core.waiters` let them wait
for each other. All of them are part of `rpc.messages.messages`.
"""

from springtide.rpc.messages.types import RpcMessage


class GroupRequest(RpcMessage, frozen=True):
    """A worker of a bsp job waits for its group, the first or the next one. Answered with `Formed`."""

    fresh: bool
    """Its dense parameters are no one's: it takes those of the group."""
    idle: bool
    """It has no step in hand."""
    resting: bool = False
    """Its script has ended: it only hands its parameters on, should another need them."""
    generation: int = 0
    """The last one that it was told of, whether its members could reach one another or not."""
    bound: bool = False
    """Rows in workers' caches, or its part of the step in hand, went with the member that was lost."""


class GroupReply(RpcMessage, frozen=True):
    """The bsp group from now on."""

    generation: int
    ranks: tuple[int, ...]
    leader: int
    """Its dense parameters are the group's."""
    first: bool = False
    """Nobody has trained anything yet: the leader's parameters and weights are as its script made them."""
    resting: tuple[int, ...] = ()
    """Ranks whose scripts have ended: they take no step any more."""
    over: bool = False
    """The receiver takes part no more: the group goes on without it, or not at all."""
    at_rest: bool = False
    """Nobody has a step in hand: all who have trained are after the same one, which is the model's if none has."""
    restored: bool = False
    """Nobody has the model, but the servers have a checkpoint's: the leader takes it from there."""
    deaths: int = 0
    """Workers that were lost out of a group so far."""
    watched_s: float = 0.0
    """Seconds since the first group was formed: those in which they were lost."""
    return_s: float = 0.0
    """Seconds that a return to the checkpoint takes longer than waiting for one worker (`job.recovery.bsp_breaks`)."""
    saved: bool = False
    """Whether there is a complete checkpoint."""
    save: int = 0
    """It is over for all: the leader is to put the model on the servers for this checkpoint, the last one."""


class MeetRequest(RpcMessage, frozen=True):
    """A member of the group that was just formed gives the others these values: where its sockets are.

    Answered with `Met` once all `wanted` keys are there, or with `GroupChanged` when this group will not meet any more.
    """

    generation: int
    given: dict[str, bytes]
    """All that it has given so far: asked again, of the next master too, nothing is missing."""
    wanted: tuple[str, ...] = ()


class MeetReply(RpcMessage, frozen=True):
    """What the members of the group have given so far, by key."""

    values: dict[str, bytes]


class AtStep(RpcMessage, frozen=True):
    """The group's lowest rank has put dense parameters and optimizers as they are after `step` on the servers.

    Answered when the slots are copied, the last time when the checkpoint is complete or given up: until then nobody
    can take the next step.
    """

    number: int
    """The checkpoint that was asked for."""
    step: int
    shard: int
    first: int
    """All that lies before this sample of this shard is trained."""
    last: bool = False


class Regroup(RpcMessage, frozen=True):
    """Before the next shard the bsp group is formed anew: ask for that when nothing is in hand."""


class Enter(RpcMessage, frozen=True):
    """Values are to be read now, and no push may be staler than `bound`. Answered when it is this worker's turn."""

    bound: int


class Leave(RpcMessage, frozen=True):
    """The push that was computed from these values is applied."""
