"""Ports of a bsp job listen on its own address only and tell strangers nothing."""

import contextlib
import os
import pathlib
import selectors
import socket
import struct

import pytest

from springtide.rpc.transport import addresses
from tests.process import group_counting
from tests.process.test_bsp_groups import spec

pytestmark = pytest.mark.process

LISTENS = "0A"  # in /proc/net/tcp
SILENCE_S = 2.0  # whoever has something to say to a stranger says it at once
STORE_MAGIC = 0x3C85F7CE
PING = struct.pack("<BIBI", 0, STORE_MAGIC, 13, 123456789)  # how a client of torch's TCPStore begins
GARBAGE = [PING, b"\0" * 29, b"\xff" * 29, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]


def listeners(pids):
    """Where these processes listen, as (host, port)."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue  # closed meanwhile
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            (
                _,
                local,
                _,
                state,
                *_,
            ) = fields = line.split()
            if state == LISTENS and f"socket:[{fields[9]}]" in inodes:
                host, port = local.split(":")
                words = [struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def answers(places, words):
    """Replies to strangers, one per address and message, until disconnected or silent."""
    heard = {(where, sent): b"" for where in places for sent in words}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for where, sent in heard:
            stranger = stack.enter_context(socket.create_connection(where, timeout=60))
            stranger.sendall(sent)
            waiting.register(stranger, selectors.EVENT_READ, (where, sent))
        while waiting.get_map() and (came := waiting.select(SILENCE_S)):
            for key, _ in came:
                part = b""
                with contextlib.suppress(ConnectionResetError):
                    part = key.fileobj.recv(4096)
                heard[key.data] += part
                if not part:
                    waiting.unregister(key.fileobj)
    return heard


@pytest.mark.timeout(400)
def test_bsp_job_listens_only_on_its_address_and_tells_strangers_nothing(tmp_path):
    def hurt(job):
        servers = {addresses.parse(each["address"]) for each in job.story if each["event"] == "ready"}
        found = listeners(job.pids().values())
        assert servers < found
        assert {host for host, _ in found} == {"127.0.0.1"}, "where the job's processes are"
        by_worker = [listeners([pid]) for role, pid in job.pids().items() if role.startswith("worker-")]
        assert [len(each) for each in by_worker] == [1, 1], "gloo's"
        secret = bytes.fromhex(job.files.secret.read_text())
        for (where, sent), heard in answers(found, GARBAGE).items():
            assert PING[-4:] not in heard, f"a store of torch's at {where}"
            assert where not in set().union(*by_worker) or not heard, f"{heard!r} for {sent!r} at {where}"
            assert secret not in heard
        group_counting.until_trained(job)

    _, wrong = group_counting.count(tmp_path, spec, 9, batches=200, hurt=hurt, pause_s=0.1)
    assert not wrong, wrong
