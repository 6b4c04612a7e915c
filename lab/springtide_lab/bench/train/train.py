"""A whole training loop: WideDeep and DLRM, batch 512, one server and one worker, against the same loop without us.

Peers: plain PyTorch with sparse EmbeddingBags, and TorchRec for DLRM. Every side may use both cores. Out:
`vs_pytorch_widedeep`, `vs_pytorch_dlrm`, `vs_torchrec`, `wait_share`. The loops: train_loop.py, train_torchrec.py.
"""

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import growth, harness, jobs, peers, report
from springtide_lab.bench.store import pull

TABLES, BATCH = 26, 512
HISTORY = 200
COSTS = ("worker CPU", "server CPU", "blocked")
ON, OFF = "identities on", "identities off"
SIZES: dict[str, Any] = {"rows": 100_000, "dim": 16, "batch": BATCH, "batches": 256, "lr": 0.01}
LAYERS = {"bottom": [128, 64], "top": [256, 128]}  # the zoo's own widths, for the model that TorchRec cannot take over
THREADS = (1, 2)  # a second thread does not always help, us or a peer: for each the better one counts
PARTS = ("data", "pull_wait", "forward", "backward", "push_wait", "update", "synchronization", "lookup")


def bench(options: Options) -> report.Result:
    sizes = SIZES | ({"rows": 2_000, "batches": 8} if options.quick else {})
    seconds, rounds = (0.3, 2) if options.quick else (3.0, 9)
    widths = THREADS[:1] if options.quick else THREADS
    measured: dict[str, harness.Rounds] = {}
    notes: list[str] = []
    versions: dict[str, str] = {}
    for model in ("widedeep", "dlrm"):
        with contextlib.ExitStack() as stack:
            sides: dict[str, harness.Measure] = {}
            for threads in widths:
                sides[named("springtide", threads)] = ours(stack, model, sizes, seconds, threads)
                sides[named("pytorch", threads)] = plain(stack, model, sizes, seconds, threads)
            if model == "dlrm":
                sides |= torchrec(stack, sizes, seconds, widths, notes, versions)
            measured[model] = harness.alternate(sides, rounds=rounds, label=model)
    return judge(measured, notes, versions)


def ours(
    stack: contextlib.ExitStack, model: str, sizes: dict[str, Any], seconds: float, threads: int
) -> harness.Measure:
    """A server process and a worker process; the server's threads are those it takes by itself."""
    (server,) = jobs.start(stack)
    address = server.ask("round", what="address")["address"]
    loop = {**sizes, "kind": "springtide", "model": model, "threads": threads, "addresses": [address]}
    worker = stack.enter_context(peers.Worker("train/train_loop", options=loop))
    return functools.partial(one_round, worker, seconds)


def one_round(worker: peers.Worker, seconds: float) -> dict[str, float]:
    """Samples a second of ours, and where the time went, in seconds a step."""
    answer = worker.ask("round", seconds=seconds)
    parts = {part: answer["spent"][f"{part}_s"] / answer["spent"]["steps"] for part in PARTS}
    return {"figure": float(answer["figure"]), "step": BATCH / answer["figure"], **parts}


def plain(
    stack: contextlib.ExitStack, model: str, sizes: dict[str, Any], seconds: float, threads: int
) -> harness.Measure:
    loop = {**sizes, "kind": "pytorch", "model": model, "threads": threads}
    worker = stack.enter_context(peers.Worker("train/train_loop", options=loop))
    return functools.partial(worker.figure, seconds=seconds)


def named(side: str, threads: int) -> str:
    return f"{side}, {threads} thread{'s' if threads > 1 else ''}"


def our_best(rounds: harness.Rounds) -> int:
    """The thread count that suits our worker best, as `against` finds a peer's."""
    measured = [threads for threads in THREADS if named("springtide", threads) in rounds.figures]
    return max(measured, key=lambda threads: rounds.median(named("springtide", threads)))


def against(rounds: harness.Rounds, peer: str) -> harness.Ratio | None:
    """Ours over a peer, each at the thread count that suits it best; None when it was not measured."""
    ours, names = named("springtide", our_best(rounds)), [named(peer, threads) for threads in THREADS]
    return report.worst([rounds.ratio(ours, name) for name in names if name in rounds.figures])


