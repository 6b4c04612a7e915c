"""Plans of a worker cache in Python, as in cpp/cache/cache_plan.h: the protocol's model checker executes them.

In: which rank trains which keys at a step. Out: a `Plan` a rank. Single holder, dirty until written back, LRU. With a
rule of `cache_world.RULES` dropped the planner forgets that rule, to show that a violation is seen.
"""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class Plan:
    """What one rank does around one step: the lists of `CachePlan`."""

    write_back: list[int] = field(default_factory=list)
    sends: list[tuple[int, int]] = field(default_factory=list)
    receives: list[tuple[int, int]] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)
    hold_hit: list[int] = field(default_factory=list)
    hold_pull: list[int] = field(default_factory=list)
    pass_hit: list[int] = field(default_factory=list)
    pass_pull: list[int] = field(default_factory=list)
    value_sends: list[tuple[int, int]] = field(default_factory=list)
    value_receives: list[tuple[int, int]] = field(default_factory=list)
    value_pull: list[int] = field(default_factory=list)
    gradient_sends: list[tuple[int, int]] = field(default_factory=list)
    gradient_receives: list[tuple[int, int]] = field(default_factory=list)

    @property
    def held(self) -> list[int]:
        """Trained in this rank's cache."""
        return [*self.hold_hit, *self.hold_pull, *(key for _, key in self.receives)]

    @property
    def passed(self) -> list[int]:
        """Trained by a push to the servers."""
        return [*self.pass_hit, *self.pass_pull]


class Planner:
    """Directory of cached rows by worker, oldest first, with the rows servers lack."""

    def __init__(self, ranks: int, *, capacity: int, p2p: str, dropped: str = "") -> None:
        self.capacity, self.p2p, self.dropped = capacity, p2p, dropped
        self.caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(ranks)]
        self.holder: dict[int, int] = {}
        self.dirty_since: dict[int, int] = {}

    def plan(self, step: int, keys: list[list[int]]) -> list[Plan]:
        """Plans of all ranks for a step, given the distinct keys of each."""
        plans = [Plan() for _ in keys]
        wanted_by: dict[int, list[int]] = {}
        for rank, mine in enumerate(keys):
            for key in mine:
                wanted_by.setdefault(key, []).append(rank)
        for key, ranks in wanted_by.items():  # first what frees room, and what is there
            if len(ranks) > 1:
                if self.p2p != "gradients":
                    self._shared(key, ranks, plans)
            elif self.holder.get(key) == ranks[0]:
                plans[ranks[0]].hold_hit.append(key)
                self.caches[ranks[0]].move_to_end(key)
        for key, ranks in wanted_by.items():
            if len(ranks) == 1 and key not in plans[ranks[0]].hold_hit:
                self._alone(key, ranks[0], plans)
        if self.p2p == "gradients":
            for key, ranks in wanted_by.items():
                if len(ranks) > 1:
                    self._at_home(key, ranks, plans)
        for plan in plans:
            self.dirty_since.update(dict.fromkeys(plan.held, step))
        return plans

    def flushed(self, step: int) -> None:
        """Mark rows that were dirty at that step as clean; rows trained later stay dirty."""
        for key, since in list(self.dirty_since.items()):
            if since <= step or self.dropped == "ahead":
                del self.dirty_since[key]

    def _shared(self, key: int, ranks: list[int], plans: list[Plan]) -> None:
        holder = self.holder.get(key)
        for rank in ranks:
            (plans[rank].pass_hit if rank == holder else plans[rank].pass_pull).append(key)
        if holder is not None:
            self._leave(key, plans)

    def _alone(self, key: int, rank: int, plans: list[Plan]) -> None:
        plan, cache, holder = plans[rank], self.caches[rank], self.holder.get(key)
        fits = self._room(rank, plans)
        if not fits:
            plan.pass_pull.append(key)
            if holder is not None:
                self._leave(key, plans)
            return
        if holder is None:
            plan.hold_pull.append(key)
        elif self.p2p != "off" and key in self.dirty_since:
            self._hand_over(key, holder, rank, plans)
        else:
            self._leave(key, plans)
            plan.hold_pull.append(key)
        cache[key], self.holder[key] = None, rank

    def _hand_over(self, key: int, holder: int, rank: int, plans: list[Plan]) -> None:
        plans[holder].sends.append((rank, key))
        plans[rank].receives.append((holder, key))
        if self.dropped != "send":
            plans[holder].drop.append(key)
        del self.caches[holder][key]

    def _at_home(self, key: int, ranks: list[int], plans: list[Plan]) -> None:
        """Let one trainer of a row keep it and sum the others' gradients; without room it is a shared row."""
        holder = self.holder.get(key)
        home = holder if holder in ranks else ranks[0]
        if holder != home and not self._room(home, plans):
            self._shared(key, ranks, plans)
            return
        holder = self.holder.get(key)  # making room may have taken it
        dirty = key in self.dirty_since
        for rank in ranks:
            if rank != home:
                if dirty and holder is not None:
                    plans[holder].value_sends.append((rank, key))
                    plans[rank].value_receives.append((holder, key))
                else:
                    plans[rank].value_pull.append(key)
                plans[rank].gradient_sends.append((home, key))
                plans[home].gradient_receives.append((rank, key))
        if holder == home:
            plans[home].hold_hit.append(key)
            self.caches[home].move_to_end(key)
            return
        if holder is None or not dirty:
            if holder is not None:
                self._leave(key, plans)
            plans[home].hold_pull.append(key)
        else:
            self._hand_over(key, holder, home, plans)
        self.caches[home][key], self.holder[key] = None, home

    def _room(self, rank: int, plans: list[Plan]) -> bool:
        """Make room for one more row by evicting the oldest row this step does not need."""
        cache, used = self.caches[rank], set(plans[rank].held)
        if len(cache) < self.capacity:
            return True
        oldest = next((key for key in cache if key not in used), None)
        if oldest is None:
            return False
        self._leave(oldest, plans, evicted=True)
        return True

    def _leave(self, key: int, plans: list[Plan], *, evicted: bool = False) -> None:
        """A row leaves its holder's cache; the servers must have it."""
        holder = self.holder.pop(key)
        rule = "evict" if evicted else "write_back"
        if self.dirty_since.pop(key, None) is not None and self.dropped != rule:
            plans[holder].write_back.append(key)
        plans[holder].drop.append(key)
        del self.caches[holder][key]
