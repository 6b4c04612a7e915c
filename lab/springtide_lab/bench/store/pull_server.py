"""The serving side of `bench pull`: springtide's server, a plain socket with np.take, or torch.distributed.rpc.

Options: kind, tables, rows, dim, keys, port, perhaps certificates (a folder, for TLS).
Rounds: {"what": "address"} -> address; {"what": "cpu"} -> CPU seconds.
"""

import resource
import socket
import threading
from collections.abc import Callable
from typing import Any

import line
import numpy as np

Round = Callable[[dict[str, Any]], dict[str, Any]]


def springtide(options: dict[str, Any]) -> str:
    from springtide import _native
    from springtide.server import server

    role = server.ServerRole(
        index=0, slots=1024, seed=0, workers=1, secret=b"bench", certificates=options.get("certificates", "")
    )
    keys = np.arange(options["rows"], dtype=np.int64)
    weights = np.ones(options["rows"] * options["dim"], dtype=np.float32)
    for table in range(options["tables"]):
        role.store.declare(_native.TableSpec(id=table, name=f"t{table}", dim=options["dim"]))
        role.store.assign(np.full(len(keys), table, dtype=np.uint16), keys, weights)
    KEPT.append(role)
    return role.start()


def raw(options: dict[str, Any]) -> str:
    """One array, one socket: indices in, rows out. A fixed request size stands for a protocol."""
    table = np.ones((options["tables"] * options["rows"], options["dim"]), dtype=np.float32)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if "certificates" in options:
            peer = line.tls_context(options["certificates"], server=True).wrap_socket(peer, server_side=True)
        index = np.empty(options["keys"], dtype=np.int64)
        out = np.empty((options["keys"], options["dim"]), dtype=np.float32)
        view = memoryview(index.data).cast("B")
        while line.fill(peer, view):
            np.take(table, index, axis=0, out=out, mode="clip")
            peer.sendall(out.data)

    threading.Thread(target=serve, daemon=True).start()
    return "{}:{}".format(*listener.getsockname())


def rpc(options: dict[str, Any]) -> str:
    import os

    import rpc_rows
    from torch.distributed import rpc

    rpc_rows.fill(options["tables"] * options["rows"], options["dim"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options["port"]))
    join: Callable[..., None] = rpc.init_rpc
    threading.Thread(target=lambda: join("server", rank=0, world_size=2), daemon=True).start()
    return f"127.0.0.1:{options['port']}"


KINDS = {"springtide": springtide, "raw": raw, "rpc": rpc}
KEPT: list[object] = []


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    address = KINDS[options["kind"]](options)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["what"] == "address":
            return {"address": address}
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"figure": used.ru_utime + used.ru_stime}

    return answer, {}


if __name__ == "__main__":
    line.serve(start)
