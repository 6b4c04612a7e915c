"""Random histories of a native and a NumPy store side by side: they agree bit for bit after every call."""

import dataclasses
import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import _native
from springtide.domain.model import tables
from tests.oracles import reference, row_math

EXTREME_KEYS = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**31), 2**53 + 1]
OPTIMIZERS = [
    tables.OptimSpec(kind="sgd"),
    tables.OptimSpec(kind="sgd", momentum=0.9, nesterov=True),
    tables.OptimSpec(kind="sgd", momentum=0.8, dampening=0.3),
    tables.OptimSpec(kind="adagrad", eps=1e-10, initial_accumulator=0.1),
    tables.OptimSpec(kind="rowwise_adagrad", eps=1e-6),
    tables.OptimSpec(kind="adam"),
    tables.OptimSpec(kind="adam", eps_outside=False, beta2=0.9),
    tables.OptimSpec(kind="adam", decoupled_decay=True),
    tables.OptimSpec(kind="rmsprop"),
    tables.OptimSpec(kind="ftrl", l1=0.02, l2=0.1, initial_accumulator=0.1),
]
INITS = [
    tables.Init(),
    tables.Init(kind="uniform", a=-0.3, b=0.2),
    tables.Init(kind="xavier", a=1.0, b=100.0),
]


def specs(table_id: int) -> st.SearchStrategy[tables.TableSpec]:
    return st.builds(
        lambda dim, dtype, init, optim, min_count, ttl, capacity: tables.TableSpec(
            id=table_id,
            name=f"t{table_id}",
            dim=dim,
            dtype=dtype,
            init=init,
            optim=optim,
            min_count=min_count,
            ttl=ttl,
            capacity_rows=capacity,
        ),
        st.sampled_from([1, 3, 8, 16, 17, 40, 64]),
        st.sampled_from(tables.DTYPES),
        st.sampled_from(INITS),
        st.sampled_from(OPTIMIZERS),
        st.sampled_from([0, 0, 1, 2, 3]),
        st.sampled_from([0, 0, 1, 4]),
        st.sampled_from([0, 0, 64, 200, 3000]),
    )


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["push"] * 6 + ["pull", "assign", "evict", "move", "cut", "delta", "clear", "parts", "parts"]),
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=14,
)


