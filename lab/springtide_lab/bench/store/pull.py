"""How fast rows come over the wire: 13,312 rows of dim 16 a pull, one outstanding, server and client in two processes.

In: the native server and client, over TCP and shared memory. Peers: a plain Python socket with np.take, and
torch.distributed.rpc. Out: `vs_raw_socket`, `vs_torch_rpc`, `shm_cpu_vs_tcp` (CPU seconds of both processes a pull),
`eight_clients_vs_one` (all together, TCP). The two sides: store/pull_server.py, store/pull_client.py.
"""

import concurrent.futures
import contextlib
import functools
import socket
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report

KEYS = 26 * 512
SIZES: dict[str, Any] = {"tables": 26, "rows": 100_000, "dim": 16, "keys": KEYS}
CLIENTS = 8


def bench(options: Options) -> report.Result:
    sizes = SIZES | ({"rows": 2000} if options.quick else {})
    seconds, rounds = (0.1, 2) if options.quick else (1.0, 12)
    with contextlib.ExitStack() as stack:
        kinds = {kind: serve(stack, kind, sizes) for kind in ("springtide", "raw", "rpc")}
        ours, address = kinds["springtide"]
        ways = {
            "tcp": (ours, connect(stack, "springtide", address, sizes, shared=False)),
            "shm": (ours, connect(stack, "springtide", address, sizes, shared=True)),
            "raw socket": (kinds["raw"][0], connect(stack, "raw", kinds["raw"][1], sizes)),
            "torch rpc": (kinds["rpc"][0], connect(stack, "rpc", kinds["rpc"][1], sizes)),
        }
        crowd = [ways["tcp"][1], *(connect(stack, "springtide", address, sizes) for _ in range(CLIENTS - 1))]
        cpu: dict[str, list[float]] = {name: [] for name in (*ways, "8 clients")}
        contestants = [
            harness.Contestant(name=name, measure=functools.partial(one, *way, seconds, cpu[name]))
            for name, way in ways.items()
        ]
        many = functools.partial(together, ours, crowd, seconds, cpu["8 clients"])
        contestants.append(harness.Contestant(name="8 clients", measure=many))
        measured = harness.alternate(contestants, rounds=rounds)
    return judge(measured, cpu)


def serve(stack: contextlib.ExitStack, kind: str, sizes: dict[str, Any]) -> tuple[peers.Worker, str]:
    server = stack.enter_context(
        peers.Worker("store/pull_server", options={"kind": kind, "port": free_port(), **sizes})
    )
    return server, server.ask("round", what="address")["address"]


def connect(
    stack: contextlib.ExitStack, kind: str, address: str, sizes: dict[str, Any], *, shared: bool = False
) -> peers.Worker:
    options = {"kind": kind, "address": address, "shared": shared, **sizes}
    return stack.enter_context(peers.Worker("store/pull_client", options=options))


def one(server: peers.Worker, client: peers.Worker, seconds: float, cpu: list[float]) -> float:
    """Pulls a second of one client; CPU seconds a pull of both processes go to `cpu`."""
    before = server.figure(what="cpu")
    round = client.ask("round", seconds=seconds)
    after = server.figure(what="cpu")
    cpu.append((after - before) / round["pulls"] + round["cpu_s"])
    return float(round["figure"])


def together(server: peers.Worker, clients: list[peers.Worker], seconds: float, cpu: list[float]) -> float:
    """Pulls a second of all clients at once."""
    before = server.figure(what="cpu")
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
        rounds = list(pool.map(lambda client: client.ask("round", seconds=seconds), clients))
    pulls = sum(round["pulls"] for round in rounds)
    used = sum(round["cpu_s"] * round["pulls"] for round in rounds)
    cpu.append((server.figure(what="cpu") - before + used) / pulls)
    return float(sum(round["figure"] for round in rounds))


def judge(measured: harness.Rounds, cpu: dict[str, list[float]]) -> report.Result:
    spent = harness.Rounds(figures={name: figures[-measured.count :] for name, figures in cpu.items()})
    goals = (
        report.goal("vs_raw_socket", measured.ratio("tcp", "raw socket"), target=1.2),
        report.goal("vs_torch_rpc", measured.ratio("tcp", "torch rpc"), target=3),
        report.goal("shm_cpu_vs_tcp", spent.ratio("shm", "tcp"), target=0.8, better="lower"),
        report.goal("eight_clients_vs_one", measured.ratio("8 clients", "tcp"), target=1),
    )
    rows = tuple((name, measured.median(name), 1e6 * spent.median(name)) for name in measured.figures)
    return report.Result(
        goals=goals,
        rounds=measured.count,
        columns=("way", "pulls/s", "CPU µs a pull, both sides"),
        rows=rows,
        notes=(f"{KEYS:,} rows of dim {SIZES['dim']}, one pull outstanding a client",),
    )


def free_port() -> int:
    """A port that nobody has at this moment; for torch's rendezvous, which cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
