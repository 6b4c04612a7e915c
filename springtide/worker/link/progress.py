"""Collect a worker's totals between two reports: steps, samples, loss, time.

In: every step (worker/step/step.py), and `job.report` of the loop. Out: a report to the link at intervals, which the
next heartbeat carries.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from springtide import errors
from springtide.domain.data.data_workers import FeedState
from springtide.domain.data.streams import StreamUse
from springtide.domain.model.cache_rules import CacheUse
from springtide.domain.plan import profile
from springtide.rpc.messages.messages import MemberReport
from springtide.worker.link import master_link
from springtide.worker.link.step_timer import StepMeter

SECONDS = tuple(name for name in profile.SUM_FIELDS if name.endswith("_s"))


class ProgressReporter:
    """Totals of this worker. A lost or repeated report does no harm."""

    def __init__(
        self,
        to_master: master_link.MasterLink,
        meter: StepMeter,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = to_master
        self._meter = meter
        self._every_s = every_s
        self._clock = clock
        self._due = clock()
        self.cache: Callable[[], CacheUse | None] = lambda: None
        """Function that returns the statistics of this worker's cache, or None without a cache."""
        self.feed: Callable[[], FeedState | None] = lambda: None
        """Function that returns the state of this worker's feed, or None without data workers."""
        self.stream: Callable[[], StreamUse | None] = lambda: None
        """Function that returns this worker's use of a stream, or None without a stream."""
        self._metrics: dict[str, float] = {}
        self._loss_sum = 0.0
        self._losses = 0

    def step(self) -> None:
        if self._clock() >= self._due:
            self.send()

    def add(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise errors.BadInput(
                    f"job.report({name}=...) got a {type(value).__name__}; wanted a number or a tensor with one element"
                ) from None
            if name != "loss":
                self._metrics[name] = number
            elif math.isfinite(number):
                self._loss_sum += number
                self._losses += 1

    def send(self) -> None:
        """Pass the totals to the link, which sends them with the next heartbeat."""
        self._due = self._clock() + self._every_s
        total = self._meter.collect()
        loss = self._loss_sum / self._losses if self._losses else None
        self._loss_sum, self._losses = 0.0, 0
        self._link.reports.report(
            MemberReport(
                step=total.steps,
                samples=total.samples,
                loss=loss,
                metrics=dict(self._metrics),
                cache=self.cache(),
                feed=self.feed(),
                stream=self.stream(),
                seconds={name.removesuffix("_s"): getattr(total, name) for name in SECONDS},
            )
        )
