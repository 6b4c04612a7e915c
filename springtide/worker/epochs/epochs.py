"""Tracks a worker's position in the epochs of its script, across restarts: `job.epochs` and loops over `batches`.

In: the script starts an epoch or a loop. Out: the number of the loop, and whether an earlier incarnation has finished
this loop. The worker reports the start of every epoch and loop, with the states of the script's objects, before it
trains the first batch. Design: docs/design/epochs.md.
"""

import logging
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.data.samples import EpochPlace
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.worker.epochs import user_loops
from springtide.worker.epochs.user_objects import ObjectRegistry, Schedules
from springtide.worker.link.master_link import MasterLink

log = logging.getLogger(__name__)


class BegunLoop(NamedTuple):
    """Loop over `batches` that the script has started."""

    number: int
    """Number of the loop among all loops of the script, including the loops of earlier incarnations."""
    finished: bool = False
    """True if an earlier incarnation has finished the loop."""


class LoopNames:
    """Name of the `for` statement that contains the script's loops over batches."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.name = ""
        """Name of the statement if all loops start at one line of the script; else empty."""
        self._positions: set[tuple[tuple[str, int], ...]] = set()
        self._warned = False

    def observe(self, frame: FrameType) -> None:
        position = user_loops.position(frame)
        if position in self._positions:
            return
        self._positions.add(position)
        loop = user_loops.enclosing(frame) if len(self._positions) == 1 else None
        self.name = "" if loop is None else loop.named(self._folder)

    def pass_over(self, frame: FrameType, given: EpochPlace) -> None:
        loop = user_loops.enclosing(frame)
        if loop is not None and user_loops.continues(loop):
            raise user_loops.EpochFinished
        if not self._warned:
            self._warned = True
            log.warning(
                "epochs before %d were trained before this worker was started: the script goes through them again, "
                "with one batch each that trains nothing. `for epoch in job.epochs(...)` begins with epoch %d",
                given.epoch,
                given.epoch,
            )


class EpochTracker:
    """Position of the script in its epochs. Each job has one such position."""

    def __init__(
        self, to_master: MasterLink, registry: ObjectRegistry, welcome: WorkerWelcome, *, folder: str = ""
    ) -> None:
        self._link, self._registry = to_master, registry
        self._loops = LoopNames(folder)
        self._given = welcome.place
        """Position where this incarnation starts; None for the beginning."""
        self._restored = welcome.place is None
        self._next_loop = self._next_epoch = self._first = 0
        self._epoch: int | None = None
        """Current epoch of `job.epochs`."""
        self._entered_again = False
        """Whether all epochs were already done, so that the script runs the last epoch a second time."""
        self._loops_here = 0
        """Number of loops that this incarnation has started, not counting loops that an earlier incarnation had
        finished."""
        self.position = -1
        """Position of the script: -1 before the first epoch, then twice the number of the next loop over batches when
        an epoch begins, and one more when the loop begins. Equal on all workers at the same point of their scripts."""
        self.schedules: Schedules | None = None
        self.epochs_a_loop = 1
        """Epochs per loop, from `job.prepare(epochs=...)`."""
        self._behind = ""
        """How this incarnation started in the middle of the job, until it gets a batch to train: `restarted` or
        `started`."""
        if welcome.place is not None and (welcome.lived or welcome.place.first > 0):
            self._behind = "restarted" if welcome.lived else "started"
            to_master.started_late = f"{self._behind} in epoch {welcome.place.epoch}"

    @property
    def epoch(self) -> int:
        first = self._given.first if self._given is not None and not self._loops_here else self._next_loop
        return first * self.epochs_a_loop

    # ---- job.epochs ----

    def epochs(self, total: int) -> Iterator[int]:
        total = validation.number(total, "epochs", "a whole number, 0 or more", least=0)
        if self.epochs_a_loop != 1:
            raise errors.BadInput(
                f"job.epochs({total}) with job.prepare(epochs={self.epochs_a_loop}): one loop over batches would cover "
                f"{self.epochs_a_loop} epochs. Leave epochs= out of job.prepare"
            )
        if self._epoch is not None:
            raise errors.BadInput("job.epochs(...) inside another job.epochs(...): one loop counts the epochs of a job")
        return self._epochs(total)

    def _epochs(self, total: int) -> Iterator[int]:
        given = self._given
        if given is not None and not self._loops_here and self._next_epoch < given.epoch:
            self._next_epoch, self._next_loop = given.epoch, given.first
        try:
            if total and self._next_epoch >= total and given is not None and not self._loops_here:
                yield from self._again(total - 1)
            while self._next_epoch < total and not self._is_leaving():
                self._begin_epoch(self._next_epoch, sys._getframe(1))
                self._epoch = self._next_epoch
                yield self._next_epoch
                self._epoch = None
                if self._is_leaving():
                    return  # the epoch was cut short, so the next incarnation starts with this epoch
                self._next_epoch += 1
            if self._next_epoch == total and self._loops_here:
                self._begin_epoch(total, sys._getframe(1))
        finally:
            self._epoch = None

    def _again(self, last: int) -> Iterator[int]:
        self._epoch, self._entered_again = last, True
        self.position = 2 * (self._next_loop - 1)
        try:
            yield last
        finally:
            self._entered_again = False
            self.position = 2 * self._next_loop

    def _begin_epoch(self, epoch: int, frame: FrameType) -> None:
        self._first = self._next_loop
        self.position = 2 * self._next_loop
        if self._given is not None and self._given.boundary:
            self._come_back(frame)
        self._report_place(EpochPlace(epoch, self._first, self._first, self._loops.name), frame)

    # ---- loops over batches ----

    def begin_loop(self, frame: FrameType) -> BegunLoop:
        """Start a loop of the script in this frame. Raise `EpochFinished` if the script must skip the loop."""
        if self._is_leaving() and self._loops_here:
            log.warning("this worker was asked to leave, so its script ends before the next epoch")
            raise SystemExit(0)
        given, number = self._given, self._next_loop
        self.position = 2 * (number - self._entered_again) + 1
        if self._entered_again:
            return BegunLoop(number - 1, finished=True)
        self._next_loop += 1
        if given is not None and self._epoch is None and number < given.first:
            self._loops.pass_over(frame, given)
            return BegunLoop(number, finished=True)
        self._loops_here += 1
        if given is not None and number >= given.begun - 1:
            self._come_back(frame)
        if not self._behind:
            self._link.started_late = ""
        self._loops.observe(frame)
        in_plain = EpochPlace(number, number, number + 1, self._loops.name)
        place = in_plain if self._epoch is None else EpochPlace(self._epoch, self._first, number + 1, self._loops.name)
        self._report_place(place, frame)
        return BegunLoop(number)

    def on_handed_out(self, epoch: int) -> None:
        if self._behind:
            self._link.started_late = f"{self._behind} in epoch {epoch}"
            self._behind = ""

    def end_loop(self) -> None:
        """End a loop after its last batch. If the worker drains, the epoch may not be over."""
        self._registry.end_loop()
        if self._is_leaving() and self._registry.place is not None:
            self._link.reports.begin_epoch(self._registry.place, self._registry.taken)

    @property
    def ends_script(self) -> bool:
        """Return True if the worker drains and gets no batch of the current epoch, so that its script must end."""
        return self._is_leaving() and (bool(self._behind) or self._loops_here > 1)

    # ---- internal ----

    def _is_leaving(self) -> bool:
        return self._link.draining

    def _come_back(self, frame: FrameType) -> None:
        if not self._restored:
            self._restored = True
            if self.schedules is not None:
                self.schedules.find_schedulers(frame)
            self._registry.come_back()

    def _report_place(self, place: EpochPlace, frame: FrameType) -> None:
        if self.schedules is not None:
            self.schedules.find_schedulers(frame)
        self._link.reports.begin_epoch(place, self._registry.take(place))
