"""Pure. Runs the model of Herald's Appendix A: the pushes and pulls that a step needs, and the state after them.

In: what one step does (`Actions`, from the plans of all ranks by `actions`). Out: the state after it, the cost, or
`IllegalPlan` with the rule that is broken. The model has no cache, no order and no optimizer. Tests check every plan of
the scheduler with it.

For every key, the state S has a number for each worker and for the servers. 1 is the latest row. A number between 0 and
1 is a gradient that is not summed yet, because several workers trained the key. 0 is nothing of use. A step goes in
this order: pushes (Q), pulls (R), training. Rows are pushed only where the appendix requires it, or when they leave
their cache. Partial gradients may be pushed at once. In addition to the appendix, workers send each other rows and
values before the step (Appendix B), and after it gradients to the worker that keeps the row.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from springtide import errors

Key = tuple[int, int]
"""Table and id."""
Held = frozenset[tuple[Key, int]]
"""Keys with a worker each: an entry of 1 in one of the appendix's matrices."""
Moved = frozenset[tuple[Key, int, int]]
"""Keys that go from one worker to another."""


class IllegalPlan(errors.SpringtideError):
    """A plan that loses an update, trains on a stale row or pulls a missing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """One step of all workers."""

    trained: Held
    """U: which worker trains which key."""
    pushed: Held
    """Q, before the step: rows and partial gradients that go to the servers."""
    pulled: Held
    """R, before the step."""
    sent: Moved = frozenset()
    """Rows and values that go from worker to worker before the step."""
    dropped: Held = frozenset()
    """Rows that leave a cache before the step."""
    released: Held = frozenset()
    """Of what is pushed, rows that one worker trained alone and did not keep: its cache had no room."""
    gathered: Moved = frozenset()
    """Gradients that go from worker to worker after the step."""


@dataclass(slots=True)
class Model:
    """The state S: one matrix row per key, one column per worker and one for the servers."""

    workers: int
    at: defaultdict[Key, dict[int, Fraction]] = field(default_factory=lambda: defaultdict(dict))
    """By key and worker; who is not named has nothing."""
    servers: dict[Key, Fraction] = field(default_factory=dict)
    """By key; one that is not named has never been trained, and the servers have it."""

    def step(self, actions: Actions) -> int:
        """Check and execute one step; return its cost: the largest push plus the largest pull (the negative of the
        reward)."""
        self._check_pushes(actions)
        self._push(actions)
        self._check_pulls(actions)
        self._drop(actions)
        self._train(actions)
        return _largest(actions.pushed) + _largest(actions.pulled)

    def needed(self, trained: Held) -> Held:
        """Return the smallest Q: the pushes needed before these keys are trained there, without transfers between
        workers."""
        trainers = _by_key(trained)
        found = set()
        for key, who in trainers.items():
            for worker, part in self.at[key].items():
                others = who - {worker}
                if 0 < part < 1 or (part == 1 and not self._served(key) and others):
                    found.add((key, worker))
        return frozenset(found)

    def _served(self, key: Key) -> bool:
        return self.servers.get(key, Fraction(1)) == 1

    def _has(self, key: Key, worker: int) -> bool:
        return self.at[key].get(worker, Fraction(0)) == 1

    def _check_pushes(self, actions: Actions) -> None:
        by_peers = {(key, source) for key, source, _ in actions.sent}
        for key, worker in self.needed(actions.trained) - actions.pushed:
            if self._has(key, worker) and (key, worker) in by_peers:
                continue  # those who train it get it from this worker: held to account by the rule of pulls
            raise IllegalPlan(f"worker {worker} does not push key {key}, which it alone has and others train")
        leaving = actions.dropped | actions.released
        for key, worker in actions.pushed:
            part = self.at[key].get(worker, Fraction(0))
            if part == 0:
                raise IllegalPlan(f"worker {worker} pushes key {key} and has nothing of it")
            if part == 1 and (key, worker) not in self.needed(actions.trained) | leaving:
                raise IllegalPlan(f"worker {worker} pushes the row of key {key}, which nobody needs and which stays")
            if part == 1 and self._served(key):
                raise IllegalPlan(f"worker {worker} pushes the row of key {key}, which the servers have")

    def _push(self, actions: Actions) -> None:
        for key, worker in actions.pushed:
            part = self.at[key][worker]
            before = Fraction(0) if part == 1 else self.servers.get(key, Fraction(1))
            self.servers[key] = min(Fraction(1), before + part)
            if part != 1 or (key, worker) in actions.released:
                del self.at[key][worker]

    def _check_pulls(self, actions: Actions) -> None:
        for key, worker in actions.pulled:
            if not self._served(key):
                raise IllegalPlan(f"worker {worker} pulls key {key}, of which the servers lack the latest row")
        for key, source, _ in actions.sent:
            if not self._has(key, source):
                raise IllegalPlan(f"worker {source} sends key {key} and lacks its latest row")
        reached = actions.pulled | {(key, target) for key, _, target in actions.sent}
        for key, worker in actions.trained:
            if not self._has(key, worker) and (key, worker) not in reached:
                raise IllegalPlan(f"worker {worker} trains key {key} and gets no latest row of it")
        for key, worker in reached:
            if self._has(key, worker):
                raise IllegalPlan(f"worker {worker} gets key {key}, of which it has the latest row")

    def _drop(self, actions: Actions) -> None:
        trained = {key for key, _ in actions.trained}
        for key, worker in actions.dropped:
            if self.at[key].pop(worker, Fraction(0)) == 0:
                raise IllegalPlan(f"worker {worker} drops key {key} and has nothing of it")
            if key not in trained and not self._served(key) and not any(part == 1 for part in self.at[key].values()):
                raise IllegalPlan(f"worker {worker} drops the only latest row of key {key}")

    def _train(self, actions: Actions) -> None:
        moves = {(key, source): target for key, source, target in actions.gathered}
        for key, who in _by_key(actions.trained).items():
            share = Fraction(1, len(who))
            after: dict[int, Fraction] = defaultdict(Fraction)
            for worker in who:
                after[moves.get((key, worker), worker)] += share
            if len(after) > 1 and not self._served(key):
                raise IllegalPlan(f"workers {sorted(after)} have gradients of key {key} for servers that lack its row")
            self.at[key] = dict(after)
            self.servers[key] = Fraction(0)


def _by_key(held: Held) -> dict[Key, set[int]]:
    found: dict[Key, set[int]] = defaultdict(set)
    for key, worker in held:
        found[key].add(worker)
    return found


def _largest(held: Held) -> int:
    counts: dict[int, int] = defaultdict(int)
    for _, worker in held:
        counts[worker] += 1
    return max(counts.values(), default=0)


class Planned(Protocol):
    """The lists of a `_native.CachePlan`: tables and keys, with the other end's rank where there is one."""

    write_back: Any
    drop: Any
    hold_hit: Any
    hold_pull: Any
    pass_hit: Any
    pass_pull: Any
    sends: Any
    receives: Any
    value_sends: Any
    value_receives: Any
    gradient_sends: Any


