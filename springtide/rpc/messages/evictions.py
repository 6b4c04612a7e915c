"""Messages by which a process says that its host takes it away soon. In: `platforms.k8s.job.drain`. Next:
`master.servers.evictions`.

Both are part of `rpc.messages.messages`.
"""

from springtide.domain.core.roles import Role
from springtide.rpc.messages.types import RpcMessage


class EvictionNotice(RpcMessage, frozen=True):
    """This life of a role will be ended from outside; asked again until it may be. Answered with `Farewell`."""

    role: Role
    incarnation: int
    why: str


class EvictionReply(RpcMessage, frozen=True):
    """Whether the job needs nothing more of that process."""

    free: bool
