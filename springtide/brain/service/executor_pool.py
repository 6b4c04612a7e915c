"""Executors (processes that run policies and keep no state), and the pool that assigns tasks to them from one queue.

The pool replaces an executor that dies or hangs, and gives its task to another executor. After a task has ended three
executors, the pool answers the task with an empty decision. An executor (`main`) exits when its input ends, so it never
outlives its brain.
"""

import asyncio
import logging
import sys
from collections import deque
from dataclasses import dataclass

import msgspec

from springtide import errors
from springtide.brain.service import child_process
from springtide.domain.plan.plan import Decision, nothing
from springtide.domain.plan.view import ClusterView
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.rpc.transport import frames

log = logging.getLogger(__name__)
TRIES = 3
# seconds after which an executor counts as hung; a decision on 2,000 jobs takes about two seconds, and starting an
# executor takes another second
ANSWER_S = 60.0
AGAIN_S = 1.0  # seconds to wait if the operating system refused to start a process
MOST = 256
MAX_BYTES = 2**30
"""Largest size of one task. A job's view takes about 10 KB, so a task can hold a hundred thousand jobs."""


class PolicyQuery(msgspec.Struct, frozen=True):
    """Request to run a policy on a cluster view."""

    policy: str
    view: ClusterView
    config: PlanningConfig


class TaskReply(msgspec.Struct, frozen=True):
    """Decision of the policy."""

    decision: Decision


_answers = msgspec.msgpack.Decoder(TaskReply)


@dataclass(slots=True, eq=False)
class _Work:
    """A task and the future of its caller."""

    body: bytes
    answer: asyncio.Future[Decision]
    tries: int = 0


class ExecutorPool:
    """Executors of one brain. Use the pool within one event loop."""

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        self.wanted = 0
        self.lost = 0
        """Number of executors that ended before they replied."""
        self._answer_s = answer_s
        self._queue: deque[_Work] = deque()
        self._changed = asyncio.Condition()
        self._runners: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes.values() if process.returncode is None)

    async def resize(self, executors: int) -> None:
        """Set the number of executors; surplus executors finish their current task first."""
        if not 1 <= executors <= MOST:
            raise errors.BadInput(f"{executors} executors; expected 1 to {MOST}")
        async with self._changed:
            self.wanted = executors
            for number in range(executors):
                runner = self._runners.get(number)
                if runner is None or runner.done():
                    self._runners[number] = asyncio.create_task(self._run(number))
            self._changed.notify_all()

    async def decide(self, task: PolicyQuery) -> Decision:
        """Return the decision of the task's policy; an empty decision if every executor fails."""
        body = frames.pack(task, limit=MAX_BYTES)
        work = _Work(body, asyncio.get_running_loop().create_future())
        async with self._changed:
            self._queue.append(work)
            self._changed.notify_all()
        return await work.answer

    async def close(self) -> None:
        for runner in self._runners.values():
            runner.cancel()
        await asyncio.gather(*self._runners.values(), return_exceptions=True)

    async def _run(self, number: int) -> None:
        """Run one slot for an executor: start an executor, assign tasks to it, and replace it if it fails."""
        try:
            await self._start(number)
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._queue or number >= self.wanted)
                    if number >= self.wanted:
                        return
                    work = self._queue.popleft()
                await self._work(number, work)
        finally:
            await self._end(number)

    async def _work(self, number: int, work: _Work) -> None:
        work.tries += 1
        try:
            decision = await self._ask(number, work.body)
        except (OSError, EOFError, TimeoutError, frames.BadFrame) as error:
            self.lost += 1
            cause = str(error) or type(error).__name__
            log.warning("an executor was lost (%s); try %d of its task", cause, work.tries)
            await self._end(number)
            await self._again(work, cause)
            await self._start(number)
            return
        except BaseException:
            await self._again(work, "its executor was released")
            raise
        if not work.answer.done():
            work.answer.set_result(decision)

    async def _again(self, work: _Work, cause: str) -> None:
        if work.tries >= TRIES:
            if not work.answer.done():
                work.answer.set_result(nothing(f"no executor could decide, {work.tries} were lost: {cause}"))
            return
        async with self._changed:
            self._queue.appendleft(work)
            self._changed.notify_all()

    async def _ask(self, number: int, body: bytes) -> Decision:
        process = self._processes[number]
        assert process.stdin is not None and process.stdout is not None
        async with asyncio.timeout(self._answer_s):
            process.stdin.write(body)
            await process.stdin.drain()
            return (await frames.read(process.stdout, _answers, limit=MAX_BYTES)).decision

    async def _start(self, number: int) -> None:
        while number not in self._processes:
            try:
                self._processes[number] = await child_process.start("springtide.brain.service.executor_pool")
            except OSError as error:
                log.warning("no executor can be started now (%s); the next attempt follows", error)
                await asyncio.sleep(AGAIN_S)

    async def _end(self, number: int) -> None:
        process = self._processes.pop(number, None)
        if process is not None:
            await child_process.end(process)


def main() -> int:
    from springtide.planning.policy import registry

    source, sink = child_process.open_pipes()
    queries = msgspec.msgpack.Decoder(PolicyQuery)
    while (query := child_process.read_request(source, queries, limit=MAX_BYTES)) is not None:
        try:
            decision = registry.load(query.policy)(query.view, query.config)
        except errors.SpringtideError as error:  # the policy's package may have been removed since the brain started
            decision = nothing(f"policy {query.policy} is not there: {error}")
        child_process.write_reply(sink, TaskReply(decision), limit=MAX_BYTES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
