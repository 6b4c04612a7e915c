"""Virtual processes: what is wanted is started after a while, what is not is ended, and the master hears of each end.

In: what the master wants, which is asked for as a real agent does; the same `platforms.agent.reconcile` decides. Out:
lives of workers and servers as tasks of the virtual loop. A process that is killed does nothing more, wherever it was.
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
from springtide.sim.jobs.members.master_connection import Wire


class Program(Protocol):
    """What a process runs."""

    async def run(self, process: "VirtualProcess") -> int: ...

    def ask_to_end(self) -> bool: ...

    def killed(self) -> None: ...


class VirtualProcess:
    """One life."""

    def __init__(
        self, wanted: WantedRole, pid: int, program: Program, wire: Wire, ended: Callable[[RoleExit], None]
    ) -> None:
        self.life, self.pid, self.program, self.wire = Life(wanted.role, wanted.incarnation), pid, program, wire
        self._ended = ended
        self.cpu, self.memory_limit = wanted.cpu or 1.0, wanted.memory
        self.speed = 1.0
        """Share that it has of the cores it should have."""
        self.cpu_s = self.memory = 0.0
        """What it has used, and what it holds."""
        self.broken: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False
        self.spawn(self._run())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task that ends with this process; what becomes of it is its owner's business."""
        self._tasks.add(task)

        def over(done: asyncio.Task[Any]) -> None:
            self._tasks.discard(done)
            _ = done.cancelled() or done.exception()

        task.add_done_callback(over)

    def kill(self, *, signal: str = "SIGKILL", oom: bool = False, evicted: bool = False) -> None:
        """It is gone, in the middle of whatever it did."""
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
    """The agent of one job, and the processes it has started."""

    def __init__(
        self,
        wire: Callable[[str], Wire],
        program: Callable[[WantedRole], Program],
        starts_s: Callable[[WantedRole], float],
        look_s: float,
    ) -> None:
        """`starts_s`: from the wish for a process until its first instruction."""
        self._wire, self._program, self._starts_s, self._look_s = wire, program, starts_s, look_s
        self._reconciler = reconcile.Reconciler()
        self._pids = itertools.count(1000)
        self._news = asyncio.Event()
        self._exits: list[RoleExit] = []
        self.pending: dict[Life, WantedRole] = {}
        """Wanted, and on their way."""
        self.processes: dict[Life, VirtualProcess] = {}
        """That run now."""
        self.status: messages.JobStatus | None = None
        self.lost = 0
        """Processes that did not end by themselves."""

    @property
    def cpu(self) -> float:
        """Cores of all that run, or are on their way."""
        return sum(one.cpu for one in self.processes.values()) + sum(one.cpu or 1.0 for one in self.pending.values())

    def living(self, kind: RoleKind) -> list[VirtualProcess]:
        return [self.processes[life] for life in sorted(self.processes) if life.role.kind is kind]

    async def attend(self) -> messages.JobStatus:
        """Do what the master wants until the job is over."""
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
