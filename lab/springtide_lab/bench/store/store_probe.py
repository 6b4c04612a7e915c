"""Native tables against their bound: a bare loop that reads one index cell and then the row (and updates it).

Same bytes, same huge pages, same kernels, input deduplicated, measured alternately. In: a Case. Out: Measured.
"""

import itertools
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from springtide import _native
from springtide_lab.bench.core import harness, progress

BATCH = 13_312  # 512 samples x 26 features
CHUNK = 1 << 18  # rows that one call puts in
STATE_FLOATS: Mapping[str, Callable[[int], int]] = {
    "sgd": lambda dim: 0,
    "adagrad": lambda dim: dim,
    "rowwise_adagrad": lambda dim: 1,
    "adam": lambda dim: 2 * dim + 1,
    "rmsprop": lambda dim: dim,
    "ftrl": lambda dim: 2 * dim,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Tables of one shape."""

    optimizer: str
    dim: int
    tables: int
    rows: int
    """Rows of each table."""

    @property
    def name(self) -> str:
        """As the report shows it."""
        shape = f"{self.tables} x {self.rows // 1000}k" if self.tables > 1 else "one big"
        return f"{shape}, dim {self.dim}, {self.optimizer}"

    def spec(self, table: int) -> _native.TableSpec:
        """The spec of one of the tables."""
        return _native.TableSpec(id=table, name=f"t{table}", dim=self.dim, optimizer=self.optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rates in M rows/s and ratios to the bare loop."""

    name: str
    rates: Mapping[str, float]
    lookup: harness.Ratio
    update: harness.Ratio
    rounds: int


def cases(*, quick: bool) -> list[Case]:
    """26 tables of 100k rows, and one whose rows (weights and state) take 4 GiB, for every optimizer."""
    small, big_bytes = (2_000, 1 << 24) if quick else (100_000, 1 << 32)
    found = []
    for optimizer, state in STATE_FLOATS.items():
        for dim in (16, 64):
            found.append(Case(optimizer=optimizer, dim=dim, tables=26, rows=small))
            rows = big_bytes // (4 * (dim + state(dim)))
            found.append(Case(optimizer=optimizer, dim=dim, tables=1, rows=rows))
    return found


def measure(case: Case, *, quick: bool) -> Measured:
    """Fill both sides, then let them take turns."""
    progress.say(f"filling {case.name}")
    store = filled(case)
    probe = _native.ProbeLoop(case.spec(0), rows=case.tables * case.rows, seed=1)
    rng = np.random.default_rng(0)
    count = min(BATCH, case.tables * case.rows // 2)
    requests = [draw(case, store, rng, count) for _ in range(4 if quick else 64)]
    out = np.empty(count * case.dim, dtype=np.float32)
    matrix = out.reshape(count, case.dim)
    gradients = np.full(count * case.dim, 1e-3, dtype=np.float32)
    hyper = _native.Hyper(lr=0.01)
    hypers = [(table, hyper) for table in range(case.tables)]
    following = harness.cycle(requests)

    def lookup() -> None:
        tables, keys, _ = following()
        store.pull(tables, keys, out)

    def update() -> None:
        tables, keys, _ = following()
        store.push(tables, keys, gradients, hypers, clock=0, unique=True, check_finite=False)

    works: dict[str, Callable[[], object]] = {
        "ours lookup": lookup,
        "probe lookup": lambda: _native.probe_gather(probe, following()[2], matrix),
        "ours update": update,
        "probe update": lambda: _native.probe_scatter(probe, following()[2], gradients.reshape(matrix.shape), hyper),
    }
    seconds = 0.02 if quick else 0.08  # 50 batches and more a round; the whole in minutes
    contestants = [
        harness.Contestant(name=name, measure=harness.rate(work, units=count / 1e6, seconds=seconds))
        for name, work in works.items()
    ]
    rounds = harness.alternate(contestants, rounds=3 if quick else 9, label=case.name)
    return Measured(
        name=case.name,
        rates={name: rounds.median(name) for name in works},
        lookup=rounds.ratio("ours lookup", "probe lookup"),
        update=rounds.ratio("ours update", "probe update"),
        rounds=rounds.count,
    )


def filled(case: Case) -> _native.Store:
    """A store that holds every row of the case, put in by all cores; what is measured has one thread."""
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


def draw(case: Case, store: _native.Store, rng: np.random.Generator, count: int) -> Request:
    """Distinct (table, key) pairs ordered by slot, as a client sends them; and distinct places for the probe."""
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
