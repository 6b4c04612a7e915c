"""Learning rates of every table. A table's rate comes from the live parameter group that contains the table's weight.

In: the user's optimizers and the served tables. Out: kernels when tables are declared, and (table, lr, weight decay,
step) for every push. Each push reads the current values, so that schedulers work. Next:
embedding/modules/optimizers.py.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.domain.model import tables as domain_tables
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.modules import optimizers
from springtide.worker.link.optimizer import JobOptimizer

log = logging.getLogger(__name__)
Hyper = tuple[int, float, float, int]


@dataclass(slots=True, kw_only=True)
class GroupTables:
    """Tables that share one parameter group of the optimizer."""

    group: int
    tables: list[int] = field(default_factory=list)
    own_rate: list[tuple[int, domain_tables.OptimSpec | None, float | None]] = field(default_factory=list)
    """Tables with a separate optimizer or learning rate."""
    weights: list[nn.Parameter] = field(default_factory=list)
    settled: tuple[Any, ...] | None = None
    """Options with which the tables' kernels were created. None while every table names its own optimizer."""
    counts: bool = False
    """True if a table's own optimizer needs the step number."""
    told: domain_tables.Hyper | None = None
    hyper: list[Hyper] = field(default_factory=list)
    """Hyperparameters of the last push, which are used again while the rates stay the same."""


