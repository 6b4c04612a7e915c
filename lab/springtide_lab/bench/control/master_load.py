"""What a thousand workers cost their master: CPU, memory, and how late its event loop gets, over real sockets.

In: our master as every job has it, journal on; a process with 1,000 simulated workers that hold leases, beat every
max(1 s, N/200) and lease again what they have ended; an agent that looks ten times a second. Out: `loop_lag_ms`, the
longest delay within a minute. The two sides: control/dispatch_master.py, control/load_client.py.
"""

from springtide_lab.bench import Options
from springtide_lab.bench.core import peers, report

WORKERS = 1000
LEASES = 8  # in a worker's hands: some ten seconds of shards


def bench(options: Options) -> report.Result:
    """Everyone joins; then a minute of ordinary life."""
    workers, seconds = (50, 2.0) if options.quick else (WORKERS, 60.0)
    heartbeat_s = max(1.0, workers / 200)
    spec = {"workers": workers, "heartbeat_s": heartbeat_s}
    with peers.Worker("control/dispatch_master", options={"kind": "springtide", "spec": spec}) as master:
        where = master.ask("round")
        shared = {"address": where["address"], "secret": where["secret"], "leases": LEASES}
        told = {"workers": workers, "heartbeat_s": heartbeat_s, **shared}
        with peers.Worker("control/load_client", options=told) as crowd:
            before = master.ask("round")
            lived = crowd.ask("round", seconds=seconds)
            after = master.ask("round")
    cpu = (after["figure"] - before["figure"]) / seconds
    rows: tuple[tuple[str | float | None, ...], ...] = (
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
