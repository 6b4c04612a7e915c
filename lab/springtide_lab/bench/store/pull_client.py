"""The asking side of `bench pull`: one request outstanding, fresh keys each time, rows in this process's memory.

Options: kind, address, tables, rows, dim, keys, shared, perhaps certificates (a folder, for TLS).
A round: seconds -> pulls a second, CPU seconds a pull.
"""

import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import line
import numpy as np

SETS = 16
"""Different sets of keys, taken in turn."""
Round = Callable[[dict[str, Any]], dict[str, Any]]
Pull = Callable[[int], None]


def draw(options: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Sets of (table, key) pairs, no pair twice in a set, the same for every kind."""
    rng = np.random.default_rng(0)
    each = options["keys"] // options["tables"]
    table = np.repeat(np.arange(options["tables"], dtype=np.uint16), each)
    return [
        (table, np.concatenate([rng.choice(options["rows"], each, replace=False) for _ in range(options["tables"])]))
        for _ in range(SETS)
    ]


def springtide(options: dict[str, Any]) -> Pull:
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
    wanted = ["shm" if options["shared"] else "tcp"]
    assert client.stats()["transports"] == wanted, f"connected by {client.stats()['transports']}, wanted {wanted}"
    features = [
        _native.FeatureSpec(f"t{table}", table, options["dim"], 0, 0, False, 0, False)
        for table in range(options["tables"])
    ]
    plan = _native.StepPlan(features)
    drawn = [keys.reshape(options["tables"], -1) for _, keys in draw(options)]
    sets = [_native.StepRows(client.source, plan, [(row.ctypes.data, len(row), 1) for row in keys]) for keys in drawn]

    def pull(turn: int) -> None:
        rows = sets[turn % SETS]
        _native.pull([rows], 0)
        rows.wait()

    pull(0)
    assert (sets[0].rows() == 1).all(), "rows came wrong"
    return pull


def raw(options: dict[str, Any]) -> Pull:
    host, _, port = options["address"].rpartition(":")
    peer = socket.create_connection((host, int(port)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if "certificates" in options:
        peer = line.tls_context(options["certificates"], server=False).wrap_socket(peer)
    sets = [table.astype(np.int64) * options["rows"] + keys for table, keys in draw(options)]
    out = np.empty((options["keys"], options["dim"]), dtype=np.float32)
    view = memoryview(out.data).cast("B")

    def pull(turn: int) -> None:
        peer.sendall(sets[turn % SETS].data)
        line.fill(peer, view)

    pull(0)
    assert (out == 1).all(), "rows came wrong"
    return pull


def rpc(options: dict[str, Any]) -> Pull:
    import os

    import rpc_rows
    import torch
    from torch.distributed import rpc

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=options["address"].rpartition(":")[2])
    join: Callable[..., None] = rpc.init_rpc
    join("client", rank=1, world_size=2)
    sets = [torch.from_numpy(table.astype(np.int64) * options["rows"] + keys) for table, keys in draw(options)]

    def pull(turn: int) -> None:
        rpc.rpc_sync("server", rpc_rows.take, args=(sets[turn % SETS],))

    return pull


KINDS = {"springtide": springtide, "raw": raw, "rpc": rpc}


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    """Connect; a round pulls for some seconds."""
    pull = KINDS[options["kind"]](options)
    turn = 0

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal turn
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        times = 0
        while (took := time.perf_counter() - began) < request["seconds"] or not times:
            pull(turn)
            turn += 1
            times += 1
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"figure": times / took, "cpu_s": cpu / times, "pulls": times}

    return measure, {}


if __name__ == "__main__":
    line.serve(start)