class TableRates:
    """Learning rates of every table of one model, for embeddings and dense parameters."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], served: Sequence[ServedTable]) -> None:
        self.optimizers = list(optimizers)
        self._followers: dict[int, list[GroupTables]] = {id(optimizer): [] for optimizer in optimizers}
        self._steps = {id(optimizer): 0 for optimizer in optimizers}
        self._untrained: list[nn.Parameter] = []
        self.weights: list[nn.Parameter] = []
        """Weights of the embedding tables, trained or not."""
        for table in served:
            self.weights.append(table.weight)
            self._follow(table)
        self._note_lazy(served)

    def _follow(self, table: ServedTable) -> None:
        place = self.place_of(table.weight)
        if place is None:
            self._untrained.append(table.weight)
            if table.weight.requires_grad and table.request.optimizer is not None:
                raise errors.BadInput(
                    f"table {table.name!r} names an optimizer, but its weight is in no parameter group, so nothing "
                    "would train it; pass model.parameters() to the optimizer, or freeze it with requires_grad_(False)"
                )
            return
        optimizer, group = place
        self._refuse_second(table, optimizer)
        # free the optimizer's memory, because the servers hold the state; Adagrad creates a state as large as the table
        # when it is constructed
        optimizer.state.pop(table.weight, None)
        follower = self._tables_of(optimizer, group)
        follower.weights.append(table.weight)
        if table.request.optimizer is None:
            kernel = optimizers.table_spec_of(optimizer, optimizer.param_groups[group], sparse=table.sparse)
            table.spec = replace(table.spec, optim=kernel)
            follower.settled = optimizers.settled(optimizer.param_groups[group])
        if table.request.optimizer is None and table.request.lr is None:
            follower.tables.append(table.spec.id)
        else:
            follower.own_rate.append((table.spec.id, table.request.optimizer, table.request.lr))
            follower.counts |= _counts(table.request.optimizer)

    def _refuse_second(self, table: ServedTable, first: torch.optim.Optimizer) -> None:
        for other in self.optimizers:
            held = any(param is table.weight for group in other.param_groups for param in group["params"])
            if held and other is not first:
                raise errors.BadInput(
                    f"the weight of table {table.name!r} is in two optimizers, {type(first).__name__} and "
                    f"{type(other).__name__}, but servers train rows with only one: take it out of one of them"
                )

    def _note_lazy(self, served: Iterable[ServedTable]) -> None:
        lazy: dict[str, list[str]] = {}
        for table in served:
            place = self.place_of(table.weight) if table.weight.requires_grad else None
            if place is None or table.request.optimizer is not None:
                continue
            optimizer, group = place
            if optimizers.differs_from_torch(table.spec.optim, optimizer.param_groups[group], sparse=table.sparse):
                lazy.setdefault(type(optimizer).__name__, []).append(table.name)
        for kind, names in lazy.items():
            log.warning(
                "%s trains %d tables (%r, ...) lazily: a step changes only the rows that it looks up. Plain PyTorch "
                "would also move other rows by their momentum and weight decay (docs/reference/optimizers.md)",
                kind,
                len(names),
                names[0],
            )

    def follow_dense(self, optimizer: torch.optim.Optimizer, group: int, table: int) -> None:
        follower = self._tables_of(optimizer, group)
        follower.tables.append(table)
        follower.settled = optimizers.settled(optimizer.param_groups[group])

    def place_of(self, weight: nn.Parameter) -> tuple[torch.optim.Optimizer, int] | None:
        """Return the optimizer that trains a parameter, and the index of the parameter's group. Return None if no
        optimizer trains the parameter.
        """
        for optimizer in self.optimizers:
            for index, group in enumerate(optimizer.param_groups):
                if any(param is weight for param in group["params"]):
                    return optimizer, index
        return None

    @property
    def follow_steps(self) -> bool:
        """True if rates depend on the number of steps, as with SparseAdam or `lr_decay`."""
        groups = [(optimizer, group) for optimizer in self.optimizers for group in optimizer.param_groups]
        decays = any(group.get("lr_decay") or isinstance(own, torch.optim.SparseAdam) for own, group in groups)
        return decays or any(follower.counts for followers in self._followers.values() for follower in followers)

    @property
    def steps(self) -> list[int]:
        return [self._steps[id(optimizer)] for optimizer in self.optimizers]

    @steps.setter
    def steps(self, counts: Sequence[int]) -> None:
        self._steps = {id(optimizer): count for optimizer, count in zip(self.optimizers, counts, strict=True)}

    def now(self, stepped: Sequence[JobOptimizer]) -> list[Hyper]:
        """Count a step of these optimizers. Return the hyperparameters of this push for every table that they train."""
        changed: list[Hyper] = []
        for optimizer in stepped:
            own = optimizer.own
            step = self._steps[id(own)] = self._steps[id(own)] + 1
            for follower in self._followers[id(own)]:
                group = own.param_groups[follower.group]
                if follower.settled is not None and follower.settled != optimizers.settled(group):
                    optimizers.refuse_changed(follower.settled, group)
                hyper = optimizers.hyper_of(own, group, step=step)
                if hyper != follower.told or follower.counts:
                    follower.hyper = self._changes(follower, hyper, step)
                    follower.told = hyper
                changed += follower.hyper
        return changed

    def idle_weights(self, stepped: Sequence[JobOptimizer]) -> list[nn.Parameter]:
        if len(stepped) == len(self.optimizers):
            return self._untrained
        awake = {id(optimizer.own) for optimizer in stepped}
        idle = [f.weights for key, followers in self._followers.items() if key not in awake for f in followers]
        return [*self._untrained, *(weight for weights in idle for weight in weights)]

    def _tables_of(self, optimizer: torch.optim.Optimizer, group: int) -> GroupTables:
        followers = self._followers[id(optimizer)]
        for follower in followers:
            if follower.group == group:
                return follower
        followers.append(GroupTables(group=group))
        return followers[-1]

    @staticmethod
    def _changes(follower: GroupTables, hyper: domain_tables.Hyper, step: int) -> list[Hyper]:
        changes = [(table, hyper.lr, hyper.weight_decay, hyper.step) for table in follower.tables]
        for table, own, lr in follower.own_rate:
            count = hyper.step if own is None else step if _counts(own) else 0
            changes.append((table, hyper.lr if lr is None else lr, hyper.weight_decay, count))
        return changes


def _counts(own: domain_tables.OptimSpec | None) -> bool:
    return own is not None and own.kind == "adam" and not own.eps_outside
