"""A worker with servers but without a master: what a benchmark of a training loop needs, and no more.

In: addresses of servers that run already, or how many to start beside this process (train/table_server.py).
Out: a `Job`, as `st.join()` would give it, whose tables are there.
"""

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from springtide import config
from springtide.domain.core.roles import Placement
from springtide.domain.spec.job_spec import SyncMode
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.job import Job
from springtide.worker.link.local_master import LocalMaster
from springtide.worker.link.master_link import local_link
from springtide_lab.bench.core import peers

SECRET = b"no secret between processes of one benchmark"
SLOTS = 1024


class ServedMaster(LocalMaster):
    """A local master of a worker whose tables are on servers."""

    def __init__(self, settings: config.Settings, addresses: Sequence[str], sync: SyncMode) -> None:
        super().__init__(settings)
        self._addresses, self._sync = tuple(addresses), sync

    def welcome(self) -> WorkerWelcome:
        return msgspec.structs.replace(
            super().welcome(),
            servers=self._addresses,
            placement=placement(len(self._addresses)),
            slots=SLOTS,
            sync=self._sync,
            secret=SECRET,
        )


def placement(servers: int) -> Placement:
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot % servers for slot in range(SLOTS)))


def job(addresses: Sequence[str], *, sync: SyncMode = "async") -> Job:
    settings = config.load()
    return Job(settings, local_link(settings, ServedMaster(settings, addresses, sync)))


def start(stack: contextlib.ExitStack, servers: int = 1) -> list[peers.Worker]:
    """So many servers, each a process of its own that ends with the stack."""
    return [
        stack.enter_context(peers.Worker("train/table_server", options={"index": index, "servers": servers}))
        for index in range(servers)
    ]


@contextlib.contextmanager
def running(*, servers: int) -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        yield job([str(server.ask("round")["address"]) for server in start(stack, servers)])
