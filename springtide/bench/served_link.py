"""A worker with servers but without a master: what a benchmark of a training loop needs, and no more.

In: addresses of servers that run already. Out: a Job whose tables are there.
"""

from collections.abc import Sequence

import msgspec

from springtide import config
from springtide.domain.cluster import Placement
from springtide.domain.job import SyncMode
from springtide.rpc.messages import Welcome
from springtide.train import link
from springtide.train.session import Job

SECRET = b"no secret between processes of one benchmark"
SLOTS = 1024


class ServedLink(link.AloneLink):
    """Alone as far as leases and reports go, but its tables are on servers."""

    def __init__(self, settings: config.Settings, addresses: Sequence[str], sync: SyncMode) -> None:
        super().__init__(settings)
        self._addresses, self._sync = tuple(addresses), sync

    def join(self) -> Welcome:
        """As if a master had started these servers."""
        return msgspec.structs.replace(
            super().join(),
            servers=self._addresses,
            placement=placement(len(self._addresses)),
            slots=SLOTS,
            sync=self._sync,
            secret=SECRET,
        )


def placement(servers: int) -> Placement:
    """Slots dealt out in turn."""
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot % servers for slot in range(SLOTS)))


def job(addresses: Sequence[str], *, sync: SyncMode = "async") -> Job:
    """A job of one worker with these servers."""
    settings = config.load()
    return Job(settings, ServedLink(settings, addresses, sync))
