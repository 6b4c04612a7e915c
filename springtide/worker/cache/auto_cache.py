"""Decides by measurement whether a bsp group caches rows. The lowest rank measures, simulates and decides.

In: step timings and batches. Out: a request to start or stop caching, which the next all-reduce carries to all ranks.
A cache must pass four tests. Pulls and pushes take enough of a step. A simulated schedule saves more than it costs.
Steps with the cache are shorter than before, and stay shorter. The decision itself is pure:
planning/guards/cache_benefit.py.
"""

import logging
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from springtide.domain.plan.profile import StepTiming
from springtide.embedding.schedule.scheduler import FeatureIds
from springtide.planning.guards import cache_benefit
from springtide.planning.guards.cache_benefit import CacheMeasurement, CacheVerdict, CrashRisk
from springtide.worker.cache.row_cache import CacheTraffic, PaperSchedule

log = logging.getLogger(__name__)

WATCHED = 32  # steps per measurement; enough for a stable mean
COLD = 32  # number of first steps that are not measured, because they create rows and touch memory for the first time
TRIED = 64  # number of simulated batches; only the second half counts
AGAIN = 1024  # number of steps until the next measurement, after any decision
# after several caches without a benefit, the next measurement comes after up to this many times AGAIN steps
LONGEST = 16
WARM = 64  # number of steps until a cache is warm
# one eighth of the steps is ignored at each end, the fastest and the slowest, because they may include a checkpoint or
# a burst of another process
ODD = 8
TRIPS = 3  # round trips per step: a pull, a push, and the check that all parts have arrived


@dataclass(slots=True)
class CostEstimate:
    """Expected duration of a step with a cache, in parts."""

    reckoned_s: float = 0.0
    """Expected duration of a step with the last cache."""
    read_s: float = 0.0
    """Recent average seconds to read this rank's part of a batch."""
    unseen_s: float = 0.0
    """By how many seconds a step with the last cache exceeded its estimate."""


class DecisionProbes(NamedTuple):
    """Functions that measure the job for the decision."""

    risk: Callable[[], CrashRisk]
    moved: Callable[[], int]
    """Function that returns the bytes sent so far between this rank and the servers, in both directions."""
    open_paper: Callable[[], PaperSchedule]
    round_trip: Callable[[], float]
    """Function that measures a round trip to the servers in seconds."""


