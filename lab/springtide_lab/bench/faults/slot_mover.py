"""A server that fills its tables, hands all its slots over when asked, and can send or drain plain bytes over TCP.

Options: index, slots. Rounds: {"what": "fill", "rows", "dim"}, {"what": "give", "server", "address"},
{"what": "drain"} -> port of a socket that swallows bytes, {"what": "send", "port", "bytes"} -> bytes a second.
"""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import line

Round = Callable[[dict[str, Any]], dict[str, Any]]
PIECE = 4 << 20


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    """Serve in the background; server 0 has all slots at first."""
    from springtide.server import server
    from springtide_lab.bench.core import served_worker

    slots = options["slots"]
    role = server.ServerRole(index=options["index"], slots=slots, seed=0, workers=1, secret=served_worker.SECRET)
    role.set_owners(1, [0] * slots)
    address = role.start()

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        what = asked.get("what", "address")
        if what == "fill":
            fill(role.store, asked["rows"], asked["dim"])
        elif what == "give":
            handed = role.hand_over(role.owned(), asked["server"], asked["address"])
            if handed.why or role.owned():
                raise RuntimeError(handed.why or "slots were left")
            return {
                "figure": handed.bytes / handed.seconds,
                "bytes": handed.bytes,
                "seconds": handed.seconds,
                "longest_freeze_s": handed.longest_freeze_s,
            }
        elif what == "drain":
            return {"figure": drain()}
        elif what == "send":
            return {"figure": send(asked["port"], asked["bytes"])}
        return {"figure": role.store.rows(), "address": address, "bytes": role.store.resident_bytes()}

    return answer, {}


def fill(store: Any, rows: int, dim: int) -> None:
    import numpy as np

    from springtide import _native
    from springtide.domain.model.tables import OptimSpec, TableSpec
    from springtide.embedding.lookup.specs import native_spec

    store.declare(native_spec(TableSpec(id=0, name="rows", dim=dim, optim=OptimSpec(kind="adagrad"))))
    step = 1 << 16
    for first in range(0, rows, step):
        keys = np.arange(first, min(rows, first + step), dtype=np.int64)
        tables = np.zeros(len(keys), dtype=np.uint16)
        grads = np.full(len(keys) * dim, 0.5, dtype=np.float32)
        store.push(tables, keys, grads, hyper=[(0, _native.Hyper(0.1, 0.0, 1))], clock=0, unique=True)


def drain() -> int:
    """A socket that swallows one connection's bytes and says so at their end; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def swallow() -> None:
        with listener, listener.accept()[0] as peer:
            room = bytearray(PIECE)
            while peer.recv_into(room):
                pass
            peer.sendall(b"!")

    threading.Thread(target=swallow, daemon=True).start()
    return int(listener.getsockname()[1])


def send(port: int, count: int) -> float:
    """Bytes a second of one plain TCP stream over loopback: written, read, and nothing else."""
    piece = memoryview(bytearray(PIECE))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        began = time.perf_counter()
        for _ in range(max(1, count // PIECE)):
            peer.sendall(piece)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
        return max(1, count // PIECE) * PIECE / (time.perf_counter() - began)


if __name__ == "__main__":
    line.serve(start)
