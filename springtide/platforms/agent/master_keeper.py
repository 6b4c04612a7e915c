"""Keeps one master running: starts a master, and replaces a dead or hung master with a master of a higher term.

`AwakeClock` does not count time in which this process was stopped or suspended. Otherwise the agent could declare a
master dead because the agent itself could not receive messages.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from springtide import errors
from springtide.domain.core.roles import Life, Role, RoleExit, RoleKind
from springtide.platforms.agent.platform_api import Platform, RoleLaunch
from springtide.rpc.messages import messages
from springtide.rpc.transport import addresses, connection
from springtide.rpc.transport.addresses import MasterLocation
from springtide.telemetry import logs
from springtide.telemetry.host import disks

log = logging.getLogger(__name__)

Result = TypeVar("Result")

READ_S = 0.2  # seconds between two readings of the clock during a wait
# longest interval between two readings that counts completely; longer than READ_S, because a busy machine delays
# readings
MOST_S = 0.5
START_S = 60.0  # longest wait in seconds for a master to start on a busy machine; if the process exits, the wait ends
MOST_START_S = 960.0  # the wait doubles up to this after a master that was too slow: the next one is as slow
MOST_SILENCE_S = 240.0  # likewise for a reply, unless the job allows longer silences
STEADY_S = 300.0  # a master that has served for so many seconds is not slow
SHORT_LIFE_S = 1.0  # seconds; a master that exits this soon after it began to listen has done no work
SHORT_LIVES = 5  # after this many short-lived masters in a row, the job fails
# seconds to wait for the exit of the process after its connection closes, because the exit status shows the reason
DYING_S = 0.5
# seconds to wait before the next start, by the number of short-lived masters in a row
PAUSES_S = (0.0, 0.25, 0.5, 1.0, 2.0)
ROOM_LOOK_S = 0.5  # seconds between two checks of a full disk
MASTER = Role(RoleKind.MASTER)
NextTerm = Callable[[], Awaitable[int]]
"""Function that returns the next term, which is higher than all earlier terms of this job. The function raises `Fenced`
if another agent supervises the job."""


async def unless(happens: asyncio.Event, work: Coroutine[Any, Any, Result], error: Callable[[], Exception]) -> Result:
    """Return the result of `work`. If the event is set first, cancel `work` and raise `error`."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(happens.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise error()
        return working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.wait({working, waiting})


class AwakeClock:
    """Clock that counts the seconds since its creation, without the time in which this process could not receive
    messages.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at, self._awake_s = clock(), 0.0

    def now(self) -> float:
        read_at = self._clock()
        self._awake_s += min(read_at - self._read_at, MOST_S)
        self._read_at = read_at
        return self._awake_s

    async def within(self, limit_s: float, work: Coroutine[Any, Any, Result]) -> Result:
        deadline = self.now() + limit_s
        working = asyncio.create_task(work)
        try:
            while not working.done():
                if (left_s := deadline - self.now()) <= 0:
                    raise TimeoutError(f"nothing within {limit_s:g} s")
                await asyncio.wait({working}, timeout=min(left_s, READ_S))
            return working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})


def counting() -> NextTerm:
    """Return a counter of terms, for an agent that lives as long as its job."""
    terms = itertools.count(1)

    async def next_term() -> int:
        return next(terms)

    return next_term


class DoublingLimit:
    """A time limit in seconds that doubles for the next master whenever a master was too slow."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, max(least, most)
        self.seconds = least

    def double(self) -> None:
        self.seconds = min(2 * self.seconds, self._most)

    def reset(self) -> None:
        self.seconds = self._least


