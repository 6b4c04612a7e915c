"""Pure. Whether a bsp group should keep rows in its workers: what that saves of a step against what a death costs then.

In: what the group has measured of its steps, and what a schedule of its own batches would save. Out: a `Verdict` with
its figures. Next: `train.deciding` acts on it. With a cache a worker's death takes the whole group back to its last
checkpoint, without one only the lost rank is started again: that cost is in the decision.
"""

from dataclasses import dataclass

LEAST_GAIN = 0.05  # of a step: less is within what a step varies by, and a cache is one thing more that can go wrong
USUAL_S = 30 * 86400.0  # with nothing seen yet, a worker is thought to die once in so long
DOUBT = 0.01  # deaths that this thought weighs as much as: what is seen soon counts for more
SLOWER = 1.02  # steps may be so much longer with a cache before it is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A group without a cache, and what a schedule says about its batches."""

    step_s: float
    """Seconds of a step."""
    waited_s: float
    """Of these, seconds blocked on pulls and pushes."""
    saved: float
    """Part of the transmissions of a step that the schedule would spare."""
    schedule_s: float
    """Seconds to schedule a batch, in a thread of its own."""
    read_s: float
    """Seconds to read a worker's part of a batch; with a schedule every worker reads all of it, in that thread too."""
    workers: int
    deaths: int
    """Of workers, so far."""
    watched_s: float
    """Seconds in which they died."""
    checkpoint_s: float | None
    """Seconds between checkpoints; None: there are none."""
    saved_once: bool
    """Whether there is one already."""
    return_s: float
    """Seconds until a group that went back trains again, beyond what a lost rank takes without a cache."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and why."""

    on: bool
    why: str


def death_rate(measured: Measured) -> float:
    """Deaths a second of the whole group: what was seen, and a little of what was thought before."""
    lived_s = DOUBT * USUAL_S + measured.workers * measured.watched_s
    return measured.workers * (DOUBT + measured.deaths) / lived_s


def gain(measured: Measured) -> float:
    """Part of a step that a cache spares. Reading and scheduling go on beside the step, but cannot take longer."""
    beside = measured.workers * measured.read_s + measured.schedule_s
    after = max(measured.step_s - measured.saved * measured.waited_s, beside)
    return 1 - after / measured.step_s


def price(measured: Measured) -> float:
    """Part of the time that deaths cost more with a cache: half of the way between checkpoints, and the return."""
    again = (measured.checkpoint_s or 0.0) / 2 + measured.return_s
    return death_rate(measured) * again


def decide(measured: Measured) -> Verdict:
    """Whether a group without a cache should have one."""
    share = measured.waited_s / measured.step_s
    takes = f"pulls and pushes take {100 * share:.0f}% of a step"
    if measured.checkpoint_s is None:
        return Verdict(False, f"{takes}, but there are no checkpoints, and with a cache a lost worker goes back to one")
    if share < LEAST_GAIN:
        return Verdict(False, f"{takes}: a cache could not spare more")
    gained, paid = gain(measured), price(measured)
    sums = (
        f"{takes}, a schedule of its own batches spares {100 * measured.saved:.0f}% of what is sent: "
        f"{100 * gained:.0f}% of a step gained, {100 * paid:.2f}% lost to deaths "
        f"({86400 * death_rate(measured):.2g} a day, each {measured.checkpoint_s / 2 + measured.return_s:.0f} s)"
    )
    if not measured.saved_once:
        return Verdict(False, f"{sums}; the first checkpoint is not complete yet")
    if gained - paid < LEAST_GAIN:
        return Verdict(False, f"{sums}; wanted {100 * LEAST_GAIN:.0f}% net")
    return Verdict(True, sums)


def keep(before_s: float, after_s: float, sums: str) -> Verdict:
    """Whether a group that has one keeps it: steps as long as `after_s` must not be longer than those without."""
    times = f"a step took {1000 * before_s:.1f} ms without a cache and {1000 * after_s:.1f} ms with it"
    return Verdict(after_s <= SLOWER * before_s, f"{times}; {sums}" if after_s <= SLOWER * before_s else times)