def actions(plans: Sequence[Planned], before: Sequence[Planned] = ()) -> Actions:
    """Return the actions of one step's plans, with the gradients that remain to be pushed from the step `before`."""
    gradients: set[tuple[Key, int]] = set()
    for rank, plan in enumerate(before):
        away = set(_moved(plan.gradient_sends))
        passed = (*_keys(plan.pass_hit), *_keys(plan.pass_pull), *_moved(plan.value_receives))
        gradients |= {(key, rank) for key in passed if key not in away}
    trainers = _by_key(_trained(before))
    pushed, pulled, dropped = set(gradients), set(), set()
    for rank, plan in enumerate(plans):
        pushed |= {(key, rank) for key in _keys(plan.write_back)}
        pulled |= {(key, rank) for key in (*_keys(plan.hold_pull), *_keys(plan.pass_pull))}
        dropped |= {(key, rank) for key in _keys(plan.drop)}
    return Actions(
        trained=_trained(plans),
        released=frozenset((key, rank) for key, rank in gradients if len(trainers[key]) == 1),
        pushed=frozenset(pushed),
        pulled=frozenset(pulled),
        dropped=frozenset(dropped),
        sent=_between(plans, lambda plan: (*plan.sends, *plan.value_sends)),
        gathered=_between(plans, lambda plan: plan.gradient_sends),
    )


def _trained(plans: Sequence[Planned]) -> Held:
    found = set()
    for rank, plan in enumerate(plans):
        for listed in (plan.hold_hit, plan.hold_pull, plan.pass_hit, plan.pass_pull):
            found |= {(key, rank) for key in _keys(listed)}
        for peers in (plan.receives, plan.value_receives):
            found |= {(key, rank) for key in _moved(peers)}
    return frozenset(found)


def _keys(listed: Any) -> list[Key]:
    tables, keys = listed
    return [(int(table), int(key)) for table, key in zip(tables, keys, strict=True)]


def _moved(peers: Iterable[Any]) -> list[Key]:
    return [key for _, rows in peers for key in _keys(rows)]


def _between(plans: Sequence[Planned], lists: Any) -> Moved:
    return frozenset(
        (key, rank, int(peer)) for rank, plan in enumerate(plans) for peer, rows in lists(plan) for key in _keys(rows)
    )
