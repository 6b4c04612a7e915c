"""The sending side of `bench transfer`: a batch of tensors, again and again, whenever the other side asks for one.

Options: none. Rounds: {"what": "addresses"} -> ours, raw; {"what": "cpu"} -> CPU seconds; {"what": "pin", "cores"}.
A caller names its way and the sizes in its first words.
"""

import contextlib
import json
import os
import resource
import socket
import threading
from typing import Any

import line
import torch
import transfer_ways

SECRET = b"no secret between processes of one benchmark"
ASK, BATCH, TENSOR = 1, 2, 3


def serve_ours(accepted: Any) -> None:
    """Fused, or one message a tensor: as the request says."""
    from springtide.dataworker.transport import codec

    drawn: dict[tuple[int, int], list[torch.Tensor]] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            _, (tensors, rows, fused), _ = accepted.recv()
            batch = drawn.get((tensors, rows))
            if batch is None:
                batch = drawn[tensors, rows] = transfer_ways.draw(tensors, rows)
            if fused:
                accepted.send(BATCH, None, codec.pack(batch))
                continue
            for tensor in batch:
                accepted.send(TENSOR, None, codec.pack(tensor))


def serve_raw(sock: socket.socket) -> None:
    """One of the ways that are not ours: a byte asks for the next batch."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said = json.loads(transfer_ways.read_long(sock))
    send = transfer_ways.SENDING[said["way"]](sock, transfer_ways.draw(said["tensors"], said["rows"]))
    with contextlib.suppress(OSError):
        while sock.recv(1):
            send()


def start(options: dict[str, Any]) -> tuple[line.Round, dict[str, str]]:
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
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), request["cores"])
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"figure": used.ru_utime + used.ru_stime}

    return answer, {}


if __name__ == "__main__":
    line.serve(start)
