"""Whether this group keeps rows, found out by measuring: the lowest rank watches, tries a schedule on paper, decides.

In: steps as meter.py has timed them, batches as the reader's thread sees them. Out: a wish to begin or to stop, which
goes to all ranks with the next all-reduce (words.py). The decision itself is pure: planning/caching.py.

Three looks: pulls and pushes must take enough of a step; a schedule of the group's own batches, with caches that exist
on paper only, must spare enough of them; and steps with a cache must not have become longer.
"""

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from springtide.domain.profile import StepTiming
from springtide.embedding.sample_ids import SampleIds
from springtide.planning import caching
from springtide.planning.caching import Measured, Verdict

log = logging.getLogger(__name__)

WATCHED = 32  # steps that a look is made of: enough for a mean, soon over
TRIED = 64  # batches that are scheduled on paper; of the second half it is counted what is sent
AGAIN = 1024  # steps until a group that was better off without is looked at once more
WARM = 64  # steps until a cache has what it will have


@dataclass(frozen=True, slots=True)
class Sent:
    """What one batch makes the ranks send, with caches and without."""

    with_caches: int
    without: int
    seconds: float = 0.0
    """It took so long to find out."""


class OnPaper(Protocol):
    """A schedule whose plans nobody carries out."""

    def look(self, features: Sequence[SampleIds], samples: int) -> Sent:
        """The next batch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the lowest rank knows of its job."""

    workers: int
    deaths: int
    watched_s: float
    checkpoint_s: float | None
    saved_once: bool
    read_s: float
    """Seconds to read this rank's part of a batch."""


class Deciding:
    """Looks at every step of the lowest rank. Told of batches in the reader's thread, of steps in the loop's."""

    def __init__(
        self, steps: Sequence[StepTiming], surroundings: Callable[[], Surroundings], open_paper: Callable[[], OnPaper]
    ) -> None:
        """`steps`: the latest, as they were timed."""
        self._steps, self._surroundings, self._open_paper = steps, surroundings, open_paper
        self.why = ""
        """The last word on it."""
        self.wish: bool | None = None
        """Begin (True) or stop (False); None: go on as it is."""
        self._stage = "watching"
        self._seen = 0
        self._paper: OnPaper | None = None
        self._sent: list[Sent] = []
        self._before_s = 0.0
        self._return_s = 5.0

    @property
    def trying(self) -> bool:
        """Whether whole batches are wanted, to be scheduled on paper."""
        return self._stage == "trying"

    @property
    def pays(self) -> bool:
        """Whether a cache was found to pay, and not yet not to."""
        return self._stage in ("begun", "proving", "settled")

    def look(self, features: Sequence[SampleIds], samples: int) -> None:
        """A whole batch, in the reader's thread."""
        self._paper = self._paper or self._open_paper()
        began = time.perf_counter()
        sent = self._paper.look(features, samples)
        self._sent.append(replace(sent, seconds=time.perf_counter() - began))

    def regrouped(self) -> None:
        """Another group, some of whose members have not heard what was wished before."""
        self.wish = True if self.pays else None

    def stepped(self, *, on: bool) -> None:
        """A step is through; `on`: with caches."""
        self._seen += 1
        self.wish = None
        if self._stage == "watching" and self._seen >= WATCHED:
            self._watch()
        elif self._stage == "trying" and len(self._sent) >= TRIED:
            self._judge()
        elif self._stage == "waiting" and self._seen >= AGAIN:
            self._go_to("watching")
        elif self._stage == "begun" and on and self._seen >= WARM:
            self._go_to("proving")
        elif self._stage == "proving" and self._seen >= WATCHED:
            self._prove()

    def _watch(self) -> None:
        """Does a step wait long enough for servers? Then try what a schedule would spare; else look again later."""
        measured = self._measured(saved=1.0, schedule_s=0.0)
        verdict = caching.decide(measured)
        possible = verdict.on or (not measured.saved_once and measured.checkpoint_s is not None)
        if measured.waited_s >= caching.LEAST_GAIN * measured.step_s and possible:
            self._before_s = measured.step_s
            self._sent.clear()
            self._paper = None
            self._go_to("trying")
        else:
            self.why = verdict.why
            self._go_to("waiting")

    def _judge(self) -> None:
        counted = self._sent[TRIED // 2 : TRIED]
        without = sum(one.without for one in counted)
        saved = 1 - sum(one.with_caches for one in counted) / without if without else 0.0
        verdict = caching.decide(
            self._measured(saved=max(0.0, saved), schedule_s=statistics.fmean(one.seconds for one in counted))
        )
        self._paper = None
        self.why, self.wish = verdict.why, True if verdict.on else None
        log.info("cache: %s, since %s", "on" if verdict.on else "off", verdict.why)
        self._go_to("begun" if verdict.on else "waiting")

    def _prove(self) -> None:
        verdict: Verdict = caching.keep(self._before_s, self._recent().step_s, self.why)
        self.why = verdict.why
        if verdict.on:
            self._go_to("settled")
        else:
            log.warning("cache: off again, since %s", verdict.why)
            self.wish = False
            self._go_to("waiting")

    def _go_to(self, stage: str) -> None:
        self._stage, self._seen = stage, 0

    def _recent(self) -> "Times":
        last = list(self._steps)[-WATCHED:]
        return Times(
            statistics.fmean(one.total_s for one in last),
            statistics.fmean(one.pull_wait_s + one.push_wait_s for one in last),
            self._surroundings().read_s,
        )

    def _measured(self, *, saved: float, schedule_s: float) -> Measured:
        times, around = self._recent(), self._surroundings()
        return Measured(
            step_s=max(times.step_s, 1e-9), waited_s=times.waited_s, saved=saved, schedule_s=schedule_s,
            read_s=times.read_s, workers=around.workers, deaths=around.deaths, watched_s=around.watched_s,
            checkpoint_s=around.checkpoint_s, saved_once=around.saved_once, return_s=self._return_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Times:
    """Means of the last steps."""

    step_s: float
    waited_s: float
    read_s: float
