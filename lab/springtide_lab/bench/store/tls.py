"""What TLS costs: the pulls of `bench pull`, over TCP in the clear and by mutual TLS, and Python's own TLS as a peer.

In: certificates of a job, made for this run. Out: `tls_vs_tcp` (pulls a second), `tls_vs_python_tls` (the same rows by
a Python socket with np.take and the ssl module). The two sides: store/pull_server.py, store/pull_client.py.
"""

import contextlib
import datetime
import functools
import pathlib
import tempfile
from typing import Any

from springtide.platforms.agent import credentials
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report
from springtide_lab.bench.store import pull

Sides = tuple[peers.Worker, peers.Worker]


def bench(options: Options) -> report.Result:
    sizes = pull.SIZES | ({"rows": 2000} if options.quick else {})
    seconds, rounds = (0.1, 2) if options.quick else (1.0, 12)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        credentials.lay_out(credentials.make("bench", at=datetime.datetime.now(datetime.UTC)), folder)
        ways = {
            "tcp": way(stack, "springtide", sizes, None),
            "tls": way(stack, "springtide", sizes, folder),
            "python, tcp": way(stack, "raw", sizes, None),
            "python, tls": way(stack, "raw", sizes, folder),
        }
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        contestants = [
            harness.Contestant(name=name, measure=functools.partial(pull.one, server, client, seconds, cpu[name]))
            for name, (server, client) in ways.items()
        ]
        measured = harness.alternate(contestants, rounds=rounds)
    return judge(measured, cpu)


def way(stack: contextlib.ExitStack, kind: str, sizes: dict[str, Any], folder: pathlib.Path | None) -> Sides:
    """A serving process and a client of it, each with its own certificate where there are some."""
    server, client = (
        {} if folder is None else {"certificates": str(credentials.folder_of(folder, role))}
        for role in ("server", "worker")
    )
    serving, address = pull.serve(stack, kind, sizes | server)
    return serving, pull.connect(stack, kind, address, sizes | client)


def judge(measured: harness.Rounds, cpu: dict[str, list[float]]) -> report.Result:
    spent = harness.Rounds(figures={name: figures[-measured.count :] for name, figures in cpu.items()})
    goals = (
        report.goal("tls_vs_tcp", measured.ratio("tls", "tcp"), target=0.5),
        report.goal("tls_vs_python_tls", measured.ratio("tls", "python, tls"), target=1),
    )
    rows = tuple((name, measured.median(name), 1e6 * spent.median(name)) for name in measured.figures)
    more = spent.median("tls") - spent.median("tcp")
    megabytes = pull.KEYS * (pull.SIZES["dim"] * 4 + 10) / 1e6
    return report.Result(
        goals=goals,
        rounds=measured.count,
        columns=("way", "pulls/s", "CPU µs a pull, both sides"),
        rows=rows,
        notes=(
            f"{pull.KEYS:,} rows of dim {pull.SIZES['dim']}, one pull outstanding",
            f"TLS costs {1e6 * more / megabytes:.0f} µs of CPU a megabyte, both sides together",
        ),
    )
