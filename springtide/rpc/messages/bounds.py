"""The message by which a job's user changes its bounds while it runs. In: `launch.k8s.pod_requests`. Next:
`master.autoscale.bounds`.

It is part of `rpc.messages.messages`.
"""

from springtide.rpc.messages.types import RpcMessage


class BoundsRequest(RpcMessage, frozen=True):
    """Plan with so many workers and servers, from and to, from now on; None leaves them. Answered with `Ok`."""

    workers: tuple[int, int] | None = None
    servers: tuple[int, int] | None = None
    why: str = "asked by the user"
