"""Parameter servers in processes of their own, for tests: `with serving(servers=2) as servers: ...`."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from springtide.domain.model.tables import Init, TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.placement import placement

SLOTS = 64
SECRET = b"a secret of this test"
ITEMS = TableSpec(id=0, name="items", dim=4, init=Init(kind="uniform", a=-1.0, b=1.0))
USERS = TableSpec(id=1, name="users", dim=9, init=Init(kind="normal", b=0.5))
HYPER = [(0, 1.0, 0.0, 0), (1, 1.0, 0.0, 0)]  # learning rate 1


@dataclass
class Served:
    processes: list
    addresses: list

    def client(self, **options):
        """A client with both tables declared."""
        where = placement.even(SLOTS, len(self.addresses))
        settings = {"connect_timeout_s": 20.0, "request_timeout_s": 30.0, "reconnect_s": 0.2, **options}
        client = TableClient.connect(
            self.addresses, secret=SECRET, placement=where.server_of_slot, epoch=where.epoch, **settings
        )
        client.declare([ITEMS, USERS])
        return client


@contextlib.contextmanager
def serving(*, servers=1, workers=1, **limits):
    """`servers` processes; all are killed at the end."""
    with contextlib.ExitStack() as stack:
        served = Served([], [])
        for index in range(servers):
            options = json.dumps({"index": index, "servers": servers, "workers": workers, **limits})
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-m", "tests.process.serving", options], stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            served.processes.append(process)
        for process in served.processes:
            host, _, port = process.stdout.readline().decode().strip().rpartition(":")
            served.addresses.append((host, int(port)))
        yield served


def main(options):
    """Serve until SIGTERM, then print the counters."""
    from springtide.server.server import ServerRole

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    servers = options.pop("servers")
    role = ServerRole(slots=SLOTS, seed=5, secret=SECRET, **options)
    address = role.start()
    role.place(placement.even(SLOTS, servers))
    print(address, flush=True)
    signal.sigwait([signal.SIGTERM])
    began = time.monotonic()
    role.stop()
    print(json.dumps({**role.counters(), "stopped_in_s": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
