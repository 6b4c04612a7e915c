"""Measure pulls from a server in another process: 13,312 rows of dim 16 per pull, one pull outstanding.

In: the native server and client over TCP and shared memory. Peers: a Python socket with np.take, torch.distributed.rpc.
Out: `vs_raw_socket`, `vs_torch_rpc`, `shm_cpu_vs_tcp`, `eight_clients_vs_one`; `tls` is a benchmark of its own.
Processes: pull_process.py.
"""

import concurrent.futures
import contextlib
import datetime
import functools
import socket
from collections.abc import Sequence
from typing import Any

from springtide.platforms.agent import credentials
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report

KEYS = 26 * 512
SIZES: dict[str, Any] = {"tables": 26, "rows": 100_000, "dim": 16, "keys": KEYS}
CLIENTS = 8
Process = tuple[peers.Worker, str]


def sizes_of(options: Options) -> tuple[dict[str, Any], float, int]:
    """Return the sizes, the seconds of a round and the number of rounds."""
    return (SIZES | {"rows": 2000}, 0.1, 2) if options.quick else (SIZES, 1.0, 12)


def bench(options: Options) -> report.Result:
    sizes, seconds, rounds = sizes_of(options)
    with contextlib.ExitStack() as stack:
        servers = {kind: serve(stack, kind, sizes) for kind in ("springtide", "raw", "rpc")}
        ours, address = servers["springtide"]
        tcp = connect(stack, "springtide", address, sizes)
        clients = {
            "tcp": (ours, [tcp]),
            "shm": (ours, [connect(stack, "springtide", address, sizes, shared=True)]),
            "raw socket": (servers["raw"][0], [connect(stack, "raw", servers["raw"][1], sizes)]),
            "torch rpc": (servers["rpc"][0], [connect(stack, "rpc", servers["rpc"][1], sizes)]),
            "8 clients": (ours, [tcp, *(connect(stack, "springtide", address, sizes) for _ in range(CLIENTS - 1))]),
        }
        ways = {name: functools.partial(together, *way, seconds) for name, way in clients.items()}
        measured = harness.alternate(ways, rounds=rounds)
    goals = (
        report.goal("vs_raw_socket", measured.ratio("tcp", "raw socket"), target=1.2),
        report.goal("vs_torch_rpc", measured.ratio("tcp", "torch rpc"), target=3),
        report.goal("shm_cpu_vs_tcp", measured.part("cpu_s").ratio("shm", "tcp"), target=0.8, better="lower"),
        report.goal("eight_clients_vs_one", measured.ratio("8 clients", "tcp"), target=1),
    )
    return result(measured, goals, (f"{KEYS:,} rows of dim {SIZES['dim']}, one pull outstanding a client",))


def tls(options: Options) -> report.Result:
    """Measure the cost of TLS for the pulls of `bench pull`: plain TCP, mutual TLS, and for comparison Python's
    own TLS.

    Out: `tls_vs_tcp` (pulls per second), `tls_vs_python_tls` (the same rows by a Python socket with np.take and ssl).
    """
    sizes, seconds, rounds = sizes_of(options)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        credentials.lay_out(credentials.make("bench", at=datetime.datetime.now(datetime.UTC)), folder)
        ways = {}
        for name, kind, secured in (
            ("tcp", "springtide", False),
            ("tls", "springtide", True),
            ("python, tcp", "raw", False),
            ("python, tls", "raw", True),
        ):
            own, theirs = ({"certificates": str(folder / role)} if secured else {} for role in ("server", "worker"))
            server, address = serve(stack, kind, sizes | own)
            client = connect(stack, kind, address, sizes | theirs)
            ways[name] = functools.partial(together, server, [client], seconds)
        measured = harness.alternate(ways, rounds=rounds)
    spent = measured.part("cpu_s")
    more = spent.median("tls") - spent.median("tcp")
    megabytes = KEYS * (SIZES["dim"] * 4 + 10) / 1e6
    goals = (
        report.goal("tls_vs_tcp", measured.ratio("tls", "tcp"), target=0.5),
        report.goal("tls_vs_python_tls", measured.ratio("tls", "python, tls"), target=1),
    )
    notes = (
        f"{KEYS:,} rows of dim {SIZES['dim']}, one pull outstanding",
        f"TLS costs {1e6 * more / megabytes:.0f} µs of CPU a megabyte, both sides together",
    )
    return result(measured, goals, notes)


def serve(stack: contextlib.ExitStack, kind: str, sizes: dict[str, Any]) -> Process:
    options = {"role": "server", "kind": kind, "port": free_port(), **sizes}
    server = stack.enter_context(peers.Worker("store/pull_process", options=options))
    return server, server.ask("round", what="address")["address"]


def connect(
    stack: contextlib.ExitStack, kind: str, address: str, sizes: dict[str, Any], *, shared: bool = False
) -> peers.Worker:
    options = {"role": "client", "kind": kind, "address": address, "shared": shared, **sizes}
    return stack.enter_context(peers.Worker("store/pull_process", options=options))


def together(server: peers.Worker, clients: Sequence[peers.Worker], seconds: float) -> dict[str, float]:
    """Let all clients pull at once; return their pulls per second, and the CPU seconds of all processes per pull."""
    before = server.figure(what="cpu")
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
        rounds = list(pool.map(lambda client: client.ask("round", seconds=seconds), clients))
    pulls = sum(done["pulls"] for done in rounds)
    used = sum(done["cpu_s"] * done["pulls"] for done in rounds) + server.figure(what="cpu") - before
    return {"figure": sum(done["figure"] for done in rounds), "cpu_s": used / pulls}


def result(measured: harness.Rounds, goals: tuple[report.Goal, ...], notes: tuple[str, ...]) -> report.Result:
    spent = measured.part("cpu_s")
    return report.Result(
        goals=goals,
        rounds=measured.count,
        columns=("way", "pulls/s", "CPU µs a pull, both sides"),
        rows=tuple((name, measured.median(name), 1e6 * spent.median(name)) for name in measured.figures),
        notes=notes,
    )


def free_port() -> int:
    """Return a port that is free now, for torch's rendezvous, which cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
