"""Random histories of a bsp group with worker caches. Ranks and servers run in any order, and messages arrive late or
twice. Ranks and servers are lost, the group changes, slots move, and rows are flushed and saved.

A row is the tuple of all its updates, each a pair (step, samples), so that values are compared exactly. Every read must
return the latest version. A flush and a checkpoint must contain all updates. In the end, every row must contain each of
its samples once. `RULES` can be dropped one by one, to show that each is needed.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.property.cache_plans import Plan, Planner

RULES = {
    "write_back": "a dirty row is written back before another rank trains it",
    "evict": "a dirty row that is evicted is written back",
    "drop": "a rank drops what others train from now on",
    "send": "a rank that sends a row to another keeps none",
    "sum": "the home of a row that several train waits for all their gradients",
    "flush": "a flush writes back all dirty rows, not only what the next step needs",
    "ahead": "rows that the step scheduled ahead trains are dirty after it, whatever was flushed before",
    "wait": "a pull for a step waits until the step before is applied",
    "generation": "frames of an older generation are refused",
    "empty": "caches begin empty with a new generation",
    "move": "parts of a step that wait for others move with their slot",
    "once": "a part that comes twice counts once",
}
KEYS, SLOTS, SERVERS, SAMPLES = 9, 3, 2, 6
Row = tuple[tuple[int, tuple[int, ...]], ...]


class Violated(AssertionError):
    """The protocol gave a wrong value."""


@dataclass(frozen=True)
class Part:
    """One rank's part of a step for one slot: gradients by key, and images of rows written back."""

    generation: int
    step: int
    rank: int
    slot: int
    gradients: tuple[tuple[int, tuple[int, ...]], ...]
    images: tuple[tuple[int, Row], ...]
    server: int


@dataclass
class Slot:
    """Rows of some keys on some server, and parts of the next step."""

    server: int
    applied: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    parts: dict[int, list[Part]] = field(default_factory=dict)


@dataclass
class Rank:
    """A worker, with its current step and phase."""

    step: int
    phase: str = "read"
    cache: dict[int, Row] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    wishes: set[str] = field(default_factory=set)


