"""A job of one worker in this process and some servers beside it, without a master: what a benchmark times.

In: how many servers. Out: a `Job`, as `st.join()` would give it, and servers that end with the `with` block.
"""

import contextlib
import secrets
from collections.abc import Iterator

import msgspec

from springtide import config
from springtide.bench import peers
from springtide.domain.cluster import Placement
from springtide.rpc.messages import Welcome
from springtide.train import link
from springtide.train.session import Job

SLOTS = 1024


class ServedLink(link.AloneLink):
    """One worker, alone but for the servers that hold its tables."""

    def __init__(self, settings: config.Settings, addresses: tuple[str, ...], secret: bytes) -> None:
        super().__init__(settings)
        self._addresses, self._secret = addresses, secret

    def join(self) -> Welcome:
        """The welcome of a job whose slots are dealt out by turns."""
        owners = tuple(slot % len(self._addresses) for slot in range(SLOTS))
        return msgspec.structs.replace(
            super().join(),
            servers=self._addresses,
            placement=Placement(epoch=1, servers=len(self._addresses), server_of_slot=owners),
            slots=SLOTS,
            secret=self._secret,
        )


@contextlib.contextmanager
def job(*, servers: int) -> Iterator[Job]:
    """A job with that many servers, each a process of its own."""
    secret = secrets.token_bytes(16)
    with contextlib.ExitStack() as stack:
        shared = {"servers": servers, "slots": SLOTS, "secret": secret.hex()}
        running = [
            stack.enter_context(peers.Worker("table_server", options={"index": index, **shared}))
            for index in range(servers)
        ]
        addresses = tuple(str(server.ask("round")["address"]) for server in running)
        settings = config.load({"sync": "async"}, environ={})
        yield Job(settings, ServedLink(settings, addresses, secret))
