"""What it costs that no batch is applied twice: one loop whose pushes name their batches in every other round.

WideDeep, batch 512, one server process and one worker process, the same two for both sides. The cost of a step is the
CPU time of both processes and the time the worker was blocked. Slots begin with a history of `HISTORY` ranges that do
not join, as many as fifty workers have under way. Out: `cost_vs_identity_off`. The loop:
train/train_loop.py.
"""

import contextlib
import functools
import statistics
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report, served_worker
from springtide_lab.bench.train import train

HISTORY = 200
PARTS = ("worker CPU", "server CPU", "blocked")
ON, OFF = "identities on", "identities off"

Costs = dict[str, list[dict[str, float]]]


def bench(options: Options) -> report.Result:
    sizes = train.SIZES | ({"rows": 2_000, "batches": 8} if options.quick else {})
    seconds, rounds = (0.3, 2) if options.quick else (0.75, 80)
    costs: Costs = {ON: [], OFF: []}
    with contextlib.ExitStack() as stack:
        (server,) = served_worker.start(stack)
        loop = {
            **sizes,
            "kind": "springtide",
            "model": "widedeep",
            "threads": 1,
            "addresses": [server.ask("round")["address"]],
            "history": HISTORY,
        }
        worker = stack.enter_context(peers.Worker("train/train_loop", options=loop))
        contestants = [
            harness.Contestant(name=name, measure=functools.partial(cost, server, worker, name, seconds, costs[name]))
            for name in (ON, OFF)
        ]
        measured = harness.alternate(contestants, rounds=rounds)
        remembered = server.ask("round")
    return judge(measured, costs, remembered)


def cost(server: peers.Worker, worker: peers.Worker, name: str, seconds: float, costs: list[dict[str, float]]) -> float:
    """Seconds of CPU and of waiting that a step of this round cost; the parts go to `costs`."""
    before = server.ask("round")["cpu_s"]
    answer = worker.ask("round", seconds=seconds, identities=name == ON)
    used = server.ask("round")["cpu_s"] - before
    spent = answer["spent"]
    seconds_of = dict(zip(PARTS, (answer["cpu_s"], used, spent["pull_wait_s"] + spent["push_wait_s"]), strict=True))
    costs.append({part: value / answer["steps"] for part, value in seconds_of.items()})
    return sum(costs[-1].values())


def judge(measured: harness.Rounds, costs: Costs, remembered: dict[str, Any]) -> report.Result:
    ratio = measured.ratio(ON, OFF)
    rows: list[tuple[str | float | None, ...]] = []
    for part in (*PARTS, "together"):
        medians = [
            1e3 * statistics.median(sum(one.values()) if part == "together" else one[part] for one in costs[name][1:])
            for name in (ON, OFF)
        ]
        rows.append((f"{part}, ms a step", *medians))
    kept = f"{remembered['ranges']:,} ranges in {remembered['sets']} sets, {remembered['bytes'] / 2**20:.1f} MiB"
    return report.Result(
        goals=(report.goal("cost_vs_identity_off", ratio, target=1.03, better="lower"),),
        rounds=measured.count,
        columns=("what", ON, OFF),
        rows=tuple(rows),
        notes=(f"at the end the server's slots remember {kept}",),
        details={"remembered": {name: remembered[name] for name in ("sets", "ranges", "bytes")}},
    )