class Pair:
    """A native store and its oracle, given the same calls."""

    def __init__(self, slots: int, specs: list[tables.TableSpec]) -> None:
        self.slots = slots
        self.specs = specs
        self.native = _native.Store(slots, 11, threads=2, reserve_bytes=1 << 28)
        self.oracle = reference.ReferenceStore(slots, 11)
        for spec in specs:
            self.native.declare(native_spec(spec))
            self.oracle.declare(spec)

    def names(self, rng: np.random.Generator, count: int, unique: bool = False) -> list[reference.Name]:
        picked = [(spec.id, key) for spec in self.specs for key in pool(spec.id, self.slots)]
        chosen = [picked[i] for i in rng.integers(0, len(picked), count)]
        return list(dict.fromkeys(chosen)) if unique else chosen

    def arrays(self, names: list[reference.Name]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([t for t, _ in names], np.uint16), np.array([k for _, k in names], np.int64)

    def dims(self, names: list[reference.Name]) -> list[int]:
        return [self.oracle.specs[table].dim for table, _ in names]

    def push(self, rng: np.random.Generator) -> None:
        unique = bool(rng.integers(0, 2))
        names = self.names(rng, int(rng.integers(1, 200)), unique)
        grads = [rng.standard_normal(dim).astype(np.float32) for dim in self.dims(names)]
        hyper = {s.id: tables.Hyper(lr=0.1, weight_decay=0.01, step=int(rng.integers(0, 3))) for s in self.specs}
        clock = self.oracle.clock + int(rng.integers(-2, 3))
        given_hyper = [(i, _native.Hyper(h.lr, h.weight_decay, h.step)) for i, h in hyper.items()]
        call = (*self.arrays(names), np.concatenate(grads), given_hyper, max(clock, 0), unique)
        stats = self.native.push(*call)
        assert (stats.applied, stats.created, stats.waiting) == self.oracle.push(names, grads, hyper, max(clock, 0))

    def assign(self, rng: np.random.Generator) -> None:
        names = self.names(rng, int(rng.integers(1, 60)))
        rows = [rng.standard_normal(dim).astype(np.float32) for dim in self.dims(names)]
        self.native.assign(*self.arrays(names), np.concatenate(rows))
        # one stripe after the other, as the store does: within a slot the order is the caller's
        order = sorted(range(len(names)), key=lambda i: row_math.slot_of(row_math.hash_key(*names[i]), 64))
        self.oracle.assign([names[i] for i in order], [rows[i] for i in order])

    def evict(self, rng: np.random.Generator) -> None:
        clock = self.oracle.clock + int(rng.integers(0, 4))
        self.native.evict(clock)
        self.oracle.evict(clock)
        for spec in self.specs:
            assert self.native.rows(spec.id) == sum(table == spec.id for table, _ in self.oracle.rows)

    def agree(self, rng: np.random.Generator) -> None:
        names = self.names(rng, 150)
        out = np.full(sum(self.dims(names)), np.nan, np.float32)
        self.native.pull(*self.arrays(names), out)
        np.testing.assert_array_equal(out, np.concatenate(self.oracle.pull(names)))
        slot = int(rng.integers(0, 2)) * (self.slots - 1)
        for spec in self.specs:
            keys, rows = self.native.scan(spec.id, slot)
            wanted = self.oracle.scan(spec.id, slot)
            assert sorted(keys.tolist()) == sorted(wanted)
            for key, row in zip(keys.tolist(), rows, strict=True):
                np.testing.assert_array_equal(row, wanted[key])
        assert self.native.load(slot).requests == self.oracle.requests[slot]


def native_spec(spec: tables.TableSpec) -> _native.TableSpec:
    fields = {name: getattr(spec, name) for name in ("id", "name", "dim", "dtype", "min_count", "ttl", "capacity_rows")}
    optim = dataclasses.asdict(spec.optim)
    init = (spec.init.kind, spec.init.a, spec.init.b)
    return _native.TableSpec(**fields, init=init, optimizer=optim.pop("kind"), **optim)


_pools: dict[tuple[int, int], list[int]] = {}


def pool(table: int, slots: int) -> list[int]:
    """Keys that meet in the first and the last slot, so that shares fill up, and some that lie anywhere."""
    if (table, slots) not in _pools:
        keys = np.arange(-40 * slots, 40 * slots, dtype=np.int64)
        at = np.asarray(_native.Store(slots, 11).slot_of(table, keys))  # the oracle takes seconds for so many keys
        near = keys[(at == 0) | (at == slots - 1)]
        _pools[table, slots] = near[:100].tolist() + EXTREME_KEYS
    return _pools[table, slots]


def move(rng: np.random.Generator, source: Pair, target: Pair, since: int = 0) -> None:
    for slot in (0, source.slots - 1, int(rng.integers(0, source.slots))):
        target.native.import_slot(source.native.export_slot(slot, since))
        target.oracle.import_slot(source.oracle.export_slot(slot, since))


def copy_beside(rng: np.random.Generator, source: Pair, target: Pair, since: int) -> None:
    """A slot copied in parts during training equals the source at the end."""
    slot, copy = int(rng.integers(0, 2)) * (source.slots - 1), _native.SlotCopy()
    part_bytes = int(rng.integers(50, 2000))
    while not source.native.copy_slot(slot, since, copy, part_bytes):
        if rng.integers(0, 3) == 0:
            source.push(rng)
        elif rng.integers(0, 6) == 0:
            source.evict(rng)
    with tempfile.TemporaryFile() as file:
        while not copy.write_on(file.fileno(), 0, int(rng.integers(1, 5000))):
            pass
        copy.write_identities(file.fileno(), copy.size)
        image = file.read()
    assert _native.image_facts(np.frombuffer(image, np.uint8)) == (slot, copy.full, copy.checksum)
    target.native.import_slot(image)
    target.oracle.import_slot(source.oracle.export_slot(slot, since))


def play(pairs: tuple[Pair, Pair], calls: list[tuple[str, int]]) -> None:
    cut = 0
    for what, seed in calls:
        rng = np.random.default_rng(seed)
        here, there = pairs if rng.integers(0, 4) else pairs[::-1]
        if what == "push":
            here.push(rng)
        elif what == "assign":
            here.assign(rng)
        elif what == "evict":
            here.evict(rng)
        elif what == "move":
            move(rng, here, there)
        elif what == "cut":
            move_all(pairs[0], pairs[1])
            cut = pairs[0].native.cut()
            assert cut == pairs[0].oracle.cut()
            move_all(pairs[0], pairs[1])
        elif what == "delta" and cut:
            for slot in (0, here.slots - 1):
                pairs[1].native.import_slot(pairs[0].native.export_slot(slot, cut))
                pairs[1].oracle.import_slot(pairs[0].oracle.export_slot(slot, cut))
        elif what == "parts":
            copy_beside(rng, pairs[0], pairs[1], cut if rng.integers(0, 2) else 0)
        elif what == "clear":
            slot = int(rng.integers(0, 2)) * (here.slots - 1)
            here.native.clear_slot(slot)
            here.oracle.clear_slot(slot)
        for pair in pairs:
            pair.agree(rng)


def move_all(source: Pair, target: Pair) -> None:
    for slot in range(0, source.slots, max(1, source.slots // 64)):
        target.native.import_slot(source.native.export_slot(slot))
        target.oracle.import_slot(source.oracle.export_slot(slot))


@given(st.sampled_from([64, 1024]), specs(0), specs(1), specs(16383), CALLS)
def test_any_store_history_matches_numpy(slots, first, second, third, calls):
    wanted = [first, second, third]
    play((Pair(slots, wanted), Pair(slots, wanted)), calls)


@settings(max_examples=25)
@given(st.sampled_from(OPTIMIZERS), st.sampled_from([16, 64, 7]), CALLS)
def test_changes_after_a_cut_are_counted_and_copied(optim, dim, calls):
    spec = tables.TableSpec(id=0, name="t", dim=dim, optim=optim, min_count=2, capacity_rows=640)
    pair = Pair(64, [spec])
    copy = Pair(64, [dataclasses.replace(spec)])
    cut = 0
    for number, (_, seed) in enumerate(calls):
        rng = np.random.default_rng(seed)
        pair.push(rng)
        if number % 3 == 0:
            cut = pair.native.cut()
            assert pair.oracle.cut() == cut
            move_all(pair, copy)
        for slot in (0, 63):
            change = pair.oracle.export_slot(slot, cut)
            carried = len(change.rows) + len(change.waiting) + len(change.gone)
            assert pair.native.dirty_rows(slot, cut) == carried
            copy.native.import_slot(pair.native.export_slot(slot, cut))
            keys, rows = copy.native.scan(0, slot)
            wanted = pair.oracle.scan(0, slot)
            assert sorted(keys.tolist()) == sorted(wanted)
            assert all(np.array_equal(row, wanted[key]) for key, row in zip(keys.tolist(), rows, strict=True))
