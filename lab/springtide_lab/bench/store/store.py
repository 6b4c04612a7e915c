"""Measure tables: alone against a minimal loop in C++, and through the public module against peers.

In: the native tables and a loop that only reads one index cell and then the row; lookup, backward and update through
`st.EmbeddingBags`, nn.EmbeddingBag and FBGEMM. Out: five goals.
"""

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

import springtide as st
from springtide import _native
from springtide_lab.bench import Options
from springtide_lab.bench.cache import id_streams
from springtide_lab.bench.core import harness, peers, report

TARGETS = {"embeddingbag_sgd": 4.0, "tbe_sgd": 1.5, "tbe_rowwise_adagrad": 5.0}
OURS = {"embeddingbag_sgd": "sgd", "tbe_sgd": "sgd", "tbe_rowwise_adagrad": "rowwise_adagrad"}
THREADS = (1, 2)
GROWN_DIM, GROWN_BATCH = 8, 8192
ROW_BYTES = 4 * GROWN_DIM  # SGD keeps no state
CELL_BYTES = 24  # bytes that a row may cost beside its floats
ODD = np.uint64(0x9E3779B97F4A7C15)  # multiplying by an odd number gives distinct keys over the whole range
TABLES, DIM, BATCH, LR = 26, 16, 512, 0.01


def measure(*, quick: bool, notes: list[str]) -> dict[int, harness.Rounds]:
    """Measure the modules in turn; return the rounds by number of threads."""
    measured: dict[int, harness.Rounds] = {}
    rows = 5_000 if quick else 100_000
    drawn = id_streams.zipf_batches(7, batches=8 if quick else 256, tables=TABLES, rows=rows, batch=BATCH)
    before = torch.get_num_threads()
    with harness.scratch() as folder:
        file = folder / "ids"
        drawn.tofile(file)
        batches = [torch.from_numpy(batch.T.copy()) for batch in drawn]
        seconds = 0.05 if quick else 0.5
        for threads in THREADS:
            torch.set_num_threads(threads)
            options = {"file": str(file), "shape": drawn.shape, "rows": rows, "dim": DIM, "threads": threads, "lr": LR}
            with contextlib.ExitStack() as stack:
                sides = {f"ours {kind}": ours(kind, batches, rows, seconds) for kind in ("sgd", "rowwise_adagrad")}
                sides |= theirs(stack, options, seconds, notes)
                rounds = 3 if quick else 9
                measured[threads] = harness.alternate(sides, rounds=rounds, label=f"modules, {named(threads)}")
    torch.set_num_threads(before)
    return measured


