"""The receiving side of `bench transfer`: asks for a batch, has it, asks for the next; or trains a small model on them.

Options: ours, raw (addresses). A round: way, tensors, rows, seconds, train -> batches a second, CPU seconds a batch.
"""

import json
import os
import queue
import resource
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import line
import torch
import transfer_sender
import transfer_ways

Fetch = Callable[[], Any]
OURS = {
    "fused, shared memory": (True, True),
    "fused, TCP": (False, True),
    "one message a tensor, shared memory": (True, False),
    "one message a tensor, TCP": (False, False),
}
DIM, KNOWN_IDS = 8, 1000


def ours(address: str, way: str, tensors: int, rows: int) -> Fetch:
    from springtide.dataworker.transport import handshake

    shared, fused = OURS[way]
    connected = handshake.connect(address, transfer_sender.SECRET, shared=shared)
    assert connected.local == shared

    def one() -> Any:
        payload = connected.recv({}).payload
        assert payload is not None
        return payload.tree()

    def fetch() -> Any:
        connected.send(transfer_sender.ASK, [tensors, rows, fused])
        return one() if fused else [one() for _ in range(tensors)]

    return fetch


def raw(address: list[Any], way: str, tensors: int, rows: int) -> Fetch:
    sock = socket.create_connection((address[0], address[1]))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said = json.dumps({"way": way, "tensors": tensors, "rows": rows}).encode()
    sock.sendall(transfer_ways.LENGTH.pack(len(said)) + said)
    receive = transfer_ways.RECEIVING[way](sock, transfer_ways.draw(tensors, rows))

    def fetch() -> Any:
        sock.sendall(b"?")
        return receive()

    return fetch


class Training:
    """A click model over the columns of ids, small enough that fetching its input is worth looking at."""

    def __init__(self, tensors: int) -> None:
        torch.manual_seed(0)
        columns = tensors - 3
        self.rows = torch.nn.Embedding(columns * KNOWN_IDS, DIM)
        self.top = torch.nn.Sequential(torch.nn.Linear(columns * DIM + 13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.optimizer = torch.optim.SGD(self.top.parameters(), lr=0.01)
        self.first = torch.arange(columns) * KNOWN_IDS

    def step(self, batch: list[torch.Tensor]) -> None:
        ids = torch.stack(batch[:-3], dim=1) % KNOWN_IDS + self.first
        looked_up = self.rows(ids).flatten(1)
        score = self.top(torch.cat([looked_up, batch[-3]], dim=1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, batch[-2].round(), weight=batch[-1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def ahead(fetch: Fetch, wanted: threading.Event) -> "queue.Queue[Any]":
    """Batches fetched by a thread of their own, two ahead, while `wanted` is set."""
    queued: queue.Queue[Any] = queue.Queue(maxsize=2)

    def run() -> None:
        while wanted.is_set():
            queued.put(fetch())
        queued.put(None)

    threading.Thread(target=run, daemon=True).start()
    return queued


def trained(fetch: Fetch, model: Training, seconds: float) -> int:
    """Steps of training within some seconds, the next batches being fetched meanwhile."""
    wanted = threading.Event()
    wanted.set()
    queued = ahead(fetch, wanted)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not steps:
        model.step(queued.get())
        steps += 1
    wanted.clear()
    while queued.get() is not None:
        pass
    return steps


def fetched(fetch: Fetch, seconds: float) -> int:
    """Batches within some seconds, one outstanding."""
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not times:
        fetch()
        times += 1
    return times


def start(options: dict[str, Any]) -> tuple[line.Round, dict[str, str]]:
    torch.set_num_threads(1)
    known: dict[tuple[str, int, int], Fetch] = {}
    models: dict[int, Training] = {}

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        if "cores" in request:
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), request["cores"])
            return {"figure": 0.0}
        way, tensors, rows = request["way"], request["tensors"], request["rows"]
        if (way, tensors, rows) not in known:
            reach = ours if way in OURS else raw
            known[way, tensors, rows] = reach(options["ours" if way in OURS else "raw"], way, tensors, rows)
        fetch = known[way, tensors, rows]
        fetch()
        if request["train"]:
            models.setdefault(tensors, Training(tensors))
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        if request["train"]:
            times = trained(fetch, models[tensors], request["seconds"])
        else:
            times = fetched(fetch, request["seconds"])
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"figure": times / took, "cpu_s": cpu / times, "batches": times}

    return measure, {}


if __name__ == "__main__":
    line.serve(start)
