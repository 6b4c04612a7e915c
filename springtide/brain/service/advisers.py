"""Advisers of a master: a served brain, a brain inside the process, and the choice between them.

`RemoteAdviser` asks a served brain; every failure becomes `BrainUnreachable`. `EmbeddedAdviser` runs the policy with
the job's own history, and blocks. The master runs either adviser in an `AdviserThread`.
Next: `planning.policy.registry`, or `brain.service.service` in the brain's process.
"""

import asyncio
import concurrent.futures
import logging
import pathlib
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from springtide import config, errors
from springtide.brain.service import messages
from springtide.domain.core.shape import ResourceBudget
from springtide.domain.plan.plan import WITHOUT_BRAIN, Advice, Adviser
from springtide.domain.plan.view import ClusterView, JobView, PastJob
from springtide.domain.spec.planning_config import PlanningConfig, PlanRules
from springtide.rpc.messages.messages import Ok
from springtide.rpc.transport import addresses, connection, tls

# the adviser's thread imports these modules at first use, so a master that never asks does not spend time on the import
if TYPE_CHECKING:
    from springtide.brain.store.store import BrainStore

log = logging.getLogger(__name__)
T = TypeVar("T")
CONNECT_S = 2.0
# seconds to wait for advice. A brain collects requests for 1 s and takes a few seconds to decide. After this timeout,
# the master still has time to plan alone.
ANSWER_S = 15.0


class RemoteAdviser:
    """An `Adviser` that asks the brain at an address.

    `key` distinguishes this job from other jobs with the same name; the default is the host name. With `certificates`
    (a folder, see `brain.service.serve`) the client uses TLS, and accepts only a brain whose certificate has the same
    authority.
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
        reply = await self.ask(messages.Consult(view=view, epoch=epoch, now=now, key=self._key))
        if not isinstance(reply, messages.Counsel):
            raise self._away(f"it answered with {type(reply).__name__} to a consult")
        return reply.advice

    async def conclude(self, past: PastJob) -> None:
        reply = await self.ask(messages.ConcludeJob(past=past, key=self._key))
        if not isinstance(reply, Ok):
            raise self._away(f"the brain answered with {type(reply).__name__} to the end of a job")

    async def ask(self, request: messages.Request) -> messages.Reply:
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(self._connect_s + self._answer_s):
                    link = await self._linked()
                    return cast(messages.Reply, await link.ask(cast(Any, request)))
            except TimeoutError:
                # close the connection: otherwise a late reply would be taken for the reply to the next request
                await self.close()
                raise self._away(f"no answer within {self._answer_s:g} s") from None
            except errors.MasterUnreachable as error:
                await self.close()
                raise self._away(str(error)) from error
            except errors.JobFailed as error:
                raise self._away(str(error)) from error

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def _linked(self) -> connection.RpcConnection:
        if self._link is None or self._link.lost:
            await self.close()
            self._link = await connection.connect(
                self.address,
                self._secret,
                within_s=self._connect_s,
                other=messages.BRAIN,
                certificates=self._certificates,
                role=messages.BRAIN_ROLE,
            )
        return self._link

    def _away(self, why: str) -> errors.BrainUnreachable:
        return errors.BrainUnreachable(f"the brain at {self.address} cannot be used now: {why}")


PAUSES_S = (0.0, 5.0, 15.0, 60.0)  # seconds between attempts to reach the brain; the last value repeats
REMEMBER_S = 3.0  # seconds that a brain has to record the end of a job; after that, the master records the end locally


class FailoverAdviser:
    """An `Adviser` that asks the remote brain, and asks a local brain while the remote brain is unreachable."""

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
        """Record the finished job in the brain. If the brain is unreachable, record the job locally if other jobs can
        learn from it.
        """
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


# seconds between reads of the history; longer intervals do no harm, because only a new job needs the history
READ_EVERY_S = 60.0


class EmbeddedAdviser:
    """An `Adviser` for one job. `url` is a database URL or the path of an SQLite file; an empty `url` means no
    history."""

    def __init__(self, url: str, config: PlanningConfig, capacity: ResourceBudget) -> None:
        self._url, self._config, self._capacity = url, config, capacity
        self._store: BrainStore | None = None
        self._history: tuple[PastJob, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._read_at: float | None = None

    async def advise(self, view: JobView, *, epoch: int, now: float) -> Advice:
        from springtide.brain.decide.cluster_state import DecisionByJob
        from springtide.planning.policy import registry

        policy = registry.load(self._config.policy)
        self._read(now)
        seen = ClusterView(
            now=now, capacity=self._capacity, jobs=(view,), history=self._history, launches=view.launches
        )
        return DecisionByJob(policy(seen, self._config)).advice(view.name, epoch=epoch, notes=self._notes)

    async def conclude(self, past: PastJob) -> None:
        if self._url:
            self._opened().remember(past)
            self._read_at = None

    async def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

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
        self._notes = (f"{found.unreadable} past jobs are unreadable and were skipped",) if found.unreadable else ()

    def _opened(self) -> "BrainStore":
        if self._store is None:
            from springtide.brain.store import store

            self._store = store.open_store(self._url)
        return self._store


SECRET = ".springtide/brain/secret"
"""Path of the secret that `springtide brain serve` writes, relative to the working folder."""


def make_adviser(rules: PlanRules, *, folder: str = "") -> Adviser:
    """Return the adviser that the planning rules select. A key distinguishes jobs with the same name, even across
    masters.
    """
    assert rules.bounds is not None
    where = rules.adviser
    own = EmbeddedAdviser(where.history, rules.config, rules.bounds.quota)
    if not where.brain:
        return own
    secret = config.read_secret(str(pathlib.Path(where.secret_file or SECRET)), "the brain's secret")
    key = where.key or f"{socket.gethostname()}:{folder}"
    return FailoverAdviser(RemoteAdviser(where.brain, secret, key=key, certificates=where.tls), own)


class AdviserThread:
    """A daemon thread with an event loop, which runs an adviser so that the adviser cannot block the master. At most
    one call runs at a time.

    A call that never returns occupies the thread until the process ends, and further calls fail.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy: concurrent.futures.Future[Any] | None = None

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Begin a call. Raise TemporaryError if the previous call is still running."""
        if self._busy is not None and not self._busy.done():
            raise errors.TemporaryError("the adviser is still busy with the previous request")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), name="springtide-adviser", daemon=True).start()
        self._busy = future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return future

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], *, wait: bool = False) -> T:
        """Return the result of a call. With `wait`, first wait for the previous call."""
        if wait and self._busy is not None:
            await asyncio.wait([asyncio.wrap_future(self._busy)])
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()
