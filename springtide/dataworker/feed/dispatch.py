"""Pure. Decide which data worker makes which step: early, counted once, taken over if it does not come.

In: dataworker/feed/connections.py reports workers, wanted steps and answers, each with the time. Out: orders for
workers. Next: dataworker/feed/feed.py takes batches in the order of steps.

A step is a mini-batch of one trainer, by number. It is wanted once, made any number of times by any worker, and settled
by the first answer. Workers are stateless: a lost worker's step goes to another. An idle worker takes over a step that
it can finish before its current worker. A worker answers every assigned step once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

AHEAD = (
    3  # steps at one worker: one in the making, one to begin with while that is sent, one for the way there and back
)
TRIES = 2  # a step that raised is tried once more, by another worker where there is one
DEATHS = 5  # a step that so many workers died of is not given to a sixth
HOLDERS = 3  # at most so many workers make one step at a time
HASTE = 1.5  # a step is taken over if that comes so many times sooner: a repetition costs a core its time
GRACE_S = 0.05  # and so much sooner: a busy machine lets a process wait that long now and then
PATIENCE_S = 10.0  # a step is overdue for good after five times what it takes and this
GUESS_S = 1.0  # what a step takes, before anyone has made one
NEWS = 0.3  # weight of the last duration in a mean: some ten steps tell a change


class AssignStep(NamedTuple):
    """Order: the worker makes this step."""

    worker: str
    step: int


class DropStep(NamedTuple):
    """Order: nobody waits for this step any more. The worker answers when it skips the step or has made it."""

    worker: str
    step: int


class ReleaseWorker(NamedTuple):
    """Order: the leaving worker has nothing left of ours."""

    worker: str


DispatchOrder = AssignStep | DropStep | ReleaseWorker


class StepFate(Enum):
    """Result of a step."""

    WAITING = "waiting"
    MADE = "made"
    FAILED = "failed"


@dataclass(slots=True)
class StepState:
    """A step that is wanted and not taken."""

    fate: StepFate = StepFate.WAITING
    holders: list[str] = field(default_factory=list)
    """Workers that were told to make it and have not answered."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Which worker said what of it."""
    deaths: int = 0
    """Workers that were lost while they made it."""

    @property
    def why(self) -> str:
        """Why it cannot be made."""
        if self.deaths >= DEATHS:
            return f"{self.deaths} data workers died while they made it"
        return self.failures[-1][1] if self.failures else ""


@dataclass(slots=True)
class WorkerState:
    """What a trainer knows of a data worker."""

    steps: list[int] = field(default_factory=list)
    """Told to make, not answered; the first is in the making. Some may be settled meanwhile."""
    since: float = 0.0
    """When it began with the first."""
    mean_s: float | None = None
    """Seconds that a step takes it."""
    leaving: bool = False


