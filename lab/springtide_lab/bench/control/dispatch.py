"""Measure how fast a master leases shards and marks them as trained, with four clients that ask without a pause.

In: our master as in every job, with its journal, at most 16 leases per call. Peer: DLRover's open-source local master,
whose client gets one shard per call. Out: `vs_dlrover`, from the shards per second of all clients. Processes:
dispatch_process.py.
"""

import concurrent.futures
import contextlib
import functools
import pathlib

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report, versions

CLIENTS = 4
MOST = 16  # leases per call
WORKERS = 1000
LEASES = 8  # shards that each simulated worker holds: about ten seconds of training


def bench(options: Options) -> report.Result:
    seconds, rounds = (0.3, 2) if options.quick else (3.0, 7)
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        masters = {"springtide": side(stack, "springtide", None, seconds)}
        with peers.optional("dlrover", notes):
            python = peers.environment_of("dlrover", ".venv-dlrover", versions.DLROVER)
            masters["dlrover"] = side(stack, "dlrover", python, seconds)
        measured = harness.alternate(masters, rounds=rounds, label="dispatch")
    return judge(measured, notes)


def side(stack: contextlib.ExitStack, kind: str, python: pathlib.Path | None, seconds: float) -> harness.Measure:
    master = stack.enter_context(
        peers.Worker("control/dispatch_process", python=python, options={"role": "master", "kind": kind})
    )
    where = master.ask("round")
    shared = {"role": "client", "kind": kind, "most": MOST} | {name: where.get(name) for name in ("address", "secret")}
    clients = [
        stack.enter_context(peers.Worker("control/dispatch_process", python=python, options={**shared, "rank": rank}))
        for rank in range(CLIENTS)
    ]
    return functools.partial(together, clients, seconds)


def together(clients: list[peers.Worker], seconds: float) -> dict[str, float]:
    """Run all clients at once; return the sums of their shards and calls per second."""
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
        rounds = list(pool.map(lambda client: client.ask("round", seconds=seconds), clients))
    return {part: sum(float(done[part]) for done in rounds) for part in ("figure", "calls")}


def judge(measured: harness.Rounds, notes: list[str]) -> report.Result:
    both = "dlrover" in measured.figures
    ratio = measured.ratio("springtide", "dlrover") if both else None
    calls = measured.part("calls")
    return report.Result(
        goals=(report.goal("vs_dlrover", ratio, target=20, why=" ".join(notes)),),
        rounds=measured.count,
        columns=("master", "shards/s, leased and completed", "calls/s"),
        rows=tuple((name, measured.median(name), calls.median(name)) for name in measured.figures),
        notes=(*notes, f"{CLIENTS} client processes; ours leases at most {MOST} shards a call, journal on"),
        details={"calls_a_second": calls.figures},
    )


def master_load(options: Options) -> report.Result:
    """Measure the master's CPU, memory and event loop delay with a thousand workers, over real sockets.

    In: our master with its journal; a process with 1,000 simulated workers (control/load_client.py). Each worker holds
    leases, sends a heartbeat every max(1 s, N/200) and replaces finished leases. Out: `loop_lag_ms`, the longest delay
    within a minute.
    """
    workers, seconds = (50, 2.0) if options.quick else (WORKERS, 60.0)
    heartbeat_s = max(1.0, workers / 200)
    spec = {"workers": workers, "heartbeat_s": heartbeat_s}
    with peers.Worker(
        "control/dispatch_process", options={"role": "master", "kind": "springtide", "spec": spec}
    ) as master:
        where = master.ask("round")
        given = {**spec, "address": where["address"], "secret": where["secret"], "leases": LEASES}
        with peers.Worker("control/load_client", options=given) as crowd:
            before = master.ask("round")
            lived = crowd.ask("round", seconds=seconds)
            after = master.ask("round")
    cpu = (after["figure"] - before["figure"]) / seconds
    rows: tuple[report.Cells, ...] = (
        ("heartbeats a second", float(lived["figure"])),
        ("CPU of the master, cores", cpu),
        ("memory of the master, MiB", after["memory"] / 2**20),
        ("longest delay of its loop, ms", 1e3 * float(lived["lag_s"])),
        ("an answer takes, median, ms", 1e3 * float(lived["p50_s"])),
        ("an answer takes, 99 of 100, ms", 1e3 * float(lived["p99_s"])),
    )
    return report.Result(
        goals=(report.goal("loop_lag_ms", 1e3 * float(lived["lag_s"]), target=100, better="lower"),),
        rounds=1,
        columns=("what", "figure"),
        rows=rows,
        notes=(f"{workers} workers, a heartbeat every {heartbeat_s:g} s, {LEASES} leases each, for {seconds:g} s",),
        details={"workers": workers, "heartbeat_s": heartbeat_s, "cpu_cores": cpu, "memory_bytes": after["memory"]},
    )
