"""Virtual processes: starts and ends the roles that the master wants, and reports their exits.

In: the wanted roles, polled from the master as a real agent does; `platforms.agent.reconcile` decides. Out: workers and
servers as tasks of the virtual loop. A killed process stops at once, at any point.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from springtide import errors
from springtide.domain.core.roles import Life, RoleExit, RoleKind, RoleUsage, WantedRole
from springtide.platforms.agent import reconcile
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus
from tests.virtual_jobs.master_connection import Wire


class Program(Protocol):
    """Program of a virtual process."""

    async def run(self, process: "VirtualProcess") -> int: ...

    def ask_to_end(self) -> bool: ...

    def killed(self) -> None: ...


class VirtualProcess:
    """One virtual process, for one life of a role."""

    def __init__(
        self, wanted: WantedRole, pid: int, program: Program, wire: Wire, ended: Callable[[RoleExit], None]
    ) -> None:
        self.life, self.pid, self.program, self.wire = Life(wanted.role, wanted.incarnation), pid, program, wire
        self._ended = ended
        self.cpu, self.memory_limit = wanted.cpu or 1.0, wanted.memory
        self.speed = 1.0
        """Share of its assigned cores that the process has."""
        self.cpu_s = self.memory = 0.0
        """CPU seconds used so far, and bytes held now."""
        self.broken: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False
        self.spawn(self._run())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Tie a task to this process: the task is cancelled with the process. Its owner handles its result."""
        self._tasks.add(task)

        def over(done: asyncio.Task[Any]) -> None:
            self._tasks.discard(done)
            _ = done.cancelled() or done.exception()

        task.add_done_callback(over)

    def kill(self, *, signal: str = "SIGKILL", oom: bool = False, evicted: bool = False) -> None:
        """Kill the process at once."""
        if not self._over:
            self.program.killed()
            self._end(
                RoleExit(
                    role=self.life.role,
                    pid=self.pid,
                    incarnation=self.life.incarnation,
                    signal=signal,
                    oom=oom,
                    evicted=evicted,
                )
            )

    async def _run(self) -> None:
        code = await self.program.run(self)
        if not self._over:
            self._end(RoleExit(role=self.life.role, pid=self.pid, incarnation=self.life.incarnation, code=code))

    def _end(self, how: RoleExit) -> None:
        self._over = True
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._ended(how)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, errors.SpringtideError):
            self.program.killed()
            if not self._over:
                self._end(RoleExit(role=self.life.role, pid=self.pid, incarnation=self.life.incarnation, code=1))
        else:
            self.broken = error


class Machines:
    """The agent of one job and its processes."""

    def __init__(
        self,
        wire: Callable[[str], Wire],
        program: Callable[[WantedRole], Program],
        starts_s: Callable[[WantedRole], float],
        look_s: float,
    ) -> None:
        """Create the agent. `starts_s` returns the seconds from a start request to the first instruction."""
        self._wire, self._program, self._starts_s, self._look_s = wire, program, starts_s, look_s
        self._reconciler = reconcile.Reconciler()
        self._pids = itertools.count(1000)
        self._news = asyncio.Event()
        self._exits: list[RoleExit] = []
        self.pending: dict[Life, WantedRole] = {}
        """Processes that are starting."""
        self.processes: dict[Life, VirtualProcess] = {}
        """Processes that run now."""
        self.status: JobStatus | None = None
        self.lost = 0
        """Number of processes that were killed."""

    @property
    def cpu(self) -> float:
        """Cores of all running and starting processes."""
        return sum(one.cpu for one in self.processes.values()) + sum(one.cpu or 1.0 for one in self.pending.values())

    def living(self, kind: RoleKind) -> list[VirtualProcess]:
        return [self.processes[life] for life in sorted(self.processes) if life.role.kind is kind]

    async def attend(self) -> JobStatus:
        """Follow the master's wishes until the job is over."""
        loop, link = asyncio.get_running_loop(), self._wire("agent")
        hello = messages.JoinAgent(1)
        await link.ask(hello)
        link.introduce(hello)
        while True:
            while self._exits:
                await link.ask(messages.RoleExitReport(self._exits[0]))
                self._exits.pop(0)
            outlook = await link.ask(lambda: messages.AgentPoll(self._measure()))
            assert isinstance(outlook, messages.AgentOrders)
            self.status = outlook.status
            if outlook.status.phase.over:
                return outlook.status
            running = [*self.processes, *self.pending]
            for step in self._reconciler.steps(outlook.wanted, running, at=loop.time()):
                self._do(step)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._news.wait()
            self._news.clear()

    def _measure(self) -> tuple[RoleUsage, ...]:
        return tuple(
            RoleUsage(
                role=life.role,
                incarnation=life.incarnation,
                cpu_s=one.cpu_s,
                memory=int(one.memory),
                cpu_limit=one.cpu,
                memory_limit=one.memory_limit,
            )
            for life, one in self.processes.items()
        )

    def end_all(self) -> None:
        for process in list(self.processes.values()):
            process.kill()

    def _do(self, step: reconcile.Step) -> None:
        match step:
            case reconcile.StartRole(wanted):
                life = Life(wanted.role, wanted.incarnation)
                self.pending[life] = wanted
                asyncio.get_running_loop().call_later(self._starts_s(wanted), self._begin, life, wanted)
            case reconcile.StopRole(life, kill):
                if life in self.pending:
                    del self.pending[life]
                    self._exits.append(RoleExit(role=life.role, pid=0, incarnation=life.incarnation, signal="SIGTERM"))
                elif life in self.processes:
                    process = self.processes[life]
                    if kill or not process.program.ask_to_end():
                        process.kill(signal="SIGKILL" if kill else "SIGTERM")
            case reconcile.ResizeRole(wanted):
                if (life := Life(wanted.role, wanted.incarnation)) in self.processes:
                    self.processes[life].cpu = wanted.cpu or 1.0
                    self.processes[life].memory_limit = wanted.memory

    def _begin(self, life: Life, wanted: WantedRole) -> None:
        if life not in self.pending:
            return
        del self.pending[life]

        def ended(how: RoleExit) -> None:
            del self.processes[life]
            self.lost += not how.clean
            self._exits.append(how)
            self._news.set()

        self.processes[life] = VirtualProcess(
            wanted, next(self._pids), self._program(wanted), self._wire(str(life)), ended
        )
