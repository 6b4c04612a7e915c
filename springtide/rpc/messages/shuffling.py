"""Messages that list the workers that exchange stream batches. In: `rpc.messages.types`. Next: `rpc.messages.messages`
includes them.

Workers exchange the batches, and their readiness, directly (`worker.online.peers`). The master only distributes
addresses.
"""

import zlib
from collections.abc import Iterable

from springtide.rpc.messages.types import RpcMessage


class Shuffler(RpcMessage, frozen=True):
    """A worker that accepts batches."""

    name: str
    """Name of the worker with its incarnation, such as `worker-2.0`."""
    address: str


class Shufflers(RpcMessage, frozen=True):
    """All workers that accept batches. Sent to workers that know a different list."""

    digest: int
    members: tuple[Shuffler, ...] = ()


def listed(members: Iterable[Shuffler]) -> Shufflers:
    """Return a list with its digest, which is never 0. All masters that know the same workers get the same digest."""
    ordered = tuple(sorted(members, key=lambda each: each.name))
    text = "\n".join(f"{each.name} {each.address}" for each in ordered)
    return Shufflers(zlib.crc32(text.encode()) + 1, ordered)