def named(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def worst(measured: Mapping[int, harness.Rounds], peer: str) -> harness.Ratio | None:
    """Return our rate relative to this peer's, at the number of threads where we do worse."""
    rounds = [one for one in measured.values() if peer in one.figures]
    return report.worst([one.ratio(f"ours {OURS[peer]}", peer) for one in rounds])


def ours(optimizer: str, batches: list[torch.Tensor], rows: int, seconds: float) -> harness.Measure:
    """Return a measure of our module as a user runs it: in one process, with autograd and a torch.optim optimizer."""
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
    for first in range(0, rows, BATCH):  # training creates our rows; peers create all rows at once
        ids_of_all = every[first : first + BATCH]
        if len(ids_of_all) == BATCH:
            step(ids_of_all.unsqueeze(1).expand(BATCH, TABLES).contiguous())
    following = itertools.cycle(batches)
    return harness.rate(lambda: step(next(following)), units=BATCH * TABLES / 1e6, seconds=seconds)


def theirs(
    stack: contextlib.ExitStack, options: dict[str, object], seconds: float, notes: list[str]
) -> dict[str, harness.Measure]:
    """Return a measure of every available peer; add to `notes` why others are missing."""
    sides: dict[str, harness.Measure] = {}
    for kind in TARGETS:
        with peers.optional(kind, notes):
            python = peers.environment() if kind.startswith("tbe") else None
            worker = stack.enter_context(peers.Worker("store/bags", python=python, options={**options, "kind": kind}))
            sides[kind] = functools.partial(worker.figure, seconds=seconds)
    return sides


PROBE_BATCH = 13_312  # 512 samples x 26 features
CHUNK = 1 << 18  # number of rows that one call inserts
STATE_FLOATS: Mapping[str, Callable[[int], int]] = {
    "sgd": lambda dim: 0,
    "adagrad": lambda dim: dim,
    "rowwise_adagrad": lambda dim: 1,
    "adam": lambda dim: 2 * dim + 1,
    "rmsprop": lambda dim: dim,
    "ftrl": lambda dim: 2 * dim,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """A number of tables of one shape and optimizer."""

    optimizer: str
    dim: int
    tables: int
    rows: int
    """Rows of each table."""

    @property
    def name(self) -> str:
        shape = f"{self.tables} x {self.rows // 1000}k" if self.tables > 1 else "one big"
        return f"{shape}, dim {self.dim}, {self.optimizer}"

    def spec(self, table: int) -> _native.TableSpec:
        return _native.TableSpec(id=table, name=f"t{table}", dim=self.dim, optimizer=self.optimizer)


def probe_cases(*, quick: bool) -> list[ProbeCase]:
    """Return, for every optimizer, 26 tables of 100k rows, and one table whose rows (weights and state) take 4 GiB."""
    small, big_bytes = (2_000, 1 << 24) if quick else (100_000, 1 << 32)
    found = []
    for optimizer, state in STATE_FLOATS.items():
        for dim in (16, 64):
            found.append(ProbeCase(optimizer=optimizer, dim=dim, tables=26, rows=small))
            rows = big_bytes // (4 * (dim + state(dim)))
            found.append(ProbeCase(optimizer=optimizer, dim=dim, tables=1, rows=rows))
    return found


def probe(case: ProbeCase, *, quick: bool) -> harness.Rounds:
    """Measure million rows per second of lookups and updates, ours and those of the minimal loop."""
    harness.say(f"filling {case.name}")
    store = filled(case)
    probe = _native.ProbeLoop(case.spec(0), rows=case.tables * case.rows, seed=1)
    rng = np.random.default_rng(0)
    count = min(PROBE_BATCH, case.tables * case.rows // 2)
    requests = [draw(case, store, rng, count) for _ in range(4 if quick else 64)]
    out = np.empty(count * case.dim, dtype=np.float32)
    matrix = out.reshape(count, case.dim)
    gradients = np.full(count * case.dim, 1e-3, dtype=np.float32)
    hyper = _native.Hyper(lr=0.01)
    hypers = [(table, hyper) for table in range(case.tables)]
    following = itertools.cycle(requests)

    def lookup() -> None:
        tables, keys, _ = next(following)
        store.pull(tables, keys, out)

    def update() -> None:
        tables, keys, _ = next(following)
        store.push(tables, keys, gradients, hypers, clock=0, unique=True)

    works: dict[str, Callable[[], object]] = {
        "ours lookup": lookup,
        "probe lookup": lambda: _native.probe_gather(probe, next(following)[2], matrix),
        "ours update": update,
        "probe update": lambda: _native.probe_scatter(
            probe, next(following)[2], gradients.reshape(matrix.shape), hyper
        ),
    }
    seconds = 0.02 if quick else 0.08  # at least 50 batches per round, and minutes in total
    rates = {name: harness.rate(work, units=count / 1e6, seconds=seconds) for name, work in works.items()}
    return harness.alternate(rates, rounds=3 if quick else 9, label=case.name)


def filled(case: ProbeCase) -> _native.Store:
    """Return a store of one thread that holds every row of the case; all cores insert the rows."""
    store = _native.Store(slots=1024, seed=0, threads=1)
    for table in range(case.tables):
        store.declare(case.spec(table))
    rows = np.full(min(CHUNK, case.rows) * case.dim, 0.5, dtype=np.float32)

    def put(place: tuple[int, int]) -> None:
        table, first = place
        keys = np.arange(first, min(first + CHUNK, case.rows), dtype=np.int64)
        store.assign(np.full(len(keys), table, dtype=np.uint16), keys, rows[: len(keys) * case.dim])

    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(put, itertools.product(range(case.tables), range(0, case.rows, CHUNK))))
    return store


Request = tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.int64]]


