"""Pure. Assigns steps to data workers ahead of time, reassigns late steps, and counts each step once.

In: workers, wanted steps and answers, as connections.py reports them, each with its time. Out: orders for workers. A
step is a numbered mini-batch of a trainer. Any number of workers may make a step; the first answer counts. The step of
a lost worker goes to another worker. An idle worker takes over a step that it can finish earlier than the current
worker.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

AHEAD = (
    # steps assigned to a worker: the step that it makes, the step that it makes next while it sends the first, and a
    # step in transit
    3
)
TRIES = 2  # how often a step that raises is tried, by different workers if possible
DEATHS = 5  # a step fails after this many workers have died while making it
HOLDERS = 3  # most workers that make the same step at the same time
# an idle worker takes over a step only if it is this many times faster, because making a step twice costs CPU time
HASTE = 1.5
# an idle worker takes over a step only if it would finish at least this many seconds earlier, because a busy machine
# may delay a process for that long
GRACE_S = 0.05
PATIENCE_S = 10.0  # a step is overdue after this many seconds plus five times its usual duration
GUESS_S = 1.0  # assumed duration of a step before the first measurement
NEWS = 0.3  # weight of the newest duration in the mean; the mean follows a change within about ten steps


class AssignStep(NamedTuple):
    """Order to a worker: make this step."""

    worker: str
    step: int


class DropStep(NamedTuple):
    """Order to a worker: the trainer no longer needs this step. The worker answers when it has skipped or made the
    step."""

    worker: str
    step: int


class ReleaseWorker(NamedTuple):
    """Order: the trainer is done with a leaving worker, which holds no more of its steps."""

    worker: str


DispatchOrder = AssignStep | DropStep | ReleaseWorker


class StepFate(Enum):
    """State of a step: waiting, made or failed."""

    WAITING = "waiting"
    MADE = "made"
    FAILED = "failed"


@dataclass(slots=True)
class StepState:
    """State of a step that the trainer wants and has not received."""

    fate: StepFate = StepFate.WAITING
    holders: list[str] = field(default_factory=list)
    """Workers that were assigned the step and have not answered."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    deaths: int = 0
    """Number of workers that were lost while they made the step."""

    @property
    def why(self) -> str:
        if self.deaths >= DEATHS:
            return f"{self.deaths} data workers died while they made this batch"
        return self.failures[-1][1] if self.failures else ""


@dataclass(slots=True)
class WorkerState:
    """A trainer's view of a data worker."""

    steps: list[int] = field(default_factory=list)
    """Steps that the worker got and has not answered. The worker makes the first of these steps. Another worker may
    already have answered some of these steps.
    """
    since: float = 0.0
    """Time when the worker began the first of these steps."""
    mean_s: float | None = None
    """Mean seconds for a step."""
    leaving: bool = False


