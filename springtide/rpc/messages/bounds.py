"""Message with which a user changes a job's bounds while it runs. In: `launch.k8s.pod_requests`. Next:
`master.autoscale.bounds`.

`rpc.messages.messages` includes it.
"""

from springtide.rpc.messages.types import RpcMessage


class BoundsRequest(RpcMessage, frozen=True):
    """Plan with these least and most workers and servers; None leaves a bound unchanged. Answered with `Ok`."""

    workers: tuple[int, int] | None = None
    servers: tuple[int, int] | None = None
    why: str = "asked by the user"
