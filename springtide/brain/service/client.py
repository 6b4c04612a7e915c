"""Client of a served brain, for one master. Every failure of the brain becomes `BrainUnreachable`.

In: the job's view. Out: the brain's advice, with checked types. The master checks whether the advice suits the job. The
client connects at the first request and reconnects after a loss. It drops replies that arrive too late.
"""

import asyncio
import logging
import socket
from dataclasses import replace
from typing import Any

from springtide import errors
from springtide.brain.service import messages
from springtide.brain.service.certificates import BRAIN_ROLE
from springtide.domain.plan.plan import WITHOUT_BRAIN, Advice, Adviser
from springtide.domain.plan.view import JobView, PastJob
from springtide.rpc.messages.messages import Ok
from springtide.rpc.transport import addresses, connection, tls

log = logging.getLogger(__name__)
CONNECT_S = 2.0
ANSWER_S = 15.0  # a round collects for 1 s and decides within a few; the master still has time to plan alone


class RemoteAdviser:
    """An `Adviser` that asks the brain at an address.

    `key` distinguishes this job from jobs of the same name; the default is the host name. With `certificates` (a
    folder, see `brain.service.certificates`) the client uses TLS and accepts only a brain of the same authority.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        key: str = "",
        certificates: str = "",
        connect_s: float = CONNECT_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        addresses.parse(address)
        if certificates:
            tls.identity(certificates)  # report a wrong folder at the start
        self._certificates = certificates
        self.address, self._secret, self._key = address, secret, key or socket.gethostname()
        self._connect_s, self._answer_s = connect_s, answer_s
        self._link: connection.RpcConnection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        reply = await self._ask(messages.Consult(view=view, epoch=epoch, now=now, key=self._key))
        if not isinstance(reply, messages.Counsel):
            raise self._away(f"it answered with {type(reply).__name__} to a consult")
        return reply.advice

    async def conclude(self, past: PastJob) -> None:
        reply = await self._ask(messages.ConcludeJob(past=past, key=self._key))
        if not isinstance(reply, Ok):
            raise self._away(f"it answered with {type(reply).__name__} to the end of a job")

    async def ask(self, request: messages.Request) -> messages.Reply:
        reply: messages.Reply = await self._ask(request)
        return reply

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def _ask(self, request: Any) -> Any:
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(self._connect_s + self._answer_s):
                    link = await self._linked()
                    return await link.ask(request)
            except TimeoutError:
                await self.close()  # a late reply must not answer the next request
                raise self._away(f"no answer within {self._answer_s:g} s") from None
            except errors.MasterUnreachable as error:
                await self.close()
                raise self._away(str(error)) from error
            except errors.JobFailed as error:
                raise self._away(str(error)) from error

    async def _linked(self) -> connection.RpcConnection:
        if self._link is None or self._link.lost:
            await self.close()
            self._link = await connection.connect(
                self.address,
                self._secret,
                within_s=self._connect_s,
                other=messages.BRAIN,
                certificates=self._certificates,
                role=BRAIN_ROLE,
            )
        return self._link

    def _away(self, why: str) -> errors.BrainUnreachable:
        return errors.BrainUnreachable(f"the brain at {self.address} is of no use now: {why}")


PAUSES_S = (0.0, 5.0, 15.0, 60.0)  # between attempts; the last value repeats
REMEMBER_S = 3.0  # time for a brain to record the end of a job; the job then records its end locally


class FailoverAdviser:
    """An `Adviser` that asks the remote brain, and a local brain while the remote brain is unreachable."""

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
        """Record the past job in the brain; locally if the brain is unreachable and the job has something to teach."""
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