class Dispatch:
    """Steps of one trainer and the workers that make them. Methods return the orders that follow."""

    def __init__(self, *, room: int = 1) -> None:
        self.room = room
        """Steps that are wanted and not taken, at most; may be changed at any time."""
        self.steps: dict[int, StepState] = {}
        """All that are wanted and not taken."""
        self.workers: dict[str, WorkerState] = {}
        self._pending: list[int] = []
        """Of these the ones that are with no worker, earliest first."""
        self._mean_s: float | None = None
        """Seconds that a step takes, whoever makes it."""

    @property
    def space(self) -> int:
        """How many more steps may be wanted."""
        return max(0, self.room - len(self.steps))

    @property
    def open(self) -> int:
        """Workers that take steps."""
        return sum(not worker.leaving for worker in self.workers.values())

    @property
    def deserted(self) -> bool:
        """Whether there is nobody who could make anything: none that takes steps, none that still has some."""
        return not self.workers

    def joined(self, worker: str, *, at: float) -> list[DispatchOrder]:
        """A worker can be given steps from now on."""
        if worker in self.workers:
            raise ValueError(f"data worker {worker} is here already")
        self.workers[worker] = WorkerState(since=at)
        return self._hand_out(at)

    def leaving(self, worker: str, *, at: float) -> list[DispatchOrder]:
        """A worker gets no more steps; those that it has are waited for."""
        if (leaver := self.workers.get(worker)) is None:
            return []
        leaver.leaving = True
        return [*self._released(worker), *self._hand_out(at)]

    def lost(self, worker: str, *, at: float) -> list[DispatchOrder]:
        """A worker is gone: others make what it had."""
        gone = self.workers.pop(worker, None)
        orders: list[DispatchOrder] = []
        for place, number in enumerate(gone.steps if gone else ()):
            if (step := self.steps.get(number)) is not None:
                step.holders.remove(worker)
                step.deaths += place == 0
                if step.deaths >= DEATHS:  # also where another has it: who hangs with it must not lure all others
                    orders += self._settle(number, StepFate.FAILED)
                else:
                    self._give_back(number)
        return [*orders, *self._hand_out(at)]

    def wanted(self, step: int, *, at: float) -> list[DispatchOrder]:
        """The trainer wants this step, which it has not wanted before, after all others that it wants."""
        if step in self.steps:
            raise ValueError(f"step {step} is wanted already")
        self.steps[step] = StepState()
        self._give_back(step)
        return self._hand_out(at)

    def awaits(self, step: int) -> bool:
        """Whether an answer for this step would be news."""
        return step in self.steps and self.steps[step].fate is StepFate.WAITING

    def made(self, worker: str, step: int, *, at: float) -> list[DispatchOrder]:
        """A worker has made a step. Late and repeated answers change nothing but what is known of its speed."""
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
        """The user's code raised at a worker."""
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
        """A worker has let a step go, as it was told; if it needed longer than for others, it is slower than known."""
        known = self.workers.get(worker)
        if known is None or step not in known.steps:
            return []
        if (took := at - known.since) > self._mean(known):
            known.mean_s = _blend(known.mean_s, took)
        orders = self._answered(worker, step, at)
        if self.awaits(step):  # a word too many, but the step must not be lost by it
            self._give_back(step)
        return [*orders, *self._hand_out(at)]

    def taken(self, step: int, *, at: float) -> list[DispatchOrder]:
        """The trainer has the step, whoever made it, or wants it no more."""
        orders = self._settle(step, StepFate.MADE)
        del self.steps[step]
        return [*orders, *self._hand_out(at)]

    def look(self, *, at: float) -> list[DispatchOrder]:
        """Time has passed."""
        return self._hand_out(at)

    def remaining_s(self, step: int, *, at: float) -> float | None:
        """Seconds until someone should have made a step that is waited for; None: nobody has been told to."""
        return min((self._finish_in(name, step, at) for name in self.steps[step].holders), default=None)

    def overdue(self, step: int, *, at: float) -> bool:
        """Whether a step is so late that nobody here may ever answer. One that workers died of is waited for longer."""
        state = self.steps[step]
        if state.fate is not StepFate.WAITING:
            return False
        patience_s = PATIENCE_S * (1 + 5 * state.deaths)
        silent = [self.workers[name] for name in state.holders] or list(self.workers.values())
        return all(one.steps and at - one.since > patience_s + 5 * self._mean(one) for one in silent)

    # What follows changes the books of workers and of steps together, so that they always agree.

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
        """Nobody need make it any more; those who were told to are told so and answer once more."""
        state = self.steps[step]
        if state.fate is not StepFate.WAITING:
            return []
        state.fate = fate
        if step in self._pending:
            self._pending.remove(step)
        return [DropStep(worker, step) for worker in state.holders]

    def _give_back(self, step: int) -> None:
        """To be given out, unless someone has it: before all that is wanted later."""
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
        """The worker that should have one more step first; none that has failed it, while there is another.

        A slow one gets a second step only where it would have made it before a quick one that has all it may have.
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
        """A worker that nothing is known of counts as the average one."""
        if worker.mean_s is not None:
            return worker.mean_s
        return self._mean_s if self._mean_s is not None else GUESS_S

    def _take_over(self, at: float) -> list[DispatchOrder]:
        """Idle workers repeat the earliest steps that they would have sooner than those that hold them."""
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
                remaining = self.remaining_s(number, at=at)
                if remaining is not None and remaining > HASTE * own_s + GRACE_S:
                    yield number

    def _finish_in(self, worker: str, step: int, at: float) -> float:
        """Seconds until a worker should have made a step that it holds.

        One that is overdue is thought to need as long again as it is overdue: what hangs looks worse with time.
        """
        known = self.workers[worker]
        each = self._mean(known)
        spent = max(0.0, at - known.since)
        return abs(each - spent) + known.steps.index(step) * each


def fitting_room(asked: int, *, workers: int, most_bytes: int, batch_bytes: int | None) -> int:
    """How many batches a trainer may want ahead: enough to keep all workers busy, no more than memory allows.

    Before the size of a batch is known, a few; and one always, however large.
    """
    if batch_bytes is None:
        return min(asked, 2)
    return max(1, min(max(asked, (AHEAD - 1) * workers), most_bytes // max(1, batch_bytes)))


def _blend(mean_s: float | None, took_s: float) -> float:
    return took_s if mean_s is None else mean_s + NEWS * (took_s - mean_s)
