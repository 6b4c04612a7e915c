"""Steps of a bsp group on one virtual server, as cpp/server/requests/bsp_steps.h keeps them.

In: parts of the ranks. Out: a step is applied once every rank's part is there and the group knows it.
"""

from collections.abc import Callable

from springtide import errors
from tests.virtual_jobs.counting_oracle import BatchRun


class StepMissing(errors.JobFailed):
    """A server cannot take the step from which a group wants to continue."""


class StepBuffer:
    """Parts of steps on one server."""

    def __init__(self) -> None:
        self.applied = self.generation = 0
        self._workers = 1
        self._parts: dict[int, dict[int, BatchRun | None]] = {}

    def reset(self, generation: int, workers: int) -> None:
        self.applied, self.generation, self._workers, self._parts = 0, generation, workers, {}

    def add(self, step: int, rank: int, generation: int, part: BatchRun | None) -> bool:
        """Keep a rank's part; return False for a part of an older group."""
        if generation < self.generation:
            return False
        if step > self.applied:
            self._parts.setdefault(step, {}).setdefault(rank, part)
        return True

    def complete(self) -> int:
        step = self.applied
        while len(self._parts.get(step + 1, ())) == self._workers:
            step += 1
        return step

    def apply(self, step: int, push: Callable[[BatchRun], None]) -> None:
        while self.applied < step:
            if self.complete() <= self.applied:
                raise StepMissing(f"step {self.applied + 1} is to be applied, but parts are missing")
            for part in self._parts.pop(self.applied + 1).values():
                if part is not None:
                    push(part)
            self.applied += 1

    def settle(self, step: int, workers: int, generation: int, at_rest: bool, push: Callable[[BatchRun], None]) -> bool:
        """Continue after `step` with a new group."""
        if at_rest and self.applied > step:
            raise StepMissing(f"a group cannot go on after step {step} where step {self.applied} is applied")
        if at_rest and not self._parts:
            self.applied = step
        self.apply(step, push)
        self._workers, self.generation, self._parts = workers, max(self.generation, generation), {}
        return True
