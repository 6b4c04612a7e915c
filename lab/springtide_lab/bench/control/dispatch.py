"""How fast a master hands out shards and books them as trained: four client processes, each as fast as it is answered.

In: our master as every job has it, journal on, at most 16 leases a call. Peer: DLRover's open-source local master, in
an environment of its own, one shard a call as its client does. Out: `vs_dlrover`, shards a second of all clients; ours
a call as well. The two sides: control/dispatch_master.py, control/dispatch_client.py.
"""

import concurrent.futures
import contextlib
import functools
import pathlib
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report, versions

CLIENTS = 4
MOST = 16  # leases a call


def bench(options: Options) -> report.Result:
    seconds, rounds = (0.3, 2) if options.quick else (3.0, 7)
    notes: list[str] = []
    calls: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        contestants = [side(stack, "springtide", None, seconds, calls)]
        try:
            python = peers.environment_of("dlrover", ".venv-dlrover", versions.DLROVER)
            contestants.append(side(stack, "dlrover", python, seconds, calls))
        except peers.PeerFailed as error:
            notes.append(f"dlrover was not measured: {error}")
            harness.say(notes[-1])
        measured = harness.alternate(contestants, rounds=rounds, label="dispatch")
    return judge(measured, calls, notes)


def side(
    stack: contextlib.ExitStack, kind: str, python: pathlib.Path | None, seconds: float, calls: dict[str, list[float]]
) -> harness.Contestant:
    master = stack.enter_context(peers.Worker("control/dispatch_master", python=python, options={"kind": kind}))
    where = master.ask("round")
    shared: dict[str, Any] = {"kind": kind, "most": MOST, "address": where["address"], "secret": where.get("secret")}
    clients = [
        stack.enter_context(peers.Worker("control/dispatch_client", python=python, options={**shared, "rank": rank}))
        for rank in range(CLIENTS)
    ]
    measure = functools.partial(together, clients, seconds, calls.setdefault(kind, []))
    return harness.Contestant(name=kind, measure=measure)


def together(clients: list[peers.Worker], seconds: float, calls: list[float]) -> float:
    """Shards a second of all clients at once; calls a second go to `calls`."""
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
        rounds = list(pool.map(lambda client: client.ask("round", seconds=seconds), clients))
    calls.append(sum(float(one["calls"]) for one in rounds))
    return sum(float(one["figure"]) for one in rounds)


def judge(measured: harness.Rounds, calls: dict[str, list[float]], notes: list[str]) -> report.Result:
    both = "dlrover" in measured.figures
    ratio = measured.ratio("springtide", "dlrover") if both else None
    rows: list[tuple[str | float | None, ...]] = []
    for name in measured.figures:
        a_call = harness.Rounds(figures={name: calls[name][-measured.count :]})
        rows.append((name, measured.median(name), a_call.median(name)))
    return report.Result(
        goals=(report.goal("vs_dlrover", ratio, target=20, why=" ".join(notes)),),
        rounds=measured.count,
        columns=("master", "shards/s, leased and completed", "calls/s"),
        rows=tuple(rows),
        notes=(*notes, f"{CLIENTS} client processes; ours leases at most {MOST} shards a call, journal on"),
        details={"calls_a_second": calls},
    )