class World:
    """The whole system. Each move is a method that raises `Violated` when a rule is broken."""

    def __init__(self, chance: random.Random, *, dropped: str = "") -> None:
        assert not dropped or dropped in RULES
        self.chance, self.dropped = chance, dropped
        self.slots = [Slot(server=at % SERVERS) for at in range(SLOTS)]
        self.batches: dict[int, list[tuple[int, ...]]] = {}
        self.truth: dict[int, dict[int, Row]] = {0: {}}
        self.saved: tuple[int, dict[int, Row]] = (0, {})
        self.generation = 0
        self.wire: list[Part] = []
        self.begin(1, ranks=2)

    # ---- a group ----

    def begin(self, first: int, *, ranks: int) -> None:
        """Start a new generation with empty caches and directories."""
        self.generation += 1
        caches = [rank.cache for rank in getattr(self, "ranks", [])]
        self.ranks = [Rank(step=first) for _ in range(ranks)]
        if self.dropped == "empty":
            for rank, cache in zip(self.ranks, caches, strict=False):
                rank.cache = cache
        capacity, p2p = self.chance.choice([1, 2, 4]), self.chance.choice(["off", "rows", "gradients"])
        self.planner = Planner(ranks, capacity=capacity, p2p=p2p, dropped=self.dropped)
        self.plans: dict[int, list[Plan]] = {}
        self.dealt: dict[int, list[list[tuple[int, ...]]]] = {}
        self.mail: dict[tuple[str, int, int, int], Any] = {}
        self.outcome: dict[int, set[str]] = {}
        self.saving: int | None = None
        self.schedule(first)

    def schedule(self, step: int) -> None:
        """Make the same plan on every rank. Samples are assigned at random, because the protocol must work for any
        assignment."""
        if step in self.plans:
            return
        if step not in self.batches:
            self.batches[step] = [
                tuple(sorted({self.chance.randrange(KEYS) for _ in range(self.chance.choice([1, 2]))}))
                for _ in range(SAMPLES)
            ]
        order = self.chance.sample(range(SAMPLES), SAMPLES)
        shares = [sorted(order[rank :: len(self.ranks)]) for rank in range(len(self.ranks))]
        batch = self.batches[step]
        self.dealt[step] = [[tuple(at for at in share if key in batch[at]) for key in range(KEYS)] for share in shares]
        keys = [[key for key in range(KEYS) if dealt[key]] for dealt in self.dealt[step]]
        self.plans[step] = self.planner.plan(step, keys)

    def latest(self, step: int) -> dict[int, Row]:
        """The value that training without a cache would give after that step."""
        if step not in self.truth:
            after = dict(self.latest(step - 1))
            for dealt in self.dealt[step]:
                for key in range(KEYS):
                    if dealt[key]:
                        after[key] = (*after.get(key, ()), (step, dealt[key]))
            self.truth[step] = after
        return self.truth[step]

    # ---- what a rank does ----

    def movable(self) -> list[int]:
        """Return the ranks that can make a step."""
        return [at for at, rank in enumerate(self.ranks) if self.ready(at, rank)]

    def ready(self, at: int, rank: Rank) -> bool:
        """Return True if this rank waits for no other rank."""
        plan = self.plans.get(rank.step, [None] * len(self.ranks))[at]
        match rank.phase:
            case "read":
                if plan is None:
                    return False
                pulled = [*plan.hold_pull, *plan.pass_pull, *plan.value_pull]
                late = any(self.slots[key % SLOTS].applied < rank.step - 1 for key in pulled)
                mail = all(("row", sender, at, key) in self.mail for sender, key in plan.receives)
                mail &= all(("value", sender, at, key) in self.mail for sender, key in plan.value_receives)
                return mail and (not late or self.dropped == "wait")
            case "reduce":
                return all(other.step == rank.step and other.phase == "reduce" for other in self.ranks)
            case "give":
                return True
            case "push":
                there = [("gradient", sender, at, key) in self.mail for sender, key in plan.gradient_receives]
                return all(there) or self.dropped == "sum"
        return False  # done

    def go(self, at: int) -> None:
        """Let one rank make its next step."""
        rank = self.ranks[at]
        getattr(self, rank.phase)(at, rank, self.plans[rank.step][at])

    def read(self, at: int, rank: Rank, plan: Plan) -> None:
        """Check that pulls, cache hits and rows from other ranks have the latest version."""
        wanted = self.latest(rank.step - 1)
        seen = {key: rank.cache.get(key, ("not cached",)) for key in (*plan.pass_hit, *plan.hold_hit)}
        if self.dropped != "drop":
            for key in plan.drop:
                rank.cache.pop(key, None)
        for key in (*plan.hold_pull, *plan.pass_pull, *plan.value_pull):
            cached = self.dropped in ("drop", "empty", "send") and key in rank.cache  # a cache that asks itself first
            seen[key] = rank.cache[key] if cached else self.slots[key % SLOTS].rows.get(key, ())
        for sender, key in plan.receives:
            seen[key] = self.mail.pop(("row", sender, at, key))
        for sender, key in plan.value_receives:
            seen[key] = self.mail.pop(("value", sender, at, key))
        for key, row in seen.items():
            if row != wanted.get(key, ()):
                raise Violated(f"rank {at} reads key {key} for step {rank.step}: {row}, not {wanted.get(key, ())}")
        rank.cache.update({key: seen[key] for key in plan.held})
        rank.phase = "reduce"

    def reduce(self, at: int, rank: Rank, plan: Plan) -> None:
        """Complete the gradient exchange of a step, with the ranks' requests."""
        step = rank.step
        wishes = set().union(*(other.wishes for other in self.ranks))
        self.latest(step)
        self.schedule(step + 1)
        if wishes:
            self.planner.flushed(step)
        self.outcome[step] = wishes
        if "save" in wishes:
            self.saving = step
        for other in self.ranks:
            other.phase, other.wishes = "give", set()

    def give(self, at: int, rank: Rank, plan: Plan) -> None:
        """Send gradients to the homes of rows, before any rank waits for others."""
        for home, key in plan.gradient_sends:
            self.mail["gradient", at, home, key] = self.dealt[rank.step][at][key]
        rank.phase = "push"

    def push(self, at: int, rank: Rank, plan: Plan) -> None:
        """Put trained rows into the cache, and send gradients and images to the servers."""
        step, dealt = rank.step, self.dealt[rank.step][at]
        parts: dict[int, dict[int, tuple[int, ...]]] = {key: {at: dealt[key]} for key in plan.held}
        for sender, key in plan.gradient_receives:
            if (part := self.mail.pop(("gradient", sender, at, key), None)) is not None:
                parts[key][sender] = part
        for key in plan.held:
            rank.cache[key] = (*rank.cache[key], *((step, parts[key][one]) for one in sorted(parts[key])))
        following, wishes = self.plans[step + 1][at], self.outcome[step]
        back = list(following.write_back)
        if wishes and self.dropped != "flush":
            back = list(rank.cache)
        if not wishes & {"change", "end"}:
            for to, key in following.sends:
                self.mail["row", at, to, key] = rank.cache[key]
            for to, key in following.value_sends:
                self.mail["value", at, to, key] = rank.cache[key]
        for number, slot in enumerate(self.slots):
            gradients = tuple((key, dealt[key]) for key in sorted(plan.passed) if key % SLOTS == number)
            images = tuple((key, rank.cache[key]) for key in sorted(set(back)) if key % SLOTS == number)
            self.wire.append(Part(self.generation, step, at, number, gradients, images, slot.server))
        rank.step += 1
        rank.phase = "done" if wishes & {"change", "end"} else "read"

    # ---- what servers do ----

    def deliver(self, at: int, *, twice: bool = False) -> None:
        """Deliver any message now, and perhaps once more later. A server that no longer has the slot forwards the
        message."""
        part = self.wire[at] if twice else self.wire.pop(at)
        slot = self.slots[part.slot]
        if part.generation != self.generation and self.dropped != "generation":
            return
        if part.step <= slot.applied and self.dropped != "once":
            return
        waiting = slot.parts.setdefault(part.step, [])
        if self.dropped == "once" or part.rank not in [other.rank for other in waiting]:
            waiting.append(part)
        ranks = len(self.ranks)
        while len(waiting := slot.parts.get(slot.applied + 1, [])) >= ranks:
            self.apply(slot, slot.parts.pop(slot.applied + 1))
        if part.step <= slot.applied and waiting:
            self.apply(slot, slot.parts.pop(part.step, []), again=True)

    def apply(self, slot: Slot, parts: list[Part], *, again: bool = False) -> None:
        """Apply a step to one slot: sums in rank order, then images. A flushed slot must be complete."""
        for part in sorted(parts, key=lambda one: one.rank):
            for key, samples in part.gradients:
                slot.rows[key] = (*slot.rows.get(key, ()), (part.step, samples))
        for part in parts:
            slot.rows.update(dict(part.images))
        if again:
            return
        slot.applied += 1
        if self.outcome.get(slot.applied):
            self.whole(slot, self.slots.index(slot))
        if all(other.applied == self.saving for other in self.slots):
            self.saved = (slot.applied, {key: row for other in self.slots for key, row in other.rows.items()})
            self.saving = None

    def whole(self, slot: Slot, number: int) -> None:
        """Check that a flushed slot has the latest version of all its rows, for a checkpoint or a reader."""
        wanted = {key: row for key, row in self.latest(slot.applied).items() if key % SLOTS == number}
        if slot.rows != wanted:
            raise Violated(f"slot {number} flushed at step {slot.applied} has {slot.rows}, not {wanted}")

    # ---- what goes wrong, and what people want ----

    def wish(self, at: int, what: str) -> None:
        """Let a rank request a flush with its next step: for a checkpoint, a change of the group, or a read."""
        if self.ranks[at].phase != "done":
            self.ranks[at].wishes.add(what)

    def settled(self) -> bool:
        """Return True if all ranks have stopped and the servers have all messages."""
        last = self.ranks[0].step - 1
        return all(rank.phase == "done" for rank in self.ranks) and all(s.applied == last for s in self.slots)

    def change(self, ranks: int) -> None:
        """Continue with more or fewer ranks; no sample is trained again."""
        self.begin(self.ranks[0].step, ranks=ranks)

    def lose(self, ranks: int) -> None:
        """Lose a rank or a server; the whole group returns to the last checkpoint."""
        step, rows = self.saved
        for number, slot in enumerate(self.slots):
            slot.rows = {key: row for key, row in rows.items() if key % SLOTS == number}
            slot.applied, slot.parts = step, {}
        self.truth = {known: rows for known, rows in self.truth.items() if known <= step}
        self.begin(step + 1, ranks=ranks)

    def move(self, number: int, server: int) -> None:
        """Move a slot to another server between two messages."""
        self.slots[number].server = server
        if self.dropped == "move":
            self.slots[number].parts = {}

    # ---- a run by dice ----

    def run(self, *, moves: int = 400) -> None:
        """Run a random history, then no faults until the end of the pass."""
        for _ in range(moves):
            self.any()
        self.finish()

    def any(self) -> None:
        """Make one random move."""
        dice = self.chance.random()
        if self.settled():
            self.change(self.chance.choice([1, 2, 3]))
        elif dice < 0.03:
            self.wish(self.chance.randrange(len(self.ranks)), self.chance.choice(["save", "look", "change"]))
        elif dice < 0.04:
            self.lose(self.chance.choice([1, 2, 3]))
        elif dice < 0.06:
            self.move(self.chance.randrange(SLOTS), self.chance.randrange(SERVERS))
        elif self.wire and (dice < 0.5 or not self.movable()):
            self.deliver(self.chance.randrange(len(self.wire)), twice=self.chance.random() < 0.1)
        elif movable := self.movable():
            self.go(self.chance.choice(movable))

    def finish(self) -> None:
        """End the pass without faults, which flushes all rows. Every row must then contain each of its samples once."""
        for _ in range(2000):
            if self.settled():
                break
            for at in range(len(self.ranks)):
                self.wish(at, "end")
            if movable := self.movable():
                self.go(movable[0])
            elif self.wire:
                self.deliver(0)
            else:
                raise Violated(f"stuck: {[(rank.step, rank.phase) for rank in self.ranks]}")
        last = self.ranks[0].step
        for key in range(KEYS):
            wanted = sorted(
                (step, at) for step in range(1, last) for at, keys in enumerate(self.batches[step]) if key in keys
            )
            row = self.slots[key % SLOTS].rows.get(key, ())
            had = sorted((step, at) for step, samples in row for at in samples)
            if had != wanted:
                raise Violated(f"key {key} has {had}, not {wanted}")
