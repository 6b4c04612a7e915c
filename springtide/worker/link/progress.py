"""Times the phases of each step, and reports a worker's totals: steps, samples, loss, seconds.

In: marks from the loop, the step and the model's forward, and `job.report`. Out: the StepTiming and TimingSum of
domain/plan/profile.py, and a regular report, which the next heartbeat carries.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from springtide import errors
from springtide.domain.plan import profile
from springtide.rpc.messages.types import MemberReport
from springtide.worker.link import master_link

SECONDS = tuple(name for name in profile.SUM_FIELDS if name.endswith("_s"))
KEPT_STEPS = 4096  # number of steps with separate timings (1 MiB); the sums cover all steps


class StepMeter:
    """Clock readings of the current step, and the timings of earlier steps."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, spent: "Callable[[], ClientTime | None]" = lambda: None
    ) -> None:
        """`spent` returns the client's times at both ends of a step; None if tables are in this process."""
        self.clock, self._spent = clock, spent
        self.steps: deque[profile.StepTiming] = deque(maxlen=KEPT_STEPS)
        """Timings of the latest steps."""
        self._total = profile.TimingSum()
        self._fresh: list[profile.StepTiming] = []
        self._last = self._began_spent = NOTHING
        self._last_end = self._handed = self._forward_end = self._began = clock()
        self._data_s = self._lookup_s = 0.0

    def restart(self) -> None:
        """Start a pass. The time since the last step, such as an evaluation, does not count."""
        self._last_end = self._handed = self._forward_end = self.clock()
        self._last = self._spent() or NOTHING
        self._data_s = self._lookup_s = 0.0

    def data_read(self, seconds: float) -> None:
        self._data_s += seconds

    def looked_up(self, seconds: float) -> None:
        """Add lookup time, because tables in this process look up rows during the call, without a request."""
        self._lookup_s += seconds

    def handed_out(self) -> None:
        """Mark the start of forward. With gradient accumulation, the last batch of a step counts."""
        self._handed = self._forward_end = self.clock()

    def forward_done(self) -> None:
        self._forward_end = self.clock()

    def step_began(self) -> None:
        self._began = self.clock()
        self._began_spent = self._spent() or NOTHING

    def step_done(self, *, samples: int) -> None:
        end, served = self.clock(), self._spent()
        spent = served or NOTHING
        last, began = self._last, self._began_spent
        pull_wait = began.wait_s - last.wait_s
        push_wait = spent.wait_s - began.wait_s
        forward = max(0.0, self._forward_end - self._handed - pull_wait)
        backward = max(0.0, self._began - self._forward_end)
        own = max(0.0, end - self._began - push_wait)
        terms = (
            StepTerms(gradient_s=forward + backward, update_s=own, lookup_s=self._lookup_s)
            if served is None
            else exposed(last, spent, own_s=forward + backward + own + self._lookup_s)
        )
        timing = profile.StepTiming(
            samples, end - self._last_end, self._data_s, pull_wait, forward, backward, push_wait, *terms
        )
        self.steps.append(timing)
        self._fresh.append(timing)
        self._last_end, self._last = end, spent
        self._data_s = self._lookup_s = 0.0

    def collect(self) -> profile.TimingSum:
        if self._fresh:
            self._total = self._total + profile.summed(self._fresh)
            self._fresh.clear()
        return self._total


class ProgressReporter:
    """Totals of the worker. A lost or repeated report does no harm. `use` returns the totals of the cache and of the
    input.
    """

    def __init__(
        self,
        to_master: master_link.MasterLink,
        meter: StepMeter,
        use: Callable[[], MemberReport] = MemberReport,
        *,
        every_s: float,
    ) -> None:
        self._link, self._meter, self._use, self._every_s = to_master, meter, use, every_s
        self._due = time.monotonic()
        self._metrics: dict[str, float] = {}
        self._loss_sum = 0.0
        self._losses = 0

    def step(self) -> None:
        if time.monotonic() >= self._due:
            self.send()

    def add(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise errors.BadInput(
                    f"job.report({name}=...) got a {type(value).__name__}; expected a number or a one-element tensor"
                ) from None
            if name != "loss":
                self._metrics[name] = number
            elif math.isfinite(number):
                self._loss_sum += number
                self._losses += 1

    def send(self) -> None:
        self._due = time.monotonic() + self._every_s
        total = self._meter.collect()
        loss = self._loss_sum / self._losses if self._losses else None
        self._loss_sum, self._losses = 0.0, 0
        self._link.reports.report(
            msgspec.structs.replace(
                self._use(),
                step=total.steps,
                samples=total.samples,
                loss=loss,
                metrics=dict(self._metrics),
                seconds={name.removesuffix("_s"): getattr(total, name) for name in SECONDS},
            )
        )


class ClientTime(NamedTuple):
    """Total seconds of each activity, as the table client measured them."""

    lookup_s: float = 0.0
    """Seconds that servers spent on lookups, as the mean over servers."""
    update_s: float = 0.0
    """Seconds that servers spent on applying gradients, as the mean over servers."""
    synchronization_s: float = 0.0
    """Seconds with a request in flight, minus the servers' own time, as the mean over servers."""
    wait_s: float = 0.0
    """Total seconds that this process waited for an answer."""


class StepTerms(NamedTuple):
    """Time of a step, divided among the resources that could shorten it."""

    gradient_s: float = 0.0
    update_s: float = 0.0
    synchronization_s: float = 0.0
    lookup_s: float = 0.0


NOTHING = ClientTime()


def exposed(before: ClientTime, after: ClientTime, *, own_s: float) -> StepTerms:
    """Return the terms of a step with tables on servers: this process's own work, and its waits.

    Servers work while the worker computes, so only the time that the worker waits counts as the servers' time.
    """
    lookup, update, under_way, waited = (late - early for early, late in zip(before, after, strict=True))
    busy = lookup + update + under_way
    share = min(1.0, waited / busy) if busy > 0 else 0.0
    return StepTerms(
        gradient_s=own_s,
        update_s=share * update,
        lookup_s=share * lookup,
        synchronization_s=share * under_way + max(0.0, waited - share * busy),
    )