class Dispatch:
    """Steps of a trainer, and the workers that make them. Methods return the resulting orders."""

    def __init__(self) -> None:
        self.steps: dict[int, StepState] = {}
        """Steps that the trainer wants and has not taken."""
        self.workers: dict[str, WorkerState] = {}
        self._pending: list[int] = []
        """Steps without a worker, earliest first."""
        self._mean_s: float | None = None
        """Mean seconds for a step over all workers."""

    @property
    def open(self) -> int:
        return sum(not worker.leaving for worker in self.workers.values())

    @property
    def deserted(self) -> bool:
        """True if no worker accepts new steps or still works on a step."""
        return not self.workers

    def joined(self, worker: str, *, at: float) -> list[DispatchOrder]:
        if worker in self.workers:
            raise ValueError(f"data worker {worker} has already joined")
        self.workers[worker] = WorkerState(since=at)
        return self._hand_out(at)

    def leaving(self, worker: str, *, at: float) -> list[DispatchOrder]:
        """Assign no more steps to a worker, but wait for its current steps."""
        if (leaver := self.workers.get(worker)) is None:
            return []
        leaver.leaving = True
        return [*self._released(worker), *self._hand_out(at)]

    def lost(self, worker: str, *, at: float) -> list[DispatchOrder]:
        gone = self.workers.pop(worker, None)
        orders: list[DispatchOrder] = []
        for place, number in enumerate(gone.steps if gone else ()):
            if (step := self.steps.get(number)) is not None:
                step.holders.remove(worker)
                step.deaths += place == 0
                # count the death even if another worker also makes the step, because a step that hangs must not occupy
                # every worker
                if step.deaths >= DEATHS:
                    orders += self._settle(number, StepFate.FAILED)
                else:
                    self._give_back(number)
        return [*orders, *self._hand_out(at)]

    def add_step(self, step: int, *, at: float) -> list[DispatchOrder]:
        """Add a step that the trainer wants after all earlier steps."""
        if step in self.steps:
            raise ValueError(f"step {step} was already requested")
        self.steps[step] = StepState()
        self._give_back(step)
        return self._hand_out(at)

    def awaits(self, step: int) -> bool:
        return step in self.steps and self.steps[step].fate is StepFate.WAITING

    def made(self, worker: str, step: int, *, at: float) -> list[DispatchOrder]:
        """Note that a worker has made a step. Late and repeated answers only update the worker's mean duration."""
        known = self.workers.get(worker)
        if known is not None and step in known.steps:
            took = max(0.0, at - known.since)
            known.mean_s = _blend(known.mean_s, took)
            self._mean_s = _blend(self._mean_s, took)
        orders = self._answered(worker, step, at)
        if self.awaits(step):
            orders += self._settle(step, StepFate.MADE)
        return [*orders, *self._hand_out(at)]

    def failed(self, worker: str, step: int, why: str, *, at: float) -> list[DispatchOrder]:
        held = worker in self.workers and step in self.workers[worker].steps
        orders = self._answered(worker, step, at)
        if held and self.awaits(step):
            failures = self.steps[step].failures
            failures.append((worker, why))
            if len(failures) >= TRIES:
                orders += self._settle(step, StepFate.FAILED)
            else:
                self._give_back(step)
        return [*orders, *self._hand_out(at)]

    def dropped(self, worker: str, step: int, *, at: float) -> list[DispatchOrder]:
        """Note that a worker has dropped a step. If the worker spent more than its mean duration on the step, the mean
        rises."""
        known = self.workers.get(worker)
        if known is None or step not in known.steps:
            return []
        if (took := at - known.since) > self._mean(known):
            known.mean_s = _blend(known.mean_s, took)
        orders = self._answered(worker, step, at)
        # the worker dropped a step that the trainer still wants: assign the step again, so that it is not lost
        if self.awaits(step):
            self._give_back(step)
        return [*orders, *self._hand_out(at)]

    def remove_step(self, step: int, *, at: float) -> list[DispatchOrder]:
        """Remove a step that the trainer has received or no longer wants."""
        orders = self._settle(step, StepFate.MADE)
        del self.steps[step]
        return [*orders, *self._hand_out(at)]

    def poll(self, *, at: float) -> list[DispatchOrder]:
        """Reassign late steps; call this regularly."""
        return self._hand_out(at)

    def overdue(self, step: int, *, at: float) -> bool:
        """Return True if a step is so late that its workers may never answer; deaths of workers extend the limit."""
        state = self.steps[step]
        if state.fate is not StepFate.WAITING:
            return False
        patience_s = PATIENCE_S * (1 + 5 * state.deaths)
        silent = [self.workers[name] for name in state.holders] or list(self.workers.values())
        return all(worker.steps and at - worker.since > patience_s + 5 * self._mean(worker) for worker in silent)

    # The methods below update workers and steps together, to keep them consistent.

    def _answered(self, worker: str, step: int, at: float) -> list[DispatchOrder]:
        known = self.workers.get(worker)
        if known is None or step not in known.steps:
            return []
        known.steps.remove(step)
        known.since = at
        if step in self.steps:
            self.steps[step].holders.remove(worker)
        return self._released(worker)

    def _settle(self, step: int, fate: StepFate) -> list[DispatchOrder]:
        """Settle a step, and order its holders to drop it. The step stays assigned to each holder until the holder
        replies."""
        state = self.steps[step]
        if state.fate is not StepFate.WAITING:
            return []
        state.fate = fate
        if step in self._pending:
            self._pending.remove(step)
        return [DropStep(worker, step) for worker in state.holders]

    def _give_back(self, step: int) -> None:
        """Queue a step before all later steps, unless another worker also makes it."""
        state = self.steps[step]
        if state.fate is not StepFate.WAITING or state.holders:
            return
        place = next((place for place, other in enumerate(self._pending) if other > step), len(self._pending))
        self._pending.insert(place, step)

    def _released(self, worker: str) -> list[DispatchOrder]:
        known = self.workers[worker]
        if not known.leaving or known.steps:
            return []
        del self.workers[worker]
        return [ReleaseWorker(worker)]

    def _hand_out(self, at: float) -> list[DispatchOrder]:
        orders: list[DispatchOrder] = []
        for step in list(self._pending):
            tried = {worker for worker, _ in self.steps[step].failures}
            chosen = self._choose(tried)
            if chosen is not None:
                self._pending.remove(step)
                orders.append(self._assign(chosen, step, at))
            elif not tried:
                break
        return [*orders, *self._take_over(at)]

    def _assign(self, worker: str, step: int, at: float) -> AssignStep:
        known = self.workers[worker]
        if not known.steps:
            known.since = at
        known.steps.append(step)
        self.steps[step].holders.append(worker)
        return AssignStep(worker, step)

    def _choose(self, tried: set[str]) -> str | None:
        """Return the worker for the next step. A worker that already failed this step is chosen only if all remaining
        workers failed the step.

        A slow worker gets a second step only if it would finish this step earlier than a fully loaded fast worker.
        """
        workers = {name: worker for name, worker in self.workers.items() if not worker.leaving}
        if not tried.issuperset(workers):
            workers = {name: worker for name, worker in workers.items() if name not in tried}
        if not workers:
            return None
        bound = (AHEAD + 1) * min(self._mean(worker) for worker in workers.values())
        costs = {name: (len(worker.steps) + 1) * self._mean(worker) for name, worker in workers.items()}
        free = [
            name
            for name, worker in workers.items()
            if not worker.steps or (len(worker.steps) < AHEAD and costs[name] <= bound)
        ]
        return min(free, key=lambda name: (costs[name], len(workers[name].steps)), default=None)

    def _mean(self, worker: WorkerState) -> float:
        """Return the worker's mean duration; an unmeasured worker counts as average."""
        if worker.mean_s is not None:
            return worker.mean_s
        return self._mean_s if self._mean_s is not None else GUESS_S

    def _take_over(self, at: float) -> list[DispatchOrder]:
        """Let idle workers repeat the earliest steps that they would finish before the workers that currently make
        them."""
        orders: list[DispatchOrder] = []
        idle = [name for name, worker in self.workers.items() if not worker.leaving and not worker.steps]
        waiting = [number for number, step in self.steps.items() if step.fate is StepFate.WAITING] if idle else []
        for name in sorted(idle, key=lambda name: self._mean(self.workers[name])) if waiting else ():
            step = next(self._worth(name, waiting, at), None)
            if step is not None:
                orders.append(self._assign(name, step, at))
        return orders

    def _worth(self, worker: str, waiting: list[int], at: float) -> Iterator[int]:
        own_s = self._mean(self.workers[worker])
        for number in waiting:
            step = self.steps[number]
            if len(step.holders) < HOLDERS and all(worker != tried for tried, _ in step.failures):
                remaining = min((self._finish_in(name, number, at) for name in step.holders), default=0.0)
                if remaining > HASTE * own_s + GRACE_S:
                    yield number

    def _finish_in(self, worker: str, step: int, at: float) -> float:
        """Estimate the seconds until a worker finishes a step that it holds.

        The estimate assumes that a late step needs as much extra time again, so the estimate for a hanging worker keeps
        growing.
        """
        known = self.workers[worker]
        mean_s = self._mean(known)
        spent = max(0.0, at - known.since)
        return abs(mean_s - spent) + known.steps.index(step) * mean_s


def fitting_room(asked: int, *, workers: int, most_bytes: int, batch_bytes: int | None) -> int:
    """Return how many batches a trainer may request ahead: enough to keep all workers busy, within the memory limit.

    The result is at least 1. Until the size of a batch is known, the result is at most 2.
    """
    if batch_bytes is None:
        return min(asked, 2)
    return max(1, min(max(asked, (AHEAD - 1) * workers), most_bytes // max(1, batch_bytes)))


def _blend(mean_s: float | None, took_s: float) -> float:
    return took_s if mean_s is None else mean_s + NEWS * (took_s - mean_s)
