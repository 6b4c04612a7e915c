"""Messages with which a process announces its eviction. In: `platforms.k8s.job.drain`. Next:
`master.servers.evictions`.

`rpc.messages.messages` includes both.
"""

from springtide.domain.core.roles import Role
from springtide.rpc.messages.types import RpcMessage


class EvictionNotice(RpcMessage, frozen=True):
    """The host will end this incarnation of a role. Sent again until the role may go. Answered with `EvictionReply`."""

    role: Role
    incarnation: int
    why: str


class EvictionReply(RpcMessage, frozen=True):
    """Whether the job no longer needs that process."""

    free: bool
