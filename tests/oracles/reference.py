"""Pure. The oracle of the native tables: the same rows, optimizers, ageing and images, slowly and plainly in NumPy.

In: the specs of domain/model/tables.py and the calls of `_native.Store`. Out: what the store must answer, float for
float. `tests/oracles/row_math.py` beside it has hash, init and optimizer steps of one row.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from springtide import errors
from springtide.domain.model import tables
from tests.oracles import row_math

Rows = npt.NDArray[np.float32]
Name = tuple[int, int]
"""(table, key)"""


@dataclass(slots=True)
class Row:
    """An existing row: weights as read back from storage, optimizer state, when it was last touched."""

    weights: Rows
    state: row_math.State
    age: int
    changed: int
    """Number of the last cut before its last change."""


@dataclass(slots=True)
class PendingKey:
    """A key that has had fewer gradients than its table asks for."""

    count: int
    age: int
    changed: int


@dataclass(slots=True)
class SlotCopy:
    """One slot, or its changes since a cut."""

    slot: int
    full: bool
    clock: int
    rows: dict[Name, Row] = field(default_factory=dict)
    waiting: dict[Name, PendingKey] = field(default_factory=dict)
    gone: set[Name] = field(default_factory=set)


class ReferenceStore:
    """The expected behaviour of `_native.Store`."""

    def __init__(self, slots: int, seed: int) -> None:
        self.slots = slots
        self.seed = seed
        self.specs: dict[int, tables.TableSpec] = {}
        self.rows: dict[Name, Row] = {}
        self.waiting: dict[Name, PendingKey] = {}
        self.gone: dict[Name, int] = {}
        self.full_from: dict[int, int] = {}
        self.clock = 0
        self.cuts = 0
        self.requests = [0] * slots

    def declare(self, spec: tables.TableSpec) -> None:
        """Make a table known; twice with the same spec is fine."""
        if self.specs.setdefault(spec.id, spec) != spec:
            raise errors.BadInput(f"table {spec.id} ({spec.name!r}): declared before with another spec")

    def slot_of(self, name: Name) -> int:
        """The slot that a key lives in."""
        return row_math.slot_of(row_math.hash_key(*name), self.slots)

    def pull(self, names: Sequence[Name]) -> list[Rows]:
        """Weights; a missing row reads as its init, and nothing is written."""
        for name in names:
            self.requests[self.slot_of(name)] += 1
        return [row.weights if (row := self._alive(name)) else self._init(name) for name in names]

    def push(
        self, names: Sequence[Name], grads: Sequence[Rows], hyper: dict[int, tables.Hyper], clock: int = 0
    ) -> tuple[int, int, int]:
        """Sum duplicates, update rows that exist, then create and admit in order; returns applied, created, waiting."""
        for name, grad in zip(names, grads, strict=True):
            if not np.isfinite(grad).all():
                raise errors.NonFiniteGradient(f"the gradient of {name} holds NaN or infinity")
        summed: dict[Name, Rows] = {}
        for name, grad in zip(names, grads, strict=True):
            summed[name] = summed[name] + grad if name in summed else grad
        self.clock = max(self.clock, clock)
        for name in summed:
            self.requests[self.slot_of(name)] += 1
        # stripe by stripe, since a row made in one slot can push out another of the same slot only
        missing = [name for name in summed if not self._alive(name)]
        for name, grad in summed.items():
            if row := self._alive(name):
                self._step(name, row, grad, hyper[name[0]])
        created = sum(self._admit(name, summed[name], hyper[name[0]]) for name in missing)
        return len(summed) - len(missing) + created, created, len(missing) - created

    def assign(self, names: Sequence[Name], values: Sequence[Rows]) -> None:
        """Set weights and reset optimizer state; rows are created without admission."""
        for name, weights in zip(names, values, strict=True):
            if name not in self.rows:
                self._make_room(name)
            self.waiting.pop(name, None)
            self.rows[name] = self._new_row(name, row_math.stored(weights, self.specs[name[0]].dtype))

    def evict(self, clock: int) -> None:
        """Evict rows past their ttl."""
        self.clock = max(self.clock, clock)
        for name in [name for name in self.rows if not self._alive(name)]:
            self._drop(name)
        for name in [name for name, one in self.waiting.items() if self._expired(name, one.age)]:
            self._drop(name)

    def scan(self, table: int, slot: int) -> dict[int, Rows]:
        """Key -> weights of one table in one slot."""
        return {
            key: row.weights
            for (owner, key), row in self.rows.items()
            if owner == table and self.slot_of((owner, key)) == slot and self._alive((owner, key))
        }

    def cut(self) -> int:
        """Mark a moment."""
        self.cuts += 1
        return self.cuts

    def export_slot(self, slot: int, since_cut: int = 0) -> SlotCopy:
        """Export a slot, or its changes after a cut."""
        full = since_cut == 0 or since_cut <= self.full_from.get(slot, -1)
        since = 0 if full else since_cut
        image = SlotCopy(slot=slot, full=full, clock=self.clock)
        for name, row in self.rows.items():
            if self.slot_of(name) == slot and self._alive(name) and row.changed >= since:
                image.rows[name] = copy.deepcopy(row)
        for name, one in self.waiting.items():
            if self.slot_of(name) == slot and not self._expired(name, one.age) and one.changed >= since:
                image.waiting[name] = copy.deepcopy(one)
        if not full:
            image.gone = {n for n, when in self.gone.items() if self.slot_of(n) == slot and when >= since}
        return image

    def import_slot(self, image: SlotCopy) -> None:
        """Replace a slot by a full copy, or lay what changed over it."""
        self.clock = max(self.clock, image.clock)
        if image.full:
            self.clear_slot(image.slot)
        for name in image.gone:
            self._drop(name)
        for name, row in image.rows.items():
            self.waiting.pop(name, None)
            self.rows[name] = copy.deepcopy(row)
            self.rows[name].changed = self.cuts
        for name, one in image.waiting.items():
            self.rows.pop(name, None)
            self.waiting[name] = PendingKey(count=one.count, age=one.age, changed=self.cuts)

    def clear_slot(self, slot: int) -> None:
        """Empty a slot."""
        for name in [name for name in [*self.rows, *self.waiting] if self.slot_of(name) == slot]:
            self.rows.pop(name, None)
            self.waiting.pop(name, None)
        self.gone = {name: when for name, when in self.gone.items() if self.slot_of(name) != slot}
        self.full_from[slot] = self.cuts

    def _expired(self, name: Name, age: int) -> bool:
        ttl = self.specs[name[0]].ttl
        return ttl != 0 and self.clock - age > ttl

    def _alive(self, name: Name) -> Row | None:
        row = self.rows.get(name)
        return None if row is None or self._expired(name, row.age) else row

    def _init(self, name: Name) -> Rows:
        spec = self.specs[name[0]]
        raw = row_math.init_row(spec.init, spec.dim, self.seed, row_math.hash_key(*name))
        return row_math.stored(raw, spec.dtype)

    def _new_row(self, name: Name, weights: Rows) -> Row:
        spec = self.specs[name[0]]
        return Row(weights, row_math.new_state(spec.optim, spec.dim), age=self.clock, changed=self.cuts)

    def _step(self, name: Name, row: Row, grad: Rows, hyper: tables.Hyper) -> None:
        spec = self.specs[name[0]]
        moved = row_math.step(spec.optim, hyper, row.weights, row.state, grad)
        row.weights = row_math.stored(moved, spec.dtype)
        row.age, row.changed = self.clock, self.cuts

    def _admit(self, name: Name, grad: Rows, hyper: tables.Hyper) -> bool:
        if name in self.rows:  # past its ttl
            self._drop(name)
        if name in self.waiting and self._expired(name, self.waiting[name].age):
            self._drop(name)
        count = self.waiting[name].count + 1 if name in self.waiting else 1
        if count < self.specs[name[0]].min_count:
            self.waiting[name] = PendingKey(count=count, age=self.clock, changed=self.cuts)
            return False
        self._make_room(name)
        self.waiting.pop(name, None)
        self.rows[name] = self._new_row(name, self._init(name))
        self._step(name, self.rows[name], grad, hyper)
        return True

    def _make_room(self, name: Name) -> None:
        """In a full slot the longest untouched row of the table goes; of equally old ones that with the lowest hash."""
        capacity = self.specs[name[0]].capacity_rows
        share = math.ceil(capacity / self.slots)
        slot = self.slot_of(name)
        mates = [other for other in self.rows if other[0] == name[0] and self.slot_of(other) == slot]
        mates.sort(key=lambda other: (self.rows[other].age, row_math.hash_key(*other)))
        if capacity:
            for victim in mates[: max(0, len(mates) - share + 1)]:
                self._drop(victim)

    def _drop(self, name: Name) -> None:
        was_here = self.rows.pop(name, None) or self.waiting.pop(name, None)
        if was_here and self.cuts:
            self.gone[name] = self.cuts