class CacheDecision:
    """Decision of the lowest rank. The reader's thread reports batches to it, and the loop's thread reports steps."""

    def __init__(self, steps: Sequence[StepTiming], probes: DecisionProbes) -> None:
        """Create the decision; `steps` are the latest step timings."""
        self._steps, self._probes = steps, probes
        self.why = ""
        """Reason for the last decision."""
        self.wish: bool | None = None
        """Request to start (True) or stop (False) caching; None changes nothing."""
        self.asked = False
        """Whether the lowest rank wants every rank to simulate schedules of whole batches."""
        self._stage = "watching"
        self._seen = 0
        self._paper: PaperSchedule | None = None
        self._sent: deque[CacheTraffic] = deque(maxlen=TRIED)
        self._before = StepTimes(0.0, 0.0, 0.0)
        self._moved = 0
        self._cost = CostEstimate()
        self._rest, self._cold, self._workers = AGAIN, COLD, 0

    @property
    def trying(self) -> bool:
        return self._stage == "trying"

    @property
    def pays(self) -> bool:
        return self._stage in ("begun", "proving", "settled")

    def observe(self, features: Sequence[FeatureIds], samples: int) -> None:
        self._paper = self._paper or self._probes.open_paper()
        self._sent.append(self._paper(features, samples))

    def note_read(self, seconds: float) -> None:
        self._cost.read_s += 0.1 * (seconds - self._cost.read_s) if self._cost.read_s else seconds

    def on_request(self, *, asked: bool) -> None:
        if self.asked and not asked:
            self._paper = None
        self.asked = asked

    def regrouped(self) -> None:
        """Handle a new group, whose members may have missed the last request to start or stop. A new group size
        restarts the measurement."""
        if self._probes.risk().workers != self._workers:
            self.why = ""
            self._go_to("watching")
        self.wish = True if self.pays else None

    def stepped(self, *, on: bool) -> None:
        self._seen += 1
        self.wish = None
        if self._stage == "watching" and self._seen >= WATCHED + self._cold:
            self._watch()
        elif self._stage == "trying" and len(self._sent) >= TRIED and self._seen >= WATCHED:
            self._decide()
        elif self._stage == "waiting" and self._seen >= self._rest:
            self._go_to("watching")
        elif self._stage == "begun" and on and self._seen >= WARM:
            self._go_to("proving")
        elif (self._stage == "proving" and self._seen >= WATCHED) or (
            self._stage == "settled" and on and self._seen >= AGAIN
        ):
            self._prove()

    def _watch(self) -> None:
        """Simulate schedules if steps wait for servers long enough. Otherwise measure again later."""
        self._before, self._cold = self._recent(), 0
        self._cost.unseen_s /= 2  # halve this excess with each new measurement, because it may be outdated
        measured = self._measured(saved=1.0, beside_s=0.0)
        self._workers = measured.risk.workers
        verdict = cache_benefit.decide(measured)
        waits = measured.waited_s - measured.trips_s >= cache_benefit.LEAST_GAIN * measured.step_s
        if verdict.on or (waits and measured.risk.checkpoint_s is not None and not measured.risk.saved_once):
            self._sent.clear()
            self._paper = None
            self._go_to("trying")
        else:
            self.why = verdict.why
            self._go_to("waiting")

    def _decide(self) -> None:
        """Decide from the step times during the simulation and the bytes that the schedules would have saved."""
        counted = list(self._sent)[TRIED // 2 :]
        lately = self._recent()
        moved = (self._probes.moved() - self._moved) / self._seen or statistics.fmean(
            probe.without for probe in counted
        )
        spared = statistics.fmean(probe.without - probe.with_caches for probe in counted)
        measured = self._measured(
            saved=min(1.0, spared / moved) if moved > 0 else 0.0,
            slower_s=max(0.0, lately.step_s - self._before.step_s),
            beside_s=self._probes.risk().workers * self._cost.read_s
            + statistics.fmean(probe.seconds for probe in counted),
        )
        verdict = cache_benefit.decide(measured)
        self._cost.reckoned_s = cache_benefit.reckoned_s(measured) - measured.unseen_s
        self._paper = None
        self.why, self.wish = verdict.why, True if verdict.on else None
        log.info("cache: %s, since %s", "on" if verdict.on else "off", verdict.why)
        self._go_to("begun" if verdict.on else "waiting")

    def _prove(self) -> None:
        first, lately = self._stage == "proving", self._recent().step_s
        if first:
            self._cost.unseen_s = max(0.0, lately - self._cost.reckoned_s)
        sums = self.why if first else self.why.partition("; ")[2]
        verdict: CacheVerdict = cache_benefit.keep(self._before.step_s, lately, self._probes.risk(), sums)
        self.why = verdict.why
        if verdict.on:
            self._rest = AGAIN
            self._go_to("settled")
        else:
            log.warning("cache: off again, since %s", verdict.why)
            self.wish = False
            self._rest = min(2 * self._rest, LONGEST * AGAIN)
            self._go_to("waiting")

    def _go_to(self, stage: str) -> None:
        self._stage, self._seen = stage, 0
        self._moved = self._probes.moved()

    def _recent(self) -> "StepTimes":
        last = sorted(list(self._steps)[-WATCHED:], key=lambda step: step.total_s)
        usual = last[len(last) // ODD : len(last) - len(last) // ODD]
        return StepTimes(
            statistics.fmean(step.total_s for step in usual),
            statistics.fmean(step.pull_wait_s + step.push_wait_s for step in usual),
            TRIPS * self._probes.round_trip(),
        )

    def _measured(self, *, saved: float, beside_s: float, slower_s: float = 0.0) -> CacheMeasurement:
        before = self._before
        return CacheMeasurement(
            step_s=max(before.step_s, 1e-9),
            waited_s=before.waited_s,
            trips_s=before.trips_s,
            saved=saved,
            slower_s=slower_s,
            unseen_s=self._cost.unseen_s,
            beside_s=beside_s,
            risk=self._probes.risk(),
        )


class StepTimes(NamedTuple):
    """Mean times of recent steps."""

    step_s: float
    waited_s: float
    trips_s: float
