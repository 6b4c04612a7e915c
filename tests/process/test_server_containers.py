"""Servers in containers: shared memory where it is available, the network elsewhere."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.process import hosts
from tests.process.serving import HYPER, ITEMS, SLOTS, Served

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and unshare"),
]
CONTAINER = (
    "unshare",
    "--mount",
    "--pid",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
    'mount -t tmpfs none /dev/shm && exec "$@"',
    "sh",
)
"""Mounts, processes and shared memory of its own; the network is the host's: the same address, the same ports."""

SERVER = """
import json, sys
from springtide.embedding.placement import placement
from springtide.server.server import ServerRole
from tests.process.serving import SECRET, SLOTS

host, index = sys.argv[1], int(sys.argv[2])
role = ServerRole(index=index, slots=SLOTS, seed=5, workers=1, secret=SECRET, host=host)
print(role.start(), flush=True)
role.place(placement.even(SLOTS, 1))
for line in sys.stdin:
    done = role.hand_over(range(SLOTS), 1, line.strip(), hurry=True)
    print(json.dumps({"moved": len(done.moved), "local": done.local, "why": done.why}), flush=True)
role.stop(drain_s=0.1)
"""
CLIENT = """
import sys
from tests.process.serving import Served

host, _, port = sys.argv[1].rpartition(":")
print(Served([], [(host, int(port))]).client().stats()["transports"], flush=True)
"""


@contextlib.contextmanager
def server(index, *, within=(), host="127.0.0.1"):
    """A server somewhere; its process, and its address."""
    words = [*within, sys.executable, "-c", SERVER, host, str(index)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def client_servers(*addresses):
    pairs = [address.rpartition(":") for address in addresses]
    return Served([], [(host, int(port)) for host, _, port in pairs])


def push_ones(client, keys):
    """Rows of a few keys after one push of ones."""
    part = client.dense(ITEMS.id, keys, ITEMS.dim)
    client.pull([part])
    before = part.rows().copy()
    part.grads()[:] = 1.0
    client.push([part], step=0, hyper=HYPER, batches=[(0, 0, 0, 1)]).wait()
    client.pull([part])
    assert np.array_equal(part.rows(), before - 1.0)
    return part.rows().copy()


def test_server_with_a_private_dev_shm_still_shares_memory():
    with server(0, within=CONTAINER) as (_, address):
        client = client_servers(address).client()
        assert client.stats()["transports"] == ["shm"]
        push_ones(client, np.arange(200, dtype=np.int64))


@pytest.mark.skipif(hosts.refusal() is not None, reason="no hosts of our own here")
def test_server_on_another_network_is_reached_by_tcp(tmp_path):
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(hosts.Hosts(["one", "two"], tmp_path))
        _, address = stack.enter_context(server(0, within=cluster.inside("one"), host=cluster.address("one")))
        for host, transport in (("one", "shm"), ("two", "tcp")):
            words = [*cluster.inside(host), sys.executable, "-c", CLIENT, address]
            assert subprocess.run(words, capture_output=True, text=True).stdout.strip() == str([transport])


@pytest.mark.parametrize(("giver", "taker"), [(CONTAINER, CONTAINER), ((), CONTAINER)])
def test_urgent_slot_transfer_works_between_isolated_containers(giver, taker):
    keys = np.arange(300, dtype=np.int64)
    with server(0, within=giver) as (first, here), server(1, within=taker) as (_, there):
        client = client_servers(here).client()
        rows = push_ones(client, keys)
        first.stdin.write(there + "\n")
        first.stdin.flush()
        done = json.loads(first.stdout.readline())
        assert (done["moved"], done["why"]) == (SLOTS, "")
        part = client.dense(ITEMS.id, keys, ITEMS.dim)
        client.pull([part])  # the one that gave them says who has them
        assert np.array_equal(part.rows(), rows)
