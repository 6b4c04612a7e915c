"""Run a parameter server without a master in its own process: it serves rows, saves its slots and hands slots over.

Options: index, servers, host, workers (of a bsp group); for saves also folder and megabytes (of rows). A request
without "what" returns the address and the CPU seconds; `answer` handles the requests with "what".
"""

import pathlib
import socket
import threading
import time
from typing import Any

import line
import numpy as np

SAVED_TABLE, SAVED_DIM = 16_000, 64
PIECE = 4 << 20


class Saves:
    """Saves of the server's slots, one at a time; each runs in a thread, as on a real server."""

    def __init__(self, role: Any, folder: pathlib.Path) -> None:
        from springtide.server import checkpoints

        self._saver = checkpoints.SlotSaver(role, folder, "server-0.0", run="bench")
        self._number, self._thread, self._done = 0, threading.Thread(), dict[str, Any]()

    def begin(self, request: dict[str, Any]) -> None:
        self._thread = threading.Thread(target=self._save, args=(request,))
        self._thread.start()

    def runs(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> dict[str, Any]:
        self._thread.join()
        return self._done

    def _save(self, request: dict[str, Any]) -> None:
        from springtide.rpc.messages.checkpoints import SaveOrder

        time.sleep(request["after_s"])
        order = SaveOrder(1, self._number + 1, self._number)
        self._number += 1
        began = time.perf_counter()
        said = self._saver.save(order)
        ended = time.perf_counter()
        assert said.written is not None, said.error
        self._done = {
            "figure": ended - began,
            "began": began,
            "ended": ended,
            "bytes": said.written.size,
            "cpu_s": said.cpu_s,
        }


def fill_rows(store: Any, rows: int, dim: int, *, table: int = 0) -> None:
    """Declare a table with Adagrad, and push a gradient to `rows` of its rows."""
    from springtide import _native
    from springtide.domain.model.tables import OptimSpec, TableSpec
    from springtide.embedding.lookup.table_client import native_spec

    store.declare(native_spec(TableSpec(id=table, name=f"rows {table}", dim=dim, optim=OptimSpec(kind="adagrad"))))
    step = 1 << 16
    for first in range(0, rows, step):
        keys = np.arange(first, min(rows, first + step), dtype=np.int64)
        tables = np.full(len(keys), table, dtype=np.uint16)
        grads = np.full(len(keys) * dim, 0.5, dtype=np.float32)
        store.push(tables, keys, grads, hyper=[(table, _native.Hyper(0.1, 0.0, 1))], clock=0, unique=True)


def sink() -> int:
    """Open a socket that accepts one connection, discards its bytes and then sends one byte back; return the socket's
    port.
    """
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
    """Send about `count` bytes over loopback to a `sink`; return bytes per second of the plain TCP stream."""
    piece = memoryview(bytearray(PIECE))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        began = time.perf_counter()
        for _ in range(max(1, count // PIECE)):
            peer.sendall(piece)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
        return max(1, count // PIECE) * PIECE / (time.perf_counter() - began)


def start(options: dict[str, Any]) -> line.Round:
    from springtide.server import server
    from springtide_lab.bench.core import jobs

    role = server.ServerRole(
        index=options["index"],
        slots=jobs.SLOTS,
        seed=0,
        secret=jobs.SECRET,
        workers=options.get("workers", 1),
        host=options.get("host", "127.0.0.1"),
    )
    role.set_owners(1, jobs.placement(options.get("servers", 1)).server_of_slot)
    if "megabytes" in options:
        rows = (options["megabytes"] << 20) // (2 * 4 * SAVED_DIM)  # Adagrad's state of a row is as large as the row
        fill_rows(role.store, rows, SAVED_DIM, table=SAVED_TABLE)
    address = role.start()
    saves = Saves(role, pathlib.Path(options["folder"])) if "folder" in options else None

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        match request.get("what"), saves:
            case "fill", _:
                fill_rows(role.store, request["rows"], request["dim"])
            case "give", _:
                return give(role, request["server"], request["address"])
            case "sink", _:
                return {"figure": sink()}
            case "send", _:
                return {"figure": send(request["port"], request["bytes"])}
            case "save", Saves():
                saves.begin(request)
            case "saving", Saves():
                return {"figure": int(saves.runs())}
            case "saved", Saves():
                return saves.wait()
        return {"address": address, "cpu_s": line.cpu_s()}

    return answer


def give(role: Any, server: int, address: str) -> dict[str, Any]:
    handed = role.hand_over(role.owned(), server, address)
    if handed.why or role.owned():
        raise RuntimeError(handed.why or "slots were left")
    return {"figure": handed.bytes / handed.seconds, "longest_freeze_s": handed.longest_freeze_s}
