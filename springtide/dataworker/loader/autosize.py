"""Pure. Choose the number of data workers of a loader: the rules of jobs, limited to the cores of a machine.

In: the state of the loader's queue after each batch. Out: a `FeedTarget`, once per interval. Next: loader.py resizes
its pool. planning/dataworkers has the rules: no data workers if making batches takes little of the loop's time.
"""

from collections import deque

from springtide.domain.data.data_workers import FeedRules, FeedState, FeedTarget
from springtide.planning.dataworkers import observation, tuner

EVERY_S = 3.0  # a loader's data workers start within two seconds, so it may decide ten times as often as a job


class Autosize:
    """Observer of a loader's queue, which proposes a number of data workers once per interval."""

    def __init__(self, cores: int, *, every_s: float = EVERY_S) -> None:
        self._cores = cores
        self._every_s = every_s
        self._tuning = tuner.begin(FeedRules(cpu=1.0, most=max(0, cores - 1), every_s=every_s))
        self._words: deque[observation.TrainerReport] = deque()
        self._decided_at: float | None = None
        self._changed_at = float("-inf")
        self._workers = 0

    def told(self, at: float, state: FeedState) -> FeedTarget | None:
        """Record the current queue. Return None if there is nothing to decide yet."""
        if self._cores < 2:
            return None
        if self._decided_at is None:
            self._decided_at = at
        if state.workers != self._workers:
            self._workers, self._changed_at = state.workers, at
        if not self._words or at - self._words[-1].at >= self._every_s / 20:
            self._words.append(observation.TrainerReport(at, state))
        if at - self._decided_at < self._every_s:
            return None
        since = max(self._decided_at, observation.settled_at(self._changed_at, self._every_s))
        free = max(0.0, self._cores - 1.0 - state.workers)
        cores = observation.Cores(stages=(observation.StageCores(state.workers, 1.0),), free_cpu=free)
        seen = observation.see({"loader": list(self._words)}, cores, at=at, since=since)
        self._decided_at = at
        while len(self._words) > 1:
            self._words.popleft()
        if seen is None:
            return None
        self._tuning, target = tuner.decide(self._tuning, seen)
        return target
