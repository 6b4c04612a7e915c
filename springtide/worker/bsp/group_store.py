"""A torch.distributed store over the master: ranks of a bsp group find one another's sockets through it.

In: gloo, while a group is formed, sets where this rank listens and waits for where the others do. Out: the same from
every rank, through the master (`master.servers.bsp_group`), which knows its members by the job's secret. torch's own
TCPStore would listen on all interfaces, and let anybody read and write. Next: allreduce.py.
"""

import datetime
from collections.abc import Sequence

from torch import distributed

from springtide.rpc.messages import messages
from springtide.worker.link.clients import GroupClient


class GroupStore(distributed.Store):  # type: ignore[misc, name-defined]
    """Values of one generation of the group. Whatever gloo does not use while it connects is not there."""

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
        """Return when these are there; `GroupChanged` when the master knows that they will not come, however soon."""
        if missing := tuple(key for key in keys if key not in self._known):
            self._meet(*missing)

    def _meet(self, *wanted: str) -> None:
        self._known = self._master.meet(messages.MeetRequest(self._generation, self._given, wanted))
