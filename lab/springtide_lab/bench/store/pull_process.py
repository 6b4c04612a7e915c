"""Run a server or client of `bench pull` and `bench tls`: Springtide, a socket with np.take, or torch.distributed.rpc.

Options: role (server, client), kind, tables, rows, dim, keys, certificates (for TLS); a server also takes port, a
client address and shared. Rounds of a server: {"what": "address" | "cpu"}. A round of a client takes seconds and
returns pulls per second and CPU seconds per pull.
"""

import itertools
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import line
import numpy as np

SETS = 16
"""Number of different sets of keys, used in turn."""
Pull = Callable[[int], None]
ALIVE: list[Any] = []
"""Servers and tables, kept alive until this process ends."""


def serve_springtide(options: dict[str, Any]) -> str:
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
    ALIVE.append(role)
    return role.start()


def serve_raw(options: dict[str, Any]) -> str:
    """Serve rows of one array over one socket: receive indices in requests of fixed size, and send rows."""
    table = np.ones((options["tables"] * options["rows"], options["dim"]), dtype=np.float32)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if "certificates" in options:
            peer = tls_context(options["certificates"], server=True).wrap_socket(peer, server_side=True)
        index = np.empty(options["keys"], dtype=np.int64)
        out = np.empty((options["keys"], options["dim"]), dtype=np.float32)
        view = memoryview(index.data).cast("B")
        while line.fill(peer, view):
            np.take(table, index, axis=0, out=out, mode="clip")
            peer.sendall(out.data)

    threading.Thread(target=serve, daemon=True).start()
    return "{}:{}".format(*listener.getsockname())


def serve_rpc(options: dict[str, Any]) -> str:
    import pull_process  # import this file under the name by which the second process finds its calls
    import torch

    pull_process.ALIVE.append(torch.ones(options["tables"] * options["rows"], options["dim"]))
    threading.Thread(target=join_rpc, args=("server", 0, options["port"]), daemon=True).start()
    return f"127.0.0.1:{options['port']}"


def take(index: Any) -> Any:
    """Return rows of the served table; other processes call this over torch.distributed.rpc."""
    return ALIVE[0].index_select(0, index)


def join_rpc(name: str, rank: int, port: int) -> None:
    from torch.distributed import rpc

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    join: Callable[..., None] = rpc.init_rpc
    join(name, rank=rank, world_size=2)


def tls_context(folder: str, *, server: bool) -> ssl.SSLContext:
    """Return an ssl context of Python's library that requires certificates on both sides."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    context.load_verify_locations(f"{folder}/ca.crt")
    return context


def draw(options: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Draw sets of distinct (table, key) pairs; the sets are the same for every kind."""
    rng = np.random.default_rng(0)
    each = options["keys"] // options["tables"]
    table = np.repeat(np.arange(options["tables"], dtype=np.uint16), each)
    return [
        (table, np.concatenate([rng.choice(options["rows"], each, replace=False) for _ in range(options["tables"])]))
        for _ in range(SETS)
    ]


def numbered(options: dict[str, Any]) -> list[Any]:
    """Return the same sets of rows as row numbers in one array that contains all tables."""
    return [table.astype(np.int64) * options["rows"] + keys for table, keys in draw(options)]


def pull_springtide(options: dict[str, Any]) -> Pull:
    from springtide import _native
    from springtide.embedding.lookup.table_client import TableClient

    host, _, port = options["address"].rpartition(":")
    client = TableClient.connect(
        [(host, int(port))],
        secret=b"bench",
        placement=[0] * 1024,
        shared_memory=options["shared"],
        certificates=options.get("certificates", ""),
    )
    expected = ["shm" if options["shared"] else "tcp"]
    assert client.stats()["transports"] == expected, f"connected by {client.stats()['transports']}, not {expected}"
    features = [
        _native.FeatureSpec(f"t{table}", table, options["dim"], 0, 0, False, 0, False)
        for table in range(options["tables"])
    ]
    plan = _native.StepPlan(features)
    drawn = [keys.reshape(options["tables"], -1) for _, keys in draw(options)]
    sets = [_native.StepRows(client.source, plan, [(row.ctypes.data, len(row), 1) for row in keys]) for keys in drawn]
    ALIVE.append(drawn)

    def pull(turn: int) -> None:
        rows = sets[turn % SETS]
        _native.pull([rows], 0)
        rows.wait()

    pull(0)
    assert (sets[0].rows() == 1).all(), "rows came wrong"
    return pull


def pull_raw(options: dict[str, Any]) -> Pull:
    host, _, port = options["address"].rpartition(":")
    peer = socket.create_connection((host, int(port)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if "certificates" in options:
        peer = tls_context(options["certificates"], server=False).wrap_socket(peer)
    sets = numbered(options)
    out = np.empty((options["keys"], options["dim"]), dtype=np.float32)
    view = memoryview(out.data).cast("B")

    def pull(turn: int) -> None:
        peer.sendall(sets[turn % SETS].data)
        line.fill(peer, view)

    pull(0)
    assert (out == 1).all(), "rows came wrong"
    return pull


def pull_rpc(options: dict[str, Any]) -> Pull:
    import pull_process
    import torch
    from torch.distributed import rpc

    join_rpc("client", 1, options["address"].rpartition(":")[2])
    sets = [torch.from_numpy(keys) for keys in numbered(options)]

    def pull(turn: int) -> None:
        rpc.rpc_sync("server", pull_process.take, args=(sets[turn % SETS],))

    return pull


SERVERS = {"springtide": serve_springtide, "raw": serve_raw, "rpc": serve_rpc}
CLIENTS = {"springtide": pull_springtide, "raw": pull_raw, "rpc": pull_rpc}


def start(options: dict[str, Any]) -> line.Round:
    if options["role"] == "server":
        address = SERVERS[options["kind"]](options)
        return lambda asked: {"address": address} if asked["what"] == "address" else {"figure": line.cpu_s()}
    pull, turns = CLIENTS[options["kind"]](options), itertools.count()

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        done = line.repeat(lambda: pull(next(turns)), request["seconds"])
        return {"figure": done.times / done.seconds, "cpu_s": done.cpu_s / done.times, "pulls": done.times}

    return measure
