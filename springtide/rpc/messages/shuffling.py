"""What is said about workers that give each other batches of a stream. In: `rpc.messages.types`. Next: part of
`rpc.messages.messages`.

Batches never come this way, nor who is ready for them: workers speak to each other (`worker.online.shuffling`). The
master only tells them where they are.
"""

import zlib
from collections.abc import Iterable

from springtide.rpc.messages.types import RpcMessage


class Shuffler(RpcMessage, frozen=True):
    """A worker that may be called."""

    name: str
    """Of the worker and which of its lives: `worker-2.0`."""
    address: str


class Shufflers(RpcMessage, frozen=True):
    """All of them; told to whoever knows others."""

    digest: int
    members: tuple[Shuffler, ...] = ()


def listed(members: Iterable[Shuffler]) -> Shufflers:
    """A list with its digest, which is never 0: the same for all masters that know the same workers."""
    ordered = tuple(sorted(members, key=lambda each: each.name))
    text = "\n".join(f"{each.name} {each.address}" for each in ordered)
    return Shufflers(zlib.crc32(text.encode()) + 1, ordered)
