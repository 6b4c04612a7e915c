"""Pure. Schedules of faults: what happens to a job, and at which event.

In: a seed and a mode. Out: `Schedule`, equal for equal seeds. A step waits for an event, not for a time: a number of
further trained batches, or an event in the job's log. So a seed repeats a run.
"""

import random
from dataclasses import dataclass, field

BATCH = 32
BATCHES = 90
"""Batches of a job without faults."""
HELD_BACK = 0.4
"""Share of the batches that a job may train only after its last fault."""
MOST_STEPS = 5


@dataclass(frozen=True)
class Step:
    """One fault: wait for `after` more batches (or for an event `event` from now on), then do `fault` to `target`.

    `number` chooses one of equal roles, or is the number to scale to. `lasts` is the number of batches until the fault
    ends.
    """

    fault: str
    target: str = ""
    number: int = 0
    after: int = 0
    event: str = ""
    lasts: int = 0

    def __str__(self):
        when = f"next {self.event}" if self.event else f"+{self.after} batches"
        what = " ".join(map(str, filter(None, [self.fault, self.target, self.number and f"#{self.number}"])))
        return f"[{when}] {what}" + (f" for {self.lasts} batches" if self.lasts else "")


@dataclass(frozen=True)
class Schedule:
    """The faults of one run."""

    seed: int
    steps: list[Step] = field(default_factory=list)

    def __str__(self):
        return "; ".join(map(str, self.steps))


def roles_of(mode):
    """Return the kinds of roles that a job of this mode has."""
    return ["worker", "server", "master"] + ["data-worker"] * bool(mode.data_workers)


def draw(seed, mode, kinds=None):
    """Draw the faults of a run. `kinds` limits them."""
    chance = random.Random(f"{seed} {mode}")
    known = [kind for kind in FAULTS if (kinds is None or kind in kinds)]
    steps = []
    for _ in range(chance.randint(1, MOST_STEPS)):
        kind = chance.choices(known, [FAULTS[kind][0] for kind in known])[0]
        when = _when(chance, steps[-1].fault if steps else "")
        steps.append(FAULTS[kind][1](chance, mode, when))
    return Schedule(seed, steps)


def _when(chance, before):
    """When a step begins: mostly after some batches, sometimes at an event that the fault before it leads to."""
    if chance.random() < 0.6:
        return {"after": chance.randint(0 if before else 1, 12)}
    follow = {"": ["joined", "placed", "checkpoint"], "kill": ["joined", "decision"], "scale": ["decision"]}
    return {"event": chance.choice(follow.get(before, ["checkpoint"]))}


def _kill(chance, mode, when):
    return Step("kill", chance.choice([*roles_of(mode), "watchdog"]), chance.randrange(4), **when)


def _both(chance, mode, when):
    return Step("kill both", chance.choice(["server", "master"]), chance.randrange(4), **when)


def _pause(chance, mode, when):
    target = chance.choice([*roles_of(mode), "agent"])
    return Step("pause", target, chance.randrange(4), **when, lasts=chance.randint(1, 10))


def _stop(chance, mode, when):
    """Choose only roles whose silence the master notices within seconds; a server's silence takes half a minute."""
    return Step("stop", chance.choice([role for role in roles_of(mode) if role != "server"]), 0, **when)


def _scale(chance, mode, when):
    return Step("scale", chance.choice(["workers", "servers"]), chance.randint(1, 3), **when)


def _lose(chance, mode, when):
    return Step("lose", chance.choice(roles_of(mode)), chance.randint(1, 5), **when, lasts=chance.randint(1, 10))


def _at_a_role(fault):
    def draw(chance, mode, when):
        return Step(fault, chance.choice(roles_of(mode)), chance.randrange(4), **when, lasts=chance.randint(1, 10))

    return draw


def _of_worker(chance, mode, when):
    return Step("out of memory", "worker", chance.randrange(4), **when)


def _numbered(fault, *numbers):
    def draw(chance, mode, when):
        return Step(fault, "", chance.choice(numbers), **when, lasts=chance.randint(1, 10))

    return draw


FAULTS = {
    "kill": (8, _kill),
    "kill both": (2, _both),
    "pause": (3, _pause),
    "stop": (2, _stop),
    "scale": (4, _scale),
    "lose": (2, _lose),
    "deaf": (2, _at_a_role("deaf")),
    "reset": (3, _at_a_role("reset")),
    "slow network": (1, _numbered("slow network", 0)),
    "clock": (1, _numbered("clock", -2, -1, 1, 30)),
    "slow disk": (1, _numbered("slow disk", 2, 20)),
    "full disk": (1, _numbered("full disk", 0)),
    "crash": (3, _numbered("crash", 0, 1)),
    "drain": (2, _numbered("drain", 0)),
    "rival": (1, _numbered("rival", 0)),
    "hang up": (1, _numbered("hang up", 0)),
    "out of memory": (1, _of_worker),
}
"""Kinds of faults: weight, and how a step of the kind is drawn."""
