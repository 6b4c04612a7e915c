"""Run a process of `bench transfer`: the sender or the receiver of batches.

Options: role (sender, receiver); a receiver also takes the addresses ours and raw. Rounds of a sender: {"what":
"addresses" | "cpu" | "pin", "cores"}. A round of a receiver takes way, tensors, rows, seconds and train, and returns
batches per second and CPU seconds per batch. `SENDING[way](sock, tensors)` returns a function that sends one batch,
`RECEIVING[way]` a function that receives one batch.
"""

import contextlib
import itertools
import json
import mmap
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import line
import torch

Sent = Callable[[], None]
Came = Callable[[], Any]
LENGTH = struct.Struct("<Q")


def draw(tensors: int, rows: int, seed: int = 0) -> list[torch.Tensor]:
    """Generate a batch of click data: columns of ids, then dense features, labels, and weights of samples."""
    drawn = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 1 << 40, (rows,), generator=drawn) for _ in range(tensors - 3)]
    return [*ids, *(torch.rand(shape, generator=drawn) for shape in ((rows, 13), (rows,), (rows,)))]


def buffers(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    return [memoryview(tensor.view(-1).view(torch.uint8).numpy()) for tensor in tensors]  # type: ignore[arg-type]


def laid_out(tensors: Sequence[torch.Tensor], pages: memoryview) -> list[tuple[memoryview, memoryview]]:
    """Return each tensor's bytes together with their place in shared pages."""
    ends = itertools.accumulate((tensor.nbytes for tensor in tensors), initial=0)
    places = [pages[a:b] for a, b in itertools.pairwise(ends)]
    return list(zip(buffers(tensors), places, strict=True))


def read(sock: socket.socket, into: memoryview) -> None:
    if not line.fill(sock, into):
        raise EOFError


def read_long(sock: socket.socket) -> bytearray:
    head = bytearray(LENGTH.size)
    read(sock, memoryview(head))
    body = bytearray(LENGTH.unpack(head)[0])
    read(sock, memoryview(body))
    return body


def send_all(sock: socket.socket, pieces: list[memoryview]) -> None:
    while pieces:
        sent = sock.sendmsg(pieces[:1024])
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        if sent:
            pieces[0] = pieces[0][sent:]


def send_raw(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:
    pieces = [memoryview(LENGTH.pack(sum(tensor.nbytes for tensor in tensors))), *buffers(tensors)]
    return lambda: send_all(sock, list(pieces))


def receive_raw(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    """Return a function that receives each batch into the same memory."""
    into = memoryview(bytearray(LENGTH.size + sum(tensor.nbytes for tensor in tensors)))

    def receive() -> Any:
        read(sock, into)
        return into

    return receive


def send_raw_shared(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Sent:
    """Return a function that copies a batch into shared memory and sends one byte to announce it."""
    size = sum(tensor.nbytes for tensor in tensors)
    fd = os.memfd_create("raw")
    os.ftruncate(fd, size)
    pages = memoryview(mmap.mmap(fd, size))
    sock.sendall(f"/proc/{os.getpid()}/fd/{fd}".encode().ljust(64))
    pairs = laid_out(tensors, pages)

    def send() -> None:
        for buffer, there in pairs:
            there[:] = buffer
        sock.sendall(b"!")

    return send


def receive_raw_shared(sock: socket.socket, tensors: Sequence[torch.Tensor]) -> Came:
    """Return a function that copies a batch from shared memory into the same tensors each time."""
    path = bytearray(64)
    read(sock, memoryview(path))
    fd = os.open(path.decode().strip(), os.O_RDWR)
    size = sum(tensor.nbytes for tensor in tensors)
    pages = memoryview(mmap.mmap(fd, size))
    own = [torch.empty_like(tensor) for tensor in tensors]
    pairs = laid_out(own, pages)
    bell = memoryview(bytearray(1))

    def receive() -> Any:
        read(sock, bell)
        for buffer, there in pairs:
            buffer[:] = there
        return own

    return receive


SENDING: dict[str, Callable[[socket.socket, Sequence[torch.Tensor]], Sent]] = {
    "raw sendmsg": send_raw,
    "raw shared copy": send_raw_shared,
}
RECEIVING: dict[str, Callable[[socket.socket, Sequence[torch.Tensor]], Came]] = {
    "raw sendmsg": receive_raw,
    "raw shared copy": receive_raw_shared,
}
SECRET = b"no secret between processes of one benchmark"
ASK, BATCH, TENSOR = 1, 2, 3


def serve_ours(accepted: Any) -> None:
    """Serve the ways of Springtide: each request asks for one fused message, or for one message per tensor."""
    from springtide.dataworker.transport import codec

    drawn: dict[tuple[int, int], list[torch.Tensor]] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            _, (tensors, rows, fused), _ = accepted.recv()
            batch = drawn.get((tensors, rows))
            if batch is None:
                batch = drawn[tensors, rows] = draw(tensors, rows)
            if fused:
                accepted.send(BATCH, None, codec.pack(batch))
                continue
            for tensor in batch:
                accepted.send(TENSOR, None, codec.pack(tensor))


def serve_raw(sock: socket.socket) -> None:
    """Serve a raw way: each received byte requests the next batch."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said = json.loads(read_long(sock))
    send = SENDING[said["way"]](sock, draw(said["tensors"], said["rows"]))
    with contextlib.suppress(OSError):
        while sock.recv(1):
            send()


Fetch = Callable[[], Any]
OURS = {
    "fused, shared memory": (True, True),
    "fused, TCP": (False, True),
    "one message a tensor, TCP": (False, False),
}
DIM, KNOWN_IDS = 8, 1000


def ours(address: str, way: str, tensors: int, rows: int) -> Fetch:
    from springtide.dataworker.transport import handshake

    shared, fused = OURS[way]
    connected = handshake.connect(address, SECRET, shared=shared)
    assert connected.local == shared

    def one() -> Any:
        payload = connected.recv({}).payload
        assert payload is not None
        return payload.tree()

    def fetch() -> Any:
        connected.send(ASK, [tensors, rows, fused])
        return one() if fused else [one() for _ in range(tensors)]

    return fetch


def raw(address: list[Any], way: str, tensors: int, rows: int) -> Fetch:
    sock = socket.create_connection((address[0], address[1]))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said = json.dumps({"way": way, "tensors": tensors, "rows": rows}).encode()
    sock.sendall(LENGTH.pack(len(said)) + said)
    receive = RECEIVING[way](sock, draw(tensors, rows))

    def fetch() -> Any:
        sock.sendall(b"?")
        return receive()

    return fetch


class Training:
    """A click model over the columns of ids, small enough that fetching its input takes a visible share of a step."""

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
    """Start a thread that fetches up to two batches ahead while `wanted` is set; return their queue."""
    queued: queue.Queue[Any] = queue.Queue(maxsize=2)

    def run() -> None:
        while wanted.is_set():
            queued.put(fetch())
        queued.put(None)

    threading.Thread(target=run, daemon=True).start()
    return queued


def trained(fetch: Fetch, model: Training, seconds: float) -> line.Repeated:
    """Train for some seconds while a thread fetches the next batches; return the number of steps and their time."""
    wanted = threading.Event()
    wanted.set()
    queued = ahead(fetch, wanted)
    done = line.repeat(lambda: model.step(queued.get()), seconds)
    wanted.clear()
    while queued.get() is not None:
        pass
    return done


def pin(cores: list[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def start_sender(options: dict[str, Any]) -> line.Round:
    from springtide.dataworker.transport import handshake

    torch.set_num_threads(1)
    ours, raw = handshake.FeedListener(SECRET), socket.create_server(("127.0.0.1", 0))

    def accept(take: Any, serve: Any) -> None:
        while True:
            threading.Thread(target=serve, args=(take(),), daemon=True).start()

    threading.Thread(target=accept, args=(ours.accept, serve_ours), daemon=True).start()
    threading.Thread(target=accept, args=(lambda: raw.accept()[0], serve_raw), daemon=True).start()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["what"] == "addresses":
            return {"ours": ours.address, "raw": list(raw.getsockname())}
        if request["what"] == "pin":
            pin(request["cores"])
        return {"figure": line.cpu_s()}

    return answer


def start_receiver(options: dict[str, Any]) -> line.Round:
    torch.set_num_threads(1)
    known: dict[tuple[str, int, int], Fetch] = {}
    models: dict[int, Training] = {}

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        if "cores" in request:
            pin(request["cores"])
            return {"figure": 0.0}
        way, tensors, rows = request["way"], request["tensors"], request["rows"]
        if (way, tensors, rows) not in known:
            reach = ours if way in OURS else raw
            known[way, tensors, rows] = reach(options["ours" if way in OURS else "raw"], way, tensors, rows)
        fetch = known[way, tensors, rows]
        fetch()
        if request["train"]:
            done = trained(fetch, models.setdefault(tensors, Training(tensors)), request["seconds"])
        else:
            done = line.repeat(fetch, request["seconds"])
        return {"figure": done.times / done.seconds, "cpu_s": done.cpu_s / done.times, "batches": done.times}

    return measure


def start(options: dict[str, Any]) -> line.Round:
    return start_sender(options) if options["role"] == "sender" else start_receiver(options)
