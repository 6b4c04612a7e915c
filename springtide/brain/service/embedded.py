"""Runs a brain inside the master: one job, the capacity of the machine or quota, and a history in SQL.

In: the job's view, every few seconds. Out: the advice that a served brain without other jobs would give. All work runs
in threads, one call at a time, so that the master stays responsive. If the history is unreadable, the brain plans
without it and says so.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from springtide import errors
from springtide.brain.decide.cluster_state import DecisionByJob
from springtide.domain.core.shape import ResourceBudget
from springtide.domain.plan.plan import Advice
from springtide.domain.plan.view import ClusterView, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig

if TYPE_CHECKING:  # imported in the thread at the first use: a master that never asks does not pay for the import
    from springtide.brain.store.store import BrainStore

log = logging.getLogger(__name__)
T = TypeVar("T")
READ_EVERY_S = 60.0  # other jobs end rarely, and only a new job reads the history


class EmbeddedAdviser:
    """An `Adviser` for one job. `url` is a database URL or the path of an SQLite file; empty for no history."""

    def __init__(self, url: str, config: PlanningConfig, capacity: ResourceBudget) -> None:
        self._url, self._config, self._capacity = url, config, capacity
        self._one_at_a_time = asyncio.Lock()
        self._store: BrainStore | None = None
        self._history: tuple[PastJob, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._read_at: float | None = None

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        """Return the changes that the configured policy proposes for the job."""
        async with self._one_at_a_time:
            return await _beside(lambda: self._advise(view, epoch, now))

    async def conclude(self, past: PastJob) -> None:
        if self._url:
            async with self._one_at_a_time:
                await asyncio.to_thread(self._conclude, past)

    async def close(self) -> None:
        async with self._one_at_a_time:
            if self._store is not None:
                await asyncio.to_thread(self._store.close)
                self._store = None

    def _advise(self, view: JobView, epoch: int, now: float) -> Advice:
        from springtide.planning.policy import registry

        policy = registry.load(self._config.policy)
        self._read(now)
        seen = ClusterView(
            now=now, capacity=self._capacity, jobs=(view,), history=self._history, launches=view.launches
        )
        return DecisionByJob(policy(seen, self._config)).advice(view.name, epoch=epoch, notes=self._notes)

    def _conclude(self, past: PastJob) -> None:
        self._opened().remember(past)
        self._read_at = None

    def _read(self, now: float) -> None:
        if not self._url or (self._read_at is not None and 0 <= now - self._read_at < READ_EVERY_S):
            return
        self._read_at = now
        try:
            found = self._opened().history()
        except errors.SpringtideError as error:
            log.warning("planning without history: %s", error)
            self._notes = (f"without history: {error}",)
            return
        self._history = found.jobs
        self._notes = (f"{found.unreadable} past jobs make no sense and were skipped",) if found.unreadable else ()

    def _opened(self) -> "BrainStore":
        if self._store is None:
            from springtide.brain.store import store

            self._store = store.open_store(self._url)
        return self._store


async def _beside(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread, so that a policy that never returns cannot block the exit."""
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()
    answer.set_running_or_notify_cancel()  # from here on only the thread sets the result

    def think() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=think, name="springtide-policy", daemon=True).start()
    return await asyncio.wrap_future(answer)
