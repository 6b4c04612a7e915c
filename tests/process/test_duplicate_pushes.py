"""Duplicate, late and zombie pushes against real server processes: each batch counts once."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.placement import placement
from tests.process.serving import SECRET, SLOTS, serving

pytestmark = pytest.mark.process

COUNTS = TableSpec(id=7, name="counts", dim=2)
KEYS = np.arange(3000, dtype=np.int64)
BATCHES = 40


def push(client, batch):
    """Every key once, named by one batch of shard 3."""
    part = client.dense(COUNTS.id, KEYS, COUNTS.dim)
    part.grads()[:] = -1.0
    client.push([part], step=batch + 1, hyper=[(COUNTS.id, 1.0, 0.0, 0)], batches=[(0, 3, batch * 8, 8)]).wait()


def counted_values(client):
    """How often each key was trained."""
    return set(np.unique(client.read("counts", KEYS)).tolist())


class Cutter:
    """A TCP proxy that cuts each connection after a random number of bytes of replies."""

    def __init__(self, to, chance):
        self.to, self.chance, self.cuts, self.calm = to, chance, 0, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        self.open, self.threads = [], []
        self.start(self.accept)

    def start(self, *call):
        self.threads.append(threading.Thread(target=call[0], args=call[1:]))
        self.threads[-1].start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.to)
                self.open += [client, server]
                self.start(self.pump, client, server, None)
                # at least a handshake, so that every connection gets somewhere
                self.start(self.pump, server, client, self.chance.randrange(700, 60_000))

    def pump(self, source, sink, left):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if left is not None and not self.calm and (left := left - len(data)) < 0:
                    self.cuts += 1
                    break  # what the server has done by now, the client does not hear
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        for one in (self.listener, *self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for one in (self.listener, *self.open):
            one.close()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])  # one seed cuts at many bytes
def test_connections_cut_at_any_byte_lose_and_repeat_nothing(seed):
    print(f"seed {seed}")
    with serving(servers=2) as served, contextlib.ExitStack() as stack:
        cutters = [Cutter(address, random.Random(seed + index)) for index, address in enumerate(served.addresses)]
        for cutter in cutters:
            stack.callback(cutter.close)
        served.addresses[:] = [cutter.address for cutter in cutters]
        client = served.client(shared_memory=False, reconnect_s=20.0)
        client.declare([COUNTS])
        for batch in range(BATCHES):
            push(client, batch)
            assert counted_values(client) == {batch + 1.0}
        for cutter in cutters:
            cutter.calm = True
        assert sum(cutter.cuts for cutter in cutters) > 5
        assert client.stats()["reconnects"] >= sum(cutter.cuts for cutter in cutters) - 2
        assert counted_values(client) == {float(BATCHES)}
        del client


def give(client, batch):
    """First values of a part of the keys."""
    keys = KEYS[batch::BATCHES]
    client.assign("counts", keys, np.zeros((len(keys), COUNTS.dim), np.float32), keep=True)


@pytest.mark.parametrize("at", ["push", "give"])
def test_fenced_worker_that_resumes_changes_nothing(at):
    with serving(servers=2) as served:
        where = [f"{host}:{port}" for host, port in served.addresses]
        command = [sys.executable, "-m", "tests.process.test_duplicate_pushes", at, *where]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zombie:
            while zombie.stdout.readline().strip() != "10":
                assert zombie.poll() is None
            zombie.send_signal(signal.SIGSTOP)  # perhaps in the middle of it
            _, status = os.waitpid(zombie.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            client = served.client()
            client.declare([COUNTS])
            for batch in range(BATCHES):
                give(client, batch)
            for batch in reversed(range(BATCHES)):  # from the other end: a set, not a mark
                push(client, batch)
            zombie.send_signal(signal.SIGCONT)
            zombie.stdin.close()
            assert zombie.stdout.read().split()[-1] == str(BATCHES - 1)
            assert zombie.wait() == 0
        assert counted_values(client) == {float(BATCHES)}
        del client


def main(do, addresses):
    """The zombie: pushes all batches in order, or sends first values in as many parts, and prints its progress.

    It is not through before its input has ended: whoever wants to stop it may be late.
    """
    where = placement.even(SLOTS, len(addresses))
    client = TableClient.connect(addresses, secret=SECRET, placement=where.server_of_slot, epoch=where.epoch)
    client.declare([COUNTS])
    for batch in range(BATCHES):
        if batch == BATCHES - 10:
            sys.stdin.read()
        do(client, batch)
        print(batch, flush=True)


if __name__ == "__main__":
    main(
        {"push": push, "give": give}[sys.argv[1]],
        [(host, int(port)) for host, port in (a.split(":") for a in sys.argv[2:])],
    )
