"""During an urgent slot handover, requests wait until the target owns the slots."""

import concurrent.futures
import contextlib
import json
import signal

import numpy as np
import pytest

from tests.process.serving import HYPER, ITEMS, SLOTS
from tests.process.test_server_containers import client_servers, server

pytestmark = [pytest.mark.process, pytest.mark.soak]

KEYS = np.arange(300, dtype=np.int64)
SOON_S = 0.3  # a push takes a thousandth of it
TRIES = 20


@pytest.mark.parametrize("shared_memory", [True, False])
def test_pushes_wait_during_an_urgent_handover_and_reach_the_new_owner_once(shared_memory):
    with contextlib.ExitStack() as stack:
        first, here = stack.enter_context(server(0))
        second, there = stack.enter_context(server(1))
        waiting = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        client = client_servers(here).client(shared_memory=shared_memory)
        part = client.dense(ITEMS.id, KEYS, ITEMS.dim)
        client.pull([part])
        begun = part.rows().copy()

        def push(number):
            part.grads()[:] = 1.0
            sent = client.push([part], step=number, hyper=HYPER, batches=[(0, number, 0, 1)])
            return waiting.submit(sent.wait)

        push(0).result()
        second.send_signal(signal.SIGSTOP)  # the target takes its time: the hurry lasts until it goes on
        first.stdin.write(there + "\n")
        first.stdin.flush()
        held = None
        for number in range(1, TRIES):
            sent = push(number)
            if concurrent.futures.wait([sent], SOON_S).not_done:
                held = number
                break  # those before it came before the hurry did
        second.send_signal(signal.SIGCONT)
        assert held is not None, "nobody waits"
        done = json.loads(first.stdout.readline())
        assert (done["moved"], done["why"]) == (SLOTS, "")
        sent.result()
        client.pull([part])
        for _ in range(held + 1):
            begun -= 1.0
        assert np.array_equal(part.rows(), begun), "each once, wherever slots were by then"
