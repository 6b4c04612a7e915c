"""A whole training loop: WideDeep and DLRM, batch 512, one server and one worker, against the same loop without us.

Peers: one plain PyTorch process with sparse EmbeddingBags, and TorchRec (DistributedModelParallel, gloo, world 1) for
DLRM. Every side may use both cores. Out: `vs_pytorch_widedeep`, `vs_pytorch_dlrm`, `vs_torchrec`, `wait_share`, and
where a step's time goes. The loops: train/train_loop.py, train/train_torchrec.py.
"""

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import growth, harness, peers, report, served_worker
from springtide_lab.bench.store import pull

TABLES, BATCH = 26, 512
SIZES: dict[str, Any] = {"rows": 100_000, "dim": 16, "batch": BATCH, "batches": 256, "lr": 0.01}
LAYERS = {"bottom": [128, 64], "top": [256, 128]}  # the zoo's own widths, for the model that TorchRec cannot take over
THREADS = (1, 2)  # a second thread does not always help, us or a peer: for each the better one counts
PARTS = ("data", "pull_wait", "forward", "backward", "push_wait", "update", "synchronization", "lookup")

Spent = dict[str, float]


def bench(options: Options) -> report.Result:
    sizes = SIZES | ({"rows": 2_000, "batches": 8} if options.quick else {})
    seconds, rounds = (0.3, 2) if options.quick else (3.0, 9)
    widths = THREADS[:1] if options.quick else THREADS
    measured: dict[str, harness.Rounds] = {}
    spent: dict[tuple[str, int], list[Spent]] = {}
    notes: list[str] = []
    versions: dict[str, str] = {}
    for model in ("widedeep", "dlrm"):
        with contextlib.ExitStack() as stack:
            contestants = [
                contestant
                for threads in widths
                for contestant in (
                    ours(stack, model, sizes, seconds, threads, spent.setdefault((model, threads), [])),
                    plain(stack, model, sizes, seconds, threads),
                )
            ]
            if model == "dlrm":
                contestants += torchrec(stack, sizes, seconds, widths, notes, versions)
            measured[model] = harness.alternate(contestants, rounds=rounds, label=model)
    return judge(measured, spent, notes, versions)


def ours(
    stack: contextlib.ExitStack, model: str, sizes: dict[str, Any], seconds: float, threads: int, spent: list[Spent]
) -> harness.Contestant:
    """A server process and a worker process; the server's threads are those it takes by itself."""
    (server,) = served_worker.start(stack)
    address = server.ask("round", what="address")["address"]
    loop = {**sizes, "kind": "springtide", "model": model, "threads": threads, "addresses": [address]}
    worker = stack.enter_context(peers.Worker("train/train_loop", options=loop))
    measure = functools.partial(one_round, worker, seconds, spent)
    return harness.Contestant(name=named("springtide", threads), measure=measure)


def one_round(worker: peers.Worker, seconds: float, spent: list[Spent]) -> float:
    """Samples a second of ours; where the time went goes to `spent`, in seconds a step."""
    answer = worker.ask("round", seconds=seconds)
    parts: Spent = {part: answer["spent"][f"{part}_s"] / answer["spent"]["steps"] for part in PARTS}
    parts["step"] = BATCH / answer["figure"]
    spent.append(parts)
    return float(answer["figure"])


def plain(
    stack: contextlib.ExitStack, model: str, sizes: dict[str, Any], seconds: float, threads: int
) -> harness.Contestant:
    loop = {**sizes, "kind": "pytorch", "model": model, "threads": threads}
    worker = stack.enter_context(peers.Worker("train/train_loop", options=loop))
    return worker.contestant(named("pytorch", threads), seconds=seconds)


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
) -> list[harness.Contestant]:
    drawn = growth.batches(7, batches=sizes["batches"], tables=TABLES, rows=sizes["rows"], batch=BATCH)
    file = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ids"
    growth.write(drawn, file)
    loop = {**sizes, **LAYERS, "file": str(file), "shape": drawn.shape}
    found = []
    try:
        python = peers.environment()
        for threads in widths:
            options = {**loop, "threads": threads, "port": pull.free_port()}
            worker = stack.enter_context(peers.Worker("train/train_torchrec", python=python, options=options))
            versions.update(worker.versions)
            found.append(worker.contestant(named("torchrec", threads), seconds=seconds))
    except peers.PeerFailed as error:
        notes.append(f"torchrec was not measured: {error}")
        harness.say(notes[-1])
    return found


def judge(
    measured: dict[str, harness.Rounds],
    spent: dict[tuple[str, int], list[Spent]],
    notes: list[str],
    versions: dict[str, str],
) -> report.Result:
    """Goals, rates, and the parts of a step of ours at the thread count that counts."""
    steps = {
        model: {
            part: harness.spread([one[part] for one in spent[model, our_best(rounds)]]).value
            for part in (*PARTS, "step")
        }
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
    rows: list[tuple[str | float | None, ...]] = []
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
