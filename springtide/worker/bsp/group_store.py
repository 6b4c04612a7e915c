"""A torch.distributed store over the master, through which the ranks of a bsp group find each other's sockets.

In: while a group forms, gloo sets the address of this rank and waits for the addresses of the other ranks. Out: the
addresses of all ranks, through the master (`master.servers.bsp_group`), which authenticates members by the job's
secret. torch's own TCPStore would listen on all interfaces, without authentication. Next: allreduce.py.
"""

import datetime
from collections.abc import Sequence

from torch import distributed

from springtide.rpc.messages import messages
from springtide.worker.link.clients import GroupClient


class GroupStore(distributed.Store):  # type: ignore[misc, name-defined]
    """Values of one generation of the group. It implements only the operations that gloo uses to connect."""

    def __init__(self, master: GroupClient, generation: int) -> None:
        super().__init__()
        self._master, self._generation = master, generation
        self._given: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._given[key] = bytes(value)
        self._meet()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait for these keys; `GroupChanged` as soon as the master knows that they will not come."""
        if missing := tuple(key for key in keys if key not in self._known):
            self._meet(*missing)

    def _meet(self, *wanted: str) -> None:
        self._known = self._master.meet(messages.MeetRequest(self._generation, self._given, wanted))
