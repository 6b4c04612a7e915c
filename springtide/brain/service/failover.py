"""A brain that serves many, and, while it is away, one's own.

In: the job's view. Out: advice of whoever answers, which says so when it is not the brain. One that is away is asked
again after a pause that grows, so that a job does not wait for it every time.
"""

import asyncio
import logging
from dataclasses import replace

from springtide import errors
from springtide.domain.plan.advice import WITHOUT_BRAIN, Advice, Adviser
from springtide.domain.plan.view import JobView, PastJob

log = logging.getLogger(__name__)
PAUSES_S = (0.0, 5.0, 15.0, 60.0)  # between attempts; the last one stays
REMEMBER_S = 3.0  # for a brain to take in the end of a job, which does not wait for long: then it is told here


class FailoverAdviser:
    """An `Adviser` of two."""

    def __init__(self, remote: Adviser, own: Adviser) -> None:
        self._remote, self._own = remote, own
        self._failed = 0
        self._retry_at = float("-inf")
        self._trouble = ""

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        if now >= self._retry_at or now < self._retry_at - PAUSES_S[-1]:
            try:
                advice = await self._remote.advise(view, epoch=epoch, now=now)
            except errors.SpringtideError as error:
                self._note(error, now)
            else:
                if self._failed:
                    log.info("the brain answers again")
                self._failed, self._retry_at, self._trouble = 0, float("-inf"), ""
                return advice
        own = await self._own.advise(view, epoch=epoch, now=now)
        return replace(own, notes=(f"{WITHOUT_BRAIN}: {self._trouble}", *own.notes))

    async def conclude(self, past: PastJob) -> None:
        """Remembered by the brain, or here if it is away and there is anything to learn from the job."""
        try:
            async with asyncio.timeout(REMEMBER_S):
                await self._remote.conclude(past)
        except (errors.SpringtideError, TimeoutError) as error:
            log.warning("the brain does not remember the job: %s", str(error) or f"no answer within {REMEMBER_S:g} s")
            if past.shape is not None:
                await self._own.conclude(past)

    async def close(self) -> None:
        try:
            await self._remote.close()
        finally:
            await self._own.close()

    def _note(self, error: errors.SpringtideError, now: float) -> None:
        if not self._failed:
            log.warning("planning without the brain: %s", error)
        self._trouble = str(error)
        self._retry_at = now + PAUSES_S[min(self._failed, len(PAUSES_S) - 1)]
        self._failed += 1
