"""The message by which a job's user changes its bounds while it runs. In: `launch.pod_asks`. Next: `master.bounding`.

It is part of `rpc.messages`.
"""

from springtide.rpc.nouns import Message


class Rebound(Message, frozen=True):
    """Plan with so many workers and servers, from and to, from now on; None leaves them. Answered with `Ok`."""

    workers: tuple[int, int] | None = None
    servers: tuple[int, int] | None = None
    why: str = "asked by the user"
