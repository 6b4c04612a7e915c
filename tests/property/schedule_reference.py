"""The scheduler's plans and caches in plain Python sets: what cpp/schedule.h must agree with, given an allocation.

Nothing is shared with the native code: a cache is a dict of key -> (uses, last use), Algorithm 2 is written as in the
paper, set by set. Keys are (table, id).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Key = tuple[int, int]


@dataclass
class Cached:
    """A row in a cache: how often and when it was used, and the step that trained it last."""

    uses: int
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


class Reference:
    """Caches of all workers, and the plan of one step after the other."""

    def __init__(self, *, workers: int, capacity: int, order: str, p2p: bool, on_demand: bool) -> None:
        self.capacity, self.order, self.p2p, self.on_demand = capacity, order, p2p, on_demand
        self.caches: list[dict[Key, Cached]] = [{} for _ in range(workers)]
        self.step = self.flushed = 0
        self.last_holds: list[list[Key]] = [[] for _ in range(workers)]

    def plan(self, wanted: Sequence[Sequence[Key]]) -> list[Planned]:
        """`wanted`: the distinct keys of each worker, in the order in which its samples name them."""
        self.step += 1
        workers = range(len(wanted))
        plans = [Planned() for _ in workers]
        if not self.on_demand:
            if self.flushed < self.step - 1:
                for w in workers:
                    plans[w].write_back = set(self.last_holds[w])
            self.flushed = self.step - 1
        dependencies = [self._needed_by_others(w, wanted) for w in workers]
        enters: list[list[Key]] = []
        for w in workers:
            others = {key for other in workers if other != w for key in wanted[other]}
            for key in wanted[w]:
                if key in others:
                    (plans[w].pass_hit if key in self.caches[w] else plans[w].pass_pull).add(key)
                elif key in self.caches[w]:
                    plans[w].hold_hit.add(key)
            new = [key for key in wanted[w] if key not in others and key not in self.caches[w]]
            room = self.capacity - len(plans[w].hold_hit)
            enters.append(new[:room])
            plans[w].pass_pull |= set(new[room:])
        for w in workers:
            for key in dependencies[w]:
                plans[w].drop.add(key)
                trainers = [other for other in workers if key in enters[other]]
                if not self._dirty(w, key):
                    continue
                if self.p2p and trainers:
                    plans[w].sends.add((trainers[0], key))
                    plans[trainers[0]].receives.add((w, key))
                else:
                    plans[w].write_back.add(key)
        for w in workers:
            plans[w].hold_pull = set(enters[w]) - {key for _, key in plans[w].receives}
            self._after(w, plans[w], wanted[w], enters[w])
        return plans

    def _needed_by_others(self, worker: int, wanted: Sequence[Sequence[Key]]) -> set[Key]:
        """Algorithm 2: what others train next, and this worker caches."""
        by_others = {key for other, keys in enumerate(wanted) if other != worker for key in keys}
        return by_others & self.caches[worker].keys()

    def _dirty(self, worker: int, key: Key) -> bool:
        return self.caches[worker][key].trained > self.flushed

    def _after(self, worker: int, plan: Planned, wanted: Sequence[Key], enters: Sequence[Key]) -> None:
        cache = self.caches[worker]
        for key in plan.drop:
            del cache[key]
        holds = [key for key in wanted if key in plan.hold_hit] + list(enters)
        at_rest = sorted((key for key in cache if key not in plan.hold_hit), key=lambda key: self._age(cache[key]))
        for victim in at_rest[: max(0, len(cache) + len(enters) - self.capacity)]:
            if self._dirty(worker, victim):
                plan.write_back.add(victim)
            plan.drop.add(victim)
            del cache[victim]
        for turn, key in enumerate(holds):
            uses = cache[key].uses if key in cache else 0
            cache[key] = Cached(uses=uses + 1, used=(self.step, turn), trained=self.step)
        self.last_holds[worker] = holds

    def _age(self, row: Cached) -> tuple[int, ...]:
        return (*((row.uses,) if self.order == "lfu" else ()), *row.used)

    def cached(self, worker: int) -> list[tuple[Key, bool]]:
        """A cache, next victim first, and which rows only this worker has."""
        cache = self.caches[worker]
        return [(key, self._dirty(worker, key)) for key in sorted(cache, key=lambda key: self._age(cache[key]))]
