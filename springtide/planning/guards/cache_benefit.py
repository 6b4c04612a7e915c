"""Pure. Decides whether a bsp group should cache rows in its workers, by comparing saved time with all costs.

In: measured step times, and the savings that a schedule predicts for the group's own batches. Out: a `CacheVerdict`. A
worker that dies with a cache sends the whole group back to its last checkpoint. The decision includes the cost of these
rollbacks.
"""

from dataclasses import dataclass

# share of the step time that a cache must save; a smaller saving is within noise, and a cache adds a source of failure
LEAST_GAIN = 0.05
USUAL_S = 30 * 86400.0  # prior assumption: a worker dies once in 30 days
DOUBT = 0.01  # weight of the prior assumption, in deaths; small, so that observations soon dominate


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashRisk:
    """Probability that a worker dies, and the time that a death costs a group with a cache."""

    workers: int
    deaths: int
    watched_s: float
    checkpoint_s: float | None
    saved_once: bool
    return_s: float
    """Seconds by which a rollback of the group takes longer than the restart of one rank without a cache. The value is
    measured in this job, or estimated from the time that the job took to start (`job.recovery`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMeasurement:
    """Measured steps of a group without a cache, and the savings that a schedule predicts."""

    step_s: float
    waited_s: float
    """Seconds per step that a worker waits for pulls and pushes."""
    trips_s: float
    """Part of these seconds that requests would take even without data."""
    saved: float
    """Share of a step's bytes that the schedule saves. The share is negative if rows with their optimizer state need
    more bytes."""
    slower_s: float
    """Seconds that reading and scheduling whole batches added to each step in a trial."""
    unseen_s: float
    """Seconds by which steps with a cache took longer than predicted; 0 if the group had no cache."""
    beside_s: float
    """Seconds to read and schedule a batch, in a separate thread beside the step. No step can take less time."""
    risk: CrashRisk


@dataclass(frozen=True, slots=True)
class CacheVerdict:
    """Decision about the cache, with its reason."""

    on: bool
    why: str


def death_rate(risk: CrashRisk) -> float:
    """Return deaths per second of the whole group, from observations and a weak prior."""
    lived_s = DOUBT * USUAL_S + risk.workers * risk.watched_s
    return risk.workers * (DOUBT + risk.deaths) / lived_s


def price(risk: CrashRisk) -> float:
    """Return the extra cost that deaths of workers have because of the cache, as a share of time. A death then costs
    half a checkpoint interval of work plus the rollback."""
    return death_rate(risk) * _again_s(risk)


def spared_s(measured: CacheMeasurement) -> float:
    """Return the seconds of waiting that a cache saves: the time to wait for bytes, times the share of bytes that the
    cache saves."""
    return measured.saved * max(0.0, measured.waited_s - measured.trips_s)


def cost_s(measured: CacheMeasurement) -> float:
    """Return the seconds that a cache costs per step: reading whole batches, scheduling, exchange, bookkeeping."""
    return measured.slower_s + measured.unseen_s


def reckoned_s(measured: CacheMeasurement) -> float:
    """Return the predicted seconds per step with a cache. Reading and scheduling run beside the step."""
    return max(measured.step_s - spared_s(measured) + cost_s(measured), measured.beside_s)


def decide(measured: CacheMeasurement) -> CacheVerdict:
    risk, step_s = measured.risk, measured.step_s
    share = measured.waited_s / step_s
    takes = f"pulls and pushes take {100 * share:.0f}% of a step"
    if risk.checkpoint_s is None:
        return CacheVerdict(
            False,
            f"{takes}, but there are no checkpoints, and a job with a cache needs one to continue after a lost worker",
        )
    if share < LEAST_GAIN:
        return CacheVerdict(False, f"{takes}: a cache could not spare more")
    takes = f"{takes}, {100 * min(share, measured.trips_s / step_s):.0f}% of the step for round trips that remain"
    if share - measured.trips_s / step_s < LEAST_GAIN:
        return CacheVerdict(False, f"{takes}: a cache could not spare more than the rest")
    gained, paid = 1 - reckoned_s(measured) / step_s, price(risk)
    sums = (
        f"{takes}; a schedule of its own batches spares {100 * measured.saved:.0f}% of the bytes and costs "
        f"{100 * cost_s(measured) / step_s:.0f}%: {100 * gained:.0f}% of a step gained, {100 * paid:.2f}% lost to "
        f"deaths ({86400 * death_rate(risk):.2g} a day, each costs {_again_s(risk):.0f} s, of which "
        f"{risk.return_s:.0f} s for the return)"
    )
    if not risk.saved_once:
        return CacheVerdict(False, f"{sums}; the first checkpoint is not complete yet")
    if gained - paid < LEAST_GAIN:
        return CacheVerdict(False, f"{sums}; a cache must gain {100 * LEAST_GAIN:.0f}% net")
    return CacheVerdict(True, sums)


def keep(before_s: float, after_s: float, risk: CrashRisk, sums: str) -> CacheVerdict:
    """Decide whether a group keeps its cache: the time saved per step must exceed the cost of workers' deaths."""
    times = f"a step took {1000 * before_s:.1f} ms without a cache and {1000 * after_s:.1f} ms with it"
    if 1 - after_s / before_s > price(risk):
        return CacheVerdict(True, f"{times}; {sums}")
    return CacheVerdict(False, f"{times}, and {100 * price(risk):.2f}% of the time is lost to deaths with one")


def _again_s(risk: CrashRisk) -> float:
    return (risk.checkpoint_s or 0.0) / 2 + risk.return_s