def draw(case: ProbeCase, store: _native.Store, rng: np.random.Generator, count: int) -> Request:
    """Draw distinct (table, key) pairs ordered by slot, as a client sends them, and distinct places for the probe."""
    places = np.unique(rng.integers(0, case.tables * case.rows, size=count + count // 2))
    places = rng.permutation(places)[:count]
    while len(places) < count:
        places = np.unique(np.concatenate([places, rng.integers(0, case.tables * case.rows, size=count)]))
        places = rng.permutation(places)[:count]
    tables, keys = (places // case.rows).astype(np.uint16), places % case.rows
    slots = np.empty(count, dtype=np.uint32)
    for table in range(case.tables):
        mine = tables == table
        slots[mine] = np.asarray(store.slot_of(table, np.ascontiguousarray(keys[mine])))
    order = np.argsort(slots, kind="stable")
    return np.ascontiguousarray(tables[order]), np.ascontiguousarray(keys[order]), rng.permutation(places)


def bench(options: Options) -> report.Result:
    probed = {case.name: probe(case, quick=options.quick) for case in probe_cases(quick=options.quick)}
    lookups = {name: rounds.ratio("ours lookup", "probe lookup") for name, rounds in probed.items()}
    updates = {name: rounds.ratio("ours update", "probe update") for name, rounds in probed.items()}
    notes: list[str] = []
    modules = measure(quick=options.quick, notes=notes)
    goals = (
        report.goal("lookup_vs_probe_gather", report.worst(list(lookups.values())), target=0.6),
        report.goal("update_vs_probe_scatter", report.worst(list(updates.values())), target=0.5),
        *(
            report.goal(f"vs_{peer}", worst(modules, peer), target=target, why=" ".join(dict.fromkeys(notes)))
            for peer, target in TARGETS.items()
        ),
    )
    rows: list[report.Cells] = [
        (
            name,
            rounds.median("ours lookup"),
            lookups[name].value,
            rounds.median("ours update"),
            updates[name].value,
        )
        for name, rounds in probed.items()
    ]
    for threads, rounds in modules.items():
        for name in rounds.figures:
            ratio = rounds.ratio(f"ours {OURS[name]}", name).value if name in OURS else None
            rows.append((f"{name}, {named(threads)}", rounds.median(name), ratio, None, None))
    return report.Result(
        goals=goals,
        rounds=min(rounds.count for rounds in probed.values()),
        columns=("case (M rows/s; ratio to the peer)", "lookup", "ratio", "update", "ratio"),
        rows=tuple(rows),
        notes=(
            "Tables: ours against the bare loop. Modules: lookup + backward + update, peers' own rate first.",
            *dict.fromkeys(notes),
        ),
    )


def growth_bench(options: Options) -> report.Result:
    """Measure how evenly a table grows while 50 M keys of dim 8 are inserted: rate, latency of batches, bytes per row.

    Out: `rate_flat` (rate of the slowest tenth divided by the mean), `p999_vs_p50` of batch latency, both after the
    first 5 M keys, and `bytes_vs_payload` (resident bytes divided by payload + state + 24 B per row).
    """
    rows, skip = (1_000_000, 100_000) if options.quick else (50_000_000, 5_000_000)
    process = psutil.Process()
    before = process.memory_info().rss
    store = _native.Store(slots=1024, seed=0, threads=1)
    settled = grow(store, rows=rows)[skip // GROWN_BATCH :]
    resident = process.memory_info().rss - before
    tenths = [float(GROWN_BATCH * len(part) / part.sum()) for part in np.array_split(settled, 10)]
    mean = GROWN_BATCH * len(settled) / float(settled.sum())
    p50, p999 = (float(np.quantile(settled, q)) for q in (0.5, 0.999))
    goals = (
        report.goal("rate_flat", min(tenths) / mean, target=0.8),
        report.goal("p999_vs_p50", p999 / p50, target=5, better="lower"),
        report.goal(
            "bytes_vs_payload", resident / (store.rows() * (ROW_BYTES + CELL_BYTES)), target=1.25, better="lower"
        ),
    )
    table = (
        ("rows inserted, M", store.rows() / 1e6),
        ("mean rate, M rows/s", mean / 1e6),
        ("slowest tenth, M rows/s", min(tenths) / 1e6),
        (f"batch of {GROWN_BATCH}, p50, ms", 1e3 * p50),
        (f"batch of {GROWN_BATCH}, p99.9, ms", 1e3 * p999),
        (f"batch of {GROWN_BATCH}, worst, ms", 1e3 * float(settled.max())),
        ("resident, bytes a row", resident / store.rows()),
        ("arenas, bytes a row", store.resident_bytes() / store.rows()),
    )
    return report.Result(goals=goals, rounds=1, columns=("what", "value"), rows=table)


def grow(store: _native.Store, *, rows: int) -> NDArray[np.float64]:
    """Push a gradient to `rows` new keys; return the seconds of each batch."""
    store.declare(_native.TableSpec(id=0, name="grown", dim=GROWN_DIM, optimizer="sgd"))
    tables = np.zeros(GROWN_BATCH, dtype=np.uint16)
    gradients = np.full(GROWN_BATCH * GROWN_DIM, 0.01, dtype=np.float32)
    hyper = [(0, _native.Hyper(lr=0.1))]
    seconds = np.zeros(rows // GROWN_BATCH)
    for index in harness.track(f"{rows / 1e6:g} M inserts", range(len(seconds))):
        keys = np.arange(index * GROWN_BATCH, (index + 1) * GROWN_BATCH, dtype=np.uint64) * ODD
        began = time.perf_counter()
        store.push(tables, keys.view(np.int64), gradients, hyper, clock=index, unique=True)
        seconds[index] = time.perf_counter() - began
    return seconds