def torchrec(
    stack: contextlib.ExitStack,
    sizes: dict[str, Any],
    seconds: float,
    widths: Sequence[int],
    notes: list[str],
    versions: dict[str, str],
) -> dict[str, harness.Measure]:
    drawn = growth.batches(7, batches=sizes["batches"], tables=TABLES, rows=sizes["rows"], batch=BATCH)
    file = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ids"
    growth.write(drawn, file)
    loop = {**sizes, **LAYERS, "file": str(file), "shape": drawn.shape}
    sides: dict[str, harness.Measure] = {}
    with peers.optional("torchrec", notes):
        python = peers.environment()
        for threads in widths:
            options = {**loop, "threads": threads, "port": pull.free_port()}
            worker = stack.enter_context(peers.Worker("train/train_torchrec", python=python, options=options))
            versions.update(worker.versions)
            sides[named("torchrec", threads)] = functools.partial(worker.figure, seconds=seconds)
    return sides


def judge(measured: dict[str, harness.Rounds], notes: list[str], versions: dict[str, str]) -> report.Result:
    steps = {
        model: {part: rounds.part(part).median(named("springtide", our_best(rounds))) for part in (*PARTS, "step")}
        for model, rounds in measured.items()
    }
    waits = [(parts["pull_wait"] + parts["push_wait"]) / parts["step"] for parts in steps.values()]
    dlrm = measured["dlrm"]
    goals = (
        report.goal("vs_pytorch_widedeep", against(measured["widedeep"], "pytorch"), target=1),
        report.goal("vs_pytorch_dlrm", against(dlrm, "pytorch"), target=1),
        report.goal("vs_torchrec", against(dlrm, "torchrec"), target=1, why=" ".join(notes)),
        report.goal("wait_share", max(waits), target=0.15, better="lower"),
    )
    rows: list[report.Cells] = []
    for model, rounds in measured.items():
        rows += [(f"{model}: {name}, samples/s", rounds.median(name)) for name in rounds.figures]
        rows += [(f"{model}: {part.replace('_', ' ')}, ms", 1e3 * steps[model][part]) for part in ("step", *PARTS)]
    return report.Result(
        goals=goals,
        rounds=dlrm.count,
        columns=("what", "median"),
        rows=tuple(rows),
        versions=versions,
        notes=(*notes, "each side has 1 or 2 threads, what suits it best; ours has a server beside it"),
        details={"seconds_a_step": steps},
    )


def exactly_once(options: Options) -> report.Result:
    """What it costs that no batch is applied twice: one loop whose pushes name their batches in every other round.

    WideDeep, batch 512, the same server process and worker process for both sides. The cost of a step is the CPU time
    of both and the time the worker was blocked. Slots begin with a history of `HISTORY` ranges that do not join, as
    many as fifty workers have under way. Out: `cost_vs_identity_off`.
    """
    sizes = SIZES | ({"rows": 2_000, "batches": 8} if options.quick else {})
    seconds, rounds = (0.3, 2) if options.quick else (0.75, 80)
    with contextlib.ExitStack() as stack:
        (server,) = jobs.start(stack)
        loop = {
            **sizes,
            "kind": "springtide",
            "model": "widedeep",
            "threads": 1,
            "addresses": [server.ask("round")["address"]],
            "history": HISTORY,
        }
        worker = stack.enter_context(peers.Worker("train/train_loop", options=loop))
        sides = {name: functools.partial(cost, server, worker, name == ON, seconds) for name in (ON, OFF)}
        measured = harness.alternate(sides, rounds=rounds)
        remembered = server.ask("round")
    return judge_identities(measured, remembered)


def cost(server: peers.Worker, worker: peers.Worker, identities: bool, seconds: float) -> dict[str, float]:
    """Seconds of CPU and of waiting that a step of this round cost, and the parts of it."""
    before = server.ask("round")["cpu_s"]
    answer = worker.ask("round", seconds=seconds, identities=identities)
    used = server.ask("round")["cpu_s"] - before
    spent = answer["spent"]
    totals = (answer["cpu_s"], used, spent["pull_wait_s"] + spent["push_wait_s"])
    parts = {part: total / answer["steps"] for part, total in zip(COSTS, totals, strict=True)}
    return {"figure": sum(parts.values()), **parts}


def judge_identities(measured: harness.Rounds, remembered: dict[str, Any]) -> report.Result:
    ratio = measured.ratio(ON, OFF)
    rows: list[report.Cells] = []
    for part, rounds in (*((part, measured.part(part)) for part in COSTS), ("together", measured)):
        rows.append((f"{part}, ms a step", *(1e3 * rounds.median(name) for name in (ON, OFF))))
    kept = f"{remembered['ranges']:,} ranges in {remembered['sets']} sets, {remembered['bytes'] / 2**20:.1f} MiB"
    return report.Result(
        goals=(report.goal("cost_vs_identity_off", ratio, target=1.03, better="lower"),),
        rounds=measured.count,
        columns=("what", ON, OFF),
        rows=tuple(rows),
        notes=(f"at the end the server's slots remember {kept}",),
        details={"remembered": {name: remembered[name] for name in ("sets", "ranges", "bytes")}},
    )
