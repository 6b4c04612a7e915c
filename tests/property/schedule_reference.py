"""The scheduler's plans and caches in plain Python sets: the reference for cpp/schedule/schedule.h.

Nothing is shared with the native code: a cache is a dict of key -> last use, Algorithm 2 is written as in the
paper, set by set. Keys are (table, id).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Key = tuple[int, int]
ENDS = ("sends", "receives", "value_sends", "value_receives", "gradient_sends", "gradient_receives")


@dataclass
class Cached:
    """A cached row: its last use, and the step that trained it last."""

    used: tuple[int, int]
    trained: int


@dataclass
class Planned:
    """The lists of a CachePlan as sets; what is sent or received with the other end."""

    write_back: set[Key] = field(default_factory=set)
    drop: set[Key] = field(default_factory=set)
    hold_hit: set[Key] = field(default_factory=set)
    hold_pull: set[Key] = field(default_factory=set)
    pass_hit: set[Key] = field(default_factory=set)
    pass_pull: set[Key] = field(default_factory=set)
    sends: set[tuple[int, Key]] = field(default_factory=set)
    receives: set[tuple[int, Key]] = field(default_factory=set)
    value_sends: set[tuple[int, Key]] = field(default_factory=set)
    value_receives: set[tuple[int, Key]] = field(default_factory=set)
    gradient_sends: set[tuple[int, Key]] = field(default_factory=set)
    gradient_receives: set[tuple[int, Key]] = field(default_factory=set)


class Reference:
    """Caches of all workers, and the plan of one step after the other."""

    def __init__(self, *, workers: int, capacity: int, p2p: str, p2p_trainers: int, on_demand: bool) -> None:
        self.capacity, self.on_demand = capacity, on_demand
        self.p2p, self.p2p_trainers = p2p, p2p_trainers
        self.caches: list[dict[Key, Cached]] = [{} for _ in range(workers)]
        self.step = self.flushed = 0
        self.last_holds: list[list[Key]] = [[] for _ in range(workers)]

    def plan(self, wanted: Sequence[Sequence[Key]], batch_order: Sequence[Key]) -> list[Planned]:
        """`wanted`: the distinct keys of each worker, in the order in which its samples name them.

        `batch_order`: those of the whole batch, table by table.
        """
        self.step += 1
        self.batch_order = batch_order
        workers = range(len(wanted))
        plans = [Planned() for _ in workers]
        if not self.on_demand:
            if self.flushed < self.step - 1:
                for w in workers:
                    plans[w].write_back = set(self.last_holds[w])
            self.flushed = self.step - 1
        dependencies = [self._needed_by_others(w, wanted) for w in workers]
        keeper, enters = self._keepers(wanted)
        owner = {key: w for w in workers for key in self.caches[w]}
        dirty = {key: self._dirty(w, key) for key, w in owner.items()}
        for w in workers:
            for key in wanted[w]:
                self._trained(plans, w, key, keeper.get(key), owner.get(key), dirty.get(key, False))
        for w in workers:
            for key in dependencies[w]:
                if keeper.get(key) == w:
                    continue
                plans[w].drop.add(key)
                if not dirty[key]:
                    continue
                if self.p2p != "off" and key in keeper:
                    plans[w].sends.add((keeper[key], key))
                    plans[keeper[key]].receives.add((w, key))
                else:
                    plans[w].write_back.add(key)
        for w in workers:
            self._after(w, plans[w], wanted[w], enters[w])
        return plans

    def _keepers(self, wanted: Sequence[Sequence[Key]]) -> tuple[dict[Key, int], list[list[Key]]]:
        """Which worker caches each key after the step, and what enters each cache: lone trainers first, then homes."""
        trainers: dict[Key, list[int]] = {}
        for w, keys in enumerate(wanted):
            for key in keys:
                trainers.setdefault(key, []).append(w)
        few = {k for k, ws in trainers.items() if self.p2p == "gradients" and 1 < len(ws) <= self.p2p_trainers}
        keeper = {
            key: w
            for w, cache in enumerate(self.caches)
            for key in cache
            if trainers.get(key) == [w] or (key in few and w in trainers[key])
        }
        homes = [sum(w == at and key in few for key, at in keeper.items()) for w in range(len(wanted))]
        room = [self.capacity - sum(w == at for at in keeper.values()) for w in range(len(wanted))]
        enters: list[list[Key]] = []
        for w, keys in enumerate(wanted):
            enters.append([key for key in keys if trainers[key] == [w] and key not in keeper][: room[w]])
            keeper.update(dict.fromkeys(enters[w], w))
        for key in (key for key in self.batch_order if key in few and key not in keeper):
            free = [w for w in trainers[key] if len(enters[w]) < room[w]]
            if free:
                home = min(free, key=lambda w: (homes[w], w))
                keeper[key] = home
                homes[home] += 1
                enters[home].append(key)
        return keeper, enters

    def _trained(
        self, plans: list[Planned], worker: int, key: Key, keeper: int | None, owner: int | None, dirty: bool
    ) -> None:
        mine = plans[worker]
        if keeper == worker:
            if owner == worker:
                mine.hold_hit.add(key)
            elif not dirty or self.p2p == "off":
                mine.hold_pull.add(key)
            return
        if keeper is not None:
            mine.gradient_sends.add((keeper, key))
            plans[keeper].gradient_receives.add((worker, key))
        if owner == worker:
            mine.pass_hit.add(key)
        elif keeper is not None and owner is not None and (owner == keeper or dirty):
            mine.value_receives.add((owner, key))
            plans[owner].value_sends.add((worker, key))
        else:
            mine.pass_pull.add(key)

    def _needed_by_others(self, worker: int, wanted: Sequence[Sequence[Key]]) -> set[Key]:
        """Algorithm 2: keys that others train next and this worker caches."""
        by_others = {key for other, keys in enumerate(wanted) if other != worker for key in keys}
        return by_others & self.caches[worker].keys()

    def _dirty(self, worker: int, key: Key) -> bool:
        return self.caches[worker][key].trained > self.flushed

    def _after(self, worker: int, plan: Planned, wanted: Sequence[Key], enters: Sequence[Key]) -> None:
        cache = self.caches[worker]
        for key in plan.drop:
            del cache[key]
        holds = [key for key in wanted if key in plan.hold_hit] + list(enters)
        at_rest = sorted((key for key in cache if key not in plan.hold_hit), key=lambda key: cache[key].used)
        for victim in at_rest[: max(0, len(cache) + len(enters) - self.capacity)]:
            if self._dirty(worker, victim):
                plan.write_back.add(victim)
            plan.drop.add(victim)
            del cache[victim]
        for turn, key in enumerate(holds):
            cache[key] = Cached(used=(self.step, turn), trained=self.step)
        self.last_holds[worker] = holds

    def cached(self, worker: int) -> list[tuple[Key, bool]]:
        """A cache, next victim first, and which rows only this worker has."""
        cache = self.caches[worker]
        return [(key, self._dirty(worker, key)) for key in sorted(cache, key=lambda key: cache[key].used)]
