"""Servers that die, hang or never start: the client names the server, the timeout and what to check."""

import json
import os
import signal
import time

import numpy as np
import pytest

from springtide import errors
from tests.process.serving import ITEMS, SECRET, SLOTS, serving

pytestmark = pytest.mark.process

KEYS = np.arange(1000, dtype=np.int64)


def pending_pull(client):
    part = client.dense(ITEMS.id, KEYS, ITEMS.dim)
    client.pull([part])
    return part


def freeze(process):
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)  # until every thread of it has stopped
    assert os.WIFSTOPPED(status)


@pytest.mark.parametrize("shared_memory", [False, True])
def test_server_killed_during_a_pull_is_named(shared_memory):
    with serving(servers=2) as served:
        client = served.client(shared_memory=shared_memory)
        pending_pull(client).wait()
        for process in served.processes:
            freeze(process)  # so that the pull stays pending
        part = pending_pull(client)
        served.processes[1].kill()
        served.processes[0].send_signal(signal.SIGCONT)
        host, port = served.addresses[1]
        with pytest.raises(errors.ServerUnreachable, match=rf"server 1 \({host}:{port}\) went away .* after .* s") as e:
            part.wait()
        assert "see logs/server-1.log" in str(e.value)
        with pytest.raises(errors.ServerUnreachable, match="server 1"):
            pending_pull(client).wait()
        del part, client


def test_request_to_a_hanging_server_fails_at_its_deadline():
    with serving() as served:
        client = served.client(request_timeout_s=3.0)  # what comes before it is frozen must be in time
        freeze(served.processes[0])
        part = pending_pull(client)
        with pytest.raises(errors.ServerUnreachable, match=r"has not answered a pull of 1000 keys for 3\.0 s"):
            part.wait()
        del part, client


def test_server_that_never_starts_is_named_with_the_reason():
    with serving() as served:
        addresses = list(served.addresses)
        served.processes[0].kill()
        served.processes[0].wait()
        began = time.monotonic()
        with pytest.raises(errors.ServerUnreachable, match=r"server 0 .* did not come up within .*Connection refused"):
            served.client(connect_timeout_s=0.5)
        assert time.monotonic() - began >= 0.5
        assert addresses == served.addresses


def test_client_with_another_secret_is_refused_at_once():
    from springtide.embedding.lookup.table_client import TableClient

    with serving() as served, pytest.raises(errors.ServerUnreachable, match="does not know this job's secret"):
        TableClient.connect(served.addresses, secret=SECRET + b"?", placement=[0] * SLOTS, connect_timeout_s=60.0)


def test_stopped_server_drains_and_prints_its_statistics():
    with serving() as served:
        client = served.client()
        pending_pull(client).wait()
        served.processes[0].send_signal(signal.SIGTERM)
        counted = json.loads(served.processes[0].stdout.readline())
        assert served.processes[0].wait() == 0
        assert counted["pulls"] == 1
        assert counted["pulled_keys"] == len(KEYS)
        assert counted["lookup_ns"] > 0
        with pytest.raises(errors.ServerUnreachable):
            pending_pull(client).wait()
        del client


def test_bsp_timeout_names_the_missing_ranks():
    with serving(workers=3, step_wait_s=0.3) as served:
        client = served.client(rank=1)
        part = client.dense(ITEMS.id, KEYS, ITEMS.dim)
        client.push([part], step=1, bsp=True, hyper=[(ITEMS.id, 1.0, 0.0, 0)]).wait()
        client.pull([part], after_step=1)
        with pytest.raises(errors.ServerUnreachable, match=r"step 1 was not complete .*: no part of rank 0, 2;"):
            part.wait()
        del part, client