class MasterSupervisor:
    """Supervisor of one master at a time. The previous master is dead before the next one starts."""

    def __init__(
        self,
        platform: Platform,
        files: logs.RunFiles,
        launch: Callable[[Life], RoleLaunch],
        next_term: NextTerm,
        *,
        awake: AwakeClock,
        silence_s: float,
        disk_s: float = 0.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._platform, self._files, self._launch, self._next_term = platform, files, launch, next_term
        self._awake, self._disk_s, self._say = awake, disk_s, say
        self.term = 0
        self.last_exit: RoleExit | None = None
        self.why_replaced = ""
        self._gone = asyncio.Event()
        self._listened_at: float | None = None
        self._short_lives = 0
        self._starting = DoublingLimit(START_S, MOST_START_S)
        self._replying = DoublingLimit(silence_s, MOST_SILENCE_S)

    async def start(self) -> MasterLocation:
        term = await self._numbered()
        if term <= self.term:
            raise errors.JobFailed(
                f"the platform gave the next master term {term}, but term {self.term} was used before"
            )
        self.term = term
        self._gone.clear()
        self._listened_at = None
        self._platform.start(self._launch(Life(MASTER, self.term)), self._ended)
        deadline = self._awake.now() + self._starting.seconds
        while (location := addresses.read_master(self._files.master)) is None or location.term != self.term:
            if self._gone.is_set() or self._awake.now() > deadline:
                how = str(self.last_exit)
                if not self._gone.is_set():
                    how = f"the master did not listen within {self._starting.seconds:g} s"
                    self._starting.double()
                raise errors.MasterUnreachable(f"the master did not start: {how}. {self._reason()}")
            await asyncio.sleep(0.01)
        if location.error:
            raise connection.as_error(messages.RequestRefused(location.kind, location.error))
        self._listened_at = self._awake.now()
        return location

    async def replace(self, error: errors.MasterUnreachable) -> MasterLocation:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), DYING_S)
        self.why_replaced = str(self.last_exit) if self._gone.is_set() else f"{error}, and the master was killed"
        await self.end()
        deadline, full = self._awake.now() + self._disk_s, False
        while True:
            await self.until_room(deadline)
            if full:
                await asyncio.sleep(ROOM_LOOK_S)
            else:
                await self._after_short_lives()
            try:
                return await self.start()
            except errors.DiskFull as error:  # the disk became full between the check and the start of the journal
                if self._awake.now() >= deadline:
                    raise
                log.warning("%s", error)
                full = True
            except errors.MasterUnreachable as error:
                log.warning("%s", error)
                full = bool(disks.write_error(self._files.root))
            await self.end()

    async def _after_short_lives(self) -> None:
        lived_s = 0.0 if self._listened_at is None else self._awake.now() - self._listened_at
        self._short_lives = self._short_lives + 1 if lived_s < SHORT_LIFE_S else 0
        if self._short_lives >= SHORT_LIVES:
            raise errors.JobFailed(
                f"the master has ended {self._short_lives} times as soon as it was started; "
                f"last: {self.last_exit}. {self._reason()}"
            )
        await asyncio.sleep(PAUSES_S[min(self._short_lives, len(PAUSES_S) - 1)])

    async def until_room(self, deadline: float | None = None) -> None:
        folder, logged = self._files.root, False
        deadline = self._awake.now() + self._disk_s if deadline is None else deadline
        while why := disks.write_error(folder):
            if self._awake.now() >= deadline:
                raise errors.JobFailed(
                    f"cannot start a master: {folder} has accepted no files ({why}) for {self._disk_s:g} s "
                    "(--disk-wait); free some space and continue with --resume"
                )
            if not logged:
                self._say(f"{folder} accepts no files ({why}): the next master waits for up to {self._disk_s:g} s")
                logged = True
            await asyncio.sleep(ROOM_LOOK_S)

    async def reply(self, asking: Coroutine[Any, Any, Result]) -> Result:
        """Return the master's reply. Raise MasterUnreachable if the master is silent for too long. The next master gets
        twice the time, because it may be just as slow on a starved machine, and to replace it takes longer still."""
        try:
            reply = await self._awake.within(self._replying.seconds, asking)
        except TimeoutError:
            silent_s = self._replying.seconds
            self._replying.double()
            raise errors.MasterUnreachable(
                f"the master has been silent for {silent_s:g} s: its process hangs or is stopped"
            ) from None
        if self._listened_at is not None and self._awake.now() - self._listened_at >= STEADY_S:
            self._replying.reset()
        return reply

    async def while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await unless(self._gone, work, lambda: errors.MasterUnreachable(str(self.last_exit)))

    async def end(self) -> None:
        self._platform.stop(Life(MASTER, self.term), kill=True)
        await self._gone.wait()

    async def _numbered(self) -> int:
        """Retry until the platform gives a term. The roles keep running meanwhile."""
        for attempt in itertools.count(1):
            try:
                return await self._next_term()
            except errors.TemporaryError as error:
                log.warning("no number for the next master: %s", error)
                await asyncio.sleep(PAUSES_S[min(attempt, len(PAUSES_S) - 1)])
        raise AssertionError("unreachable")

    def _ended(self, ended: RoleExit) -> None:
        self.last_exit = ended
        self._gone.set()

    def _reason(self) -> str:
        path = self._files.log_of(MASTER)
        if why := disks.write_error(path.parent):
            return f"Cannot write to {path.parent} ({why}): free some space, or choose another folder with --logs DIR"
        lines = logs.tail(path, lines=1)
        return f"Its log ({path}) ends: {lines[0].strip()}" if lines else f"Its log is {path}"
