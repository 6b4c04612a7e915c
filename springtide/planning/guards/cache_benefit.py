"""Pure. Decides whether a bsp group should cache rows in its workers, by comparing saved time with all costs.

In: measured step times of the group, and the savings that a schedule of its own batches would bring. Out: a
`CacheVerdict` with its figures. Next: `worker.cache.auto_cache` applies it.

With a cache, the death of a worker sends the whole group back to its last checkpoint. Without a cache, only the lost
rank restarts. The decision includes this cost. A cache saves bytes only. Each step still makes one pull and one push,
and every rank still reads and schedules whole batches. The time for exchange between workers and for bookkeeping is
known only after a cache was on.
"""

from dataclasses import dataclass

LEAST_GAIN = 0.05  # of a step: less is within what a step varies by, and a cache is one thing more that can go wrong
USUAL_S = 30 * 86400.0  # with nothing seen yet, a worker is thought to die once in so long
DOUBT = 0.01  # deaths that this thought weighs as much as: what is seen soon counts for more


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashRisk:
    """Probability that a worker dies, and the time that a death costs a group with a cache."""

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
    """Seconds until a group that went back trains again, beyond what a lost rank takes without a cache: seen in this
    job, or as long as it took to start (`job.recovery.bsp_breaks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMeasurement:
    """Measured steps of a group without a cache, and the savings that a schedule predicts."""

    step_s: float
    """Seconds of a step."""
    waited_s: float
    """Of these, seconds blocked on pulls and pushes."""
    trips_s: float
    """Of those, what requests with nothing in them would have taken too."""
    saved: float
    """Part of the bytes of a step that the schedule would spare; below 0: rows with their optimizer state are more."""
    slower_s: float
    """Seconds by which steps were longer while every rank read whole batches and scheduled them on paper."""
    unseen_s: float
    """Seconds by which steps were longer than reckoned when there was a cache: exchange, books. 0: there was none."""
    beside_s: float
    """Seconds to read and schedule a batch, in a thread of its own: no step can be shorter."""
    risk: CrashRisk


@dataclass(frozen=True, slots=True)
class CacheVerdict:
    """Decision about the cache, with its reason."""

    on: bool
    why: str


def death_rate(risk: CrashRisk) -> float:
    """Deaths a second of the whole group: what was seen, and a little of what was thought before."""
    lived_s = DOUBT * USUAL_S + risk.workers * risk.watched_s
    return risk.workers * (DOUBT + risk.deaths) / lived_s


def price(risk: CrashRisk) -> float:
    """Part of the time that deaths cost more with a cache: half of the way between checkpoints, and the return."""
    return death_rate(risk) * _again_s(risk)


def spared_s(measured: CacheMeasurement) -> float:
    """Seconds of waits that a cache spares: those for bytes, by as many as are not sent."""
    return measured.saved * max(0.0, measured.waited_s - measured.trips_s)


def cost_s(measured: CacheMeasurement) -> float:
    """Seconds that a cache itself takes of a step: reading whole batches, scheduling, exchange, books."""
    return measured.slower_s + measured.unseen_s


def reckoned_s(measured: CacheMeasurement) -> float:
    """Seconds of a step with a cache. Reading and scheduling go on beside the step, but cannot take longer."""
    return max(measured.step_s - spared_s(measured) + cost_s(measured), measured.beside_s)


def decide(measured: CacheMeasurement) -> CacheVerdict:
    risk, step_s = measured.risk, measured.step_s
    share = measured.waited_s / step_s
    takes = f"pulls and pushes take {100 * share:.0f}% of a step"
    if risk.checkpoint_s is None:
        return CacheVerdict(
            False, f"{takes}, but there are no checkpoints, and with a cache a lost worker goes back to one"
        )
    if share < LEAST_GAIN:
        return CacheVerdict(False, f"{takes}: a cache could not spare more")
    takes = f"{takes}, {100 * min(share, measured.trips_s / step_s):.0f}% round trips that stay"
    if share - measured.trips_s / step_s < LEAST_GAIN:
        return CacheVerdict(False, f"{takes}: a cache could not spare more than the rest")
    gained, paid = 1 - reckoned_s(measured) / step_s, price(risk)
    sums = (
        f"{takes}; a schedule of its own batches spares {100 * measured.saved:.0f}% of the bytes and costs "
        f"{100 * cost_s(measured) / step_s:.0f}%: {100 * gained:.0f}% of a step gained, {100 * paid:.2f}% lost to "
        f"deaths ({86400 * death_rate(risk):.2g} a day, each {_again_s(risk):.0f} s, {risk.return_s:.0f} of "
        "them to return)"
    )
    if not risk.saved_once:
        return CacheVerdict(False, f"{sums}; the first checkpoint is not complete yet")
    if gained - paid < LEAST_GAIN:
        return CacheVerdict(False, f"{sums}; wanted {100 * LEAST_GAIN:.0f}% net")
    return CacheVerdict(True, sums)


def keep(before_s: float, after_s: float, risk: CrashRisk, sums: str) -> CacheVerdict:
    """Whether a group that has one keeps it: steps must be shorter than those without, by more than deaths cost."""
    times = f"a step took {1000 * before_s:.1f} ms without a cache and {1000 * after_s:.1f} ms with it"
    if 1 - after_s / before_s > price(risk):
        return CacheVerdict(True, f"{times}; {sums}")
    return CacheVerdict(False, f"{times}, and {100 * price(risk):.2f}% of the time is lost to deaths with one")


def _again_s(risk: CrashRisk) -> float:
    """Seconds of work that a death costs with a cache."""
    return (risk.checkpoint_s or 0.0) / 2 + risk.return_s
