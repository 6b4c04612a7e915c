"""Lookup, backward and update through public modules: `st.EmbeddingBags` against nn.EmbeddingBag and FBGEMM's TBE.

26 tables x 100k rows x dim 16, batch 512, one id a bag, zipf 1.05; the same ids and thread counts on all sides.
Peers run in processes of their own (store/bags.py). In: nothing. Out: Modules.
"""

import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.utils.data import TensorDataset

import springtide as st
from springtide_lab.bench.core import harness, ids, peers, progress, report

TARGETS = {"embeddingbag_sgd": 4.0, "tbe_sgd": 1.5, "tbe_rowwise_adagrad": 5.0}
OURS = {"embeddingbag_sgd": "sgd", "tbe_sgd": "sgd", "tbe_rowwise_adagrad": "rowwise_adagrad"}
THREADS = (1, 2)
TABLES, DIM, BATCH, LR = 26, 16, 512, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Rounds by number of threads; why a peer is missing; its versions."""

    rounds: dict[int, harness.Rounds] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def worst(self, peer: str) -> harness.Ratio | None:
        """Ours over this peer, at the thread count that is worse for us."""
        return report.worst([r.ratio(f"ours {OURS[peer]}", peer) for r in self.rounds.values() if peer in r.figures])

    def rows(self) -> Iterator[tuple[str, int, float, harness.Ratio | None]]:
        """Name, threads, M rows/s, and for a peer our ratio to it."""
        for threads, rounds in self.rounds.items():
            for name in rounds.figures:
                ratio = rounds.ratio(f"ours {OURS[name]}", name) if name in OURS else None
                yield name, threads, rounds.median(name), ratio

    def notes(self) -> list[str]:
        """What a reader must know about missing peers."""
        return [f"{peer} was not measured: {why}" for peer, why in self.why.items()]

    def figures(self) -> dict[str, Mapping[str, float]]:
        """Medians for the JSON."""
        return {str(t): {name: r.median(name) for name in r.figures} for t, r in self.rounds.items()}


def measure(*, quick: bool) -> Modules:
    """All sides at one and at two threads."""
    modules = Modules()
    rows = 5_000 if quick else 100_000
    drawn = ids.batches(7, batches=8 if quick else 256, tables=TABLES, rows=rows, batch=BATCH)
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "ids"
        ids.write(drawn, file)
        batches = [torch.from_numpy(batch.T.copy()) for batch in drawn]
        seconds = 0.05 if quick else 0.5
        for threads in THREADS:
            torch.set_num_threads(threads)
            contestants = [ours(kind, batches, rows, seconds) for kind in ("sgd", "rowwise_adagrad")]
            options = {"file": str(file), "shape": drawn.shape, "rows": rows, "dim": DIM, "threads": threads, "lr": LR}
            contestants += list(theirs(options, seconds, modules))
            label = f"modules, {threads} thread{'s' if threads > 1 else ''}"
            modules.rounds[threads] = harness.alternate(contestants, rounds=3 if quick else 9, label=label)
    torch.set_num_threads(before)
    return modules


def ours(optimizer: str, batches: list[torch.Tensor], rows: int, seconds: float) -> harness.Contestant:
    """Our module as a user has it: alone in this process, with autograd and a torch.optim optimizer."""
    model: torch.nn.Module = st.EmbeddingBags([DIM] * TABLES, optimizer=optimizer)
    nothing = TensorDataset(torch.zeros(1, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    model, sgd, _ = st.join().prepare(model, sgd, nothing, batch_size=1)
    gradient = torch.full((BATCH, TABLES * DIM), 0.01)

    def step(batch: torch.Tensor) -> None:
        sgd.zero_grad()
        torch.autograd.backward(model(batch), gradient)
        sgd.step()

    every = torch.arange(rows)
    for first in range(0, rows, BATCH):  # rows exist once they are trained: peers' exist from the start
        ids_of_all = every[first : first + BATCH]
        if len(ids_of_all) == BATCH:
            step(ids_of_all.unsqueeze(1).expand(BATCH, TABLES).contiguous())
    following = harness.cycle(batches)
    rate = harness.rate(lambda: step(following()), units=BATCH * TABLES / 1e6, seconds=seconds)
    return harness.Contestant(name=f"ours {optimizer}", measure=rate)


def theirs(options: dict[str, object], seconds: float, modules: Modules) -> Iterator[harness.Contestant]:
    """Every peer that can be had; for the others `modules.why` says why not."""
    python: pathlib.Path | None = None
    failed = ""
    try:
        python = peers.environment()
    except peers.PeerFailed as error:
        failed = str(error)
        progress.say(failed)
    for kind in TARGETS:
        needs_peers = kind.startswith("tbe")
        if needs_peers and python is None:
            modules.why[kind] = failed
            continue
        try:
            worker = peers.Worker(
                "store/bags", python=python if needs_peers else None, options={**options, "kind": kind}
            )
        except peers.PeerFailed as error:
            modules.why[kind] = str(error)
            continue
        modules.versions.update(worker.versions)
        yield worker.contestant(kind, seconds=seconds)
