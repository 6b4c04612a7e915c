"""Runs roles as Ray actors behind `platforms.agent.platform_api`, in the event loop of a steward.

Each role is a detached actor (`role_actor`). The platform polls the actors for output, exits and lost nodes. If Ray
cannot place a role within `pending_s`, the job continues without the role. The master runs beside the steward.
"""

import asyncio
import contextlib
import logging
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.domain.core.roles import Life, RoleExit, RoleKind
from springtide.platforms.agent import master_client
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.ray_cluster import cluster, job_order, placement
from springtide.platforms.ray_cluster.role_actor import RoleActor, RoleOutput, Started
from springtide.telemetry import logs
from springtide.telemetry.host.gpus import VARIABLE

OOM = ("running low on memory", "OutOfMemory", "memory pressure", "OOM")
"""Phrases in messages of Ray about a worker that Ray's memory monitor or the kernel has killed."""

log = logging.getLogger(__name__)
LOOK_S = 0.1  # seconds between two checks of the master's address
AWAY_S = 1.5  # seconds after which an unreachable actor counts as lost; Ray itself takes at least 15 s longer
LEAVE_S = 2.0  # seconds that an actor has to clean up on its node before it is ended


def exit_by_signal(life: Life, pid: int, *, signal: str) -> RoleExit:
    return RoleExit(role=life.role, incarnation=life.incarnation, pid=pid, signal=signal)


def exit_of_lost(life: Life, pid: int, error: Exception, *, node_lives: bool) -> RoleExit:
    oom = node_lives and any(word in str(error) for word in OOM)
    return RoleExit(role=life.role, incarnation=life.incarnation, pid=pid, signal="SIGKILL", oom=oom, evicted=not oom)


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if ":" not in line[:16] and len(line) > 20]
    return (telling or lines or [type(error).__name__])[-1][:300]


@dataclass(slots=True)
class ActorEntry:
    """The actor of one role."""

    life: Life
    actor: Any
    on_exit: Callable[[RoleExit], None]
    launch: RoleLaunch | None = None
    """Launch to run; None for an adopted actor that already runs."""
    started: Started | None = None
    asked_to_end: bool = False
    taken: bool = False
    """True if the node is draining, in which case an exit counts as an eviction."""
    task: "asyncio.Task[None] | None" = None


class RayPlatform:
    """Starts roles on Ray. `say` receives messages for the user."""

    def __init__(
        self, order: job_order.JobOrder, files: logs.RunFiles, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._order, self._files, self._say = order, files, say
        self._held: dict[Life, ActorEntry] = {}
        self._known_master = b""
        leaving = placement.NodeDrain(
            cluster.draining, self._placed, lambda request: master_client.ask_master(files, request), self._take
        )
        moves = placement.DataWorkerMover(
            self._seated, self._nodes, lambda request: master_client.ask_master(files, request)
        )
        watches = (self._tell_where_master_is(), leaving.keep(), moves.keep())
        self._watches = [asyncio.create_task(watch) for watch in watches]

    def start(self, launch: RoleLaunch, on_exit: Callable[[RoleExit], None]) -> int:
        asked = job_order.needs(launch.life.role.kind, launch.limits, self._order.wish.resources)
        if launch.life.role.kind is RoleKind.DATA_WORKER and (
            node := placement.choose(asked["num_cpus"], self._nodes())
        ):
            asked["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
        if not asked.get("num_gpus"):  # without a GPU request, a role would see all GPUs of its node
            launch = replace(launch, given={VARIABLE: "", **launch.given})
        actor = (
            ray.remote(RoleActor)
            .options(
                name=job_order.holder_of(self._order.name, launch.life),
                namespace=job_order.NAMESPACE,
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                **asked,
            )
            .remote()
        )
        self._keep(ActorEntry(launch.life, actor, on_exit, launch))
        return 0

    def adopt(self, on_exit: Callable[[RoleExit], None]) -> list[Life]:
        for life, actor in cluster.holders(self._order.name).items():
            self._keep(ActorEntry(life, actor, on_exit))
        return list(self._held)

    def stop(self, life: Life, *, kill: bool) -> None:
        if (held := self._held.get(life)) is not None:
            held.asked_to_end = True
            if held.started is None:
                cluster.kill(held.actor)
            else:
                held.actor.end.remote(kill)

    def hold(self, life: Life, limits: ProcessLimits) -> bool:
        return False

    def running(self) -> list[Life]:
        return list(self._held)

    def usage(self) -> dict[Life, tuple[Usage, ProcessLimits]]:
        return {}

    def close(self) -> None:
        for held in self._held.values():
            cluster.kill(held.actor)
        self.leave()

    def leave(self) -> None:
        for watch in self._watches:
            watch.cancel()
        for held in self._held.values():
            if held.task is not None:
                held.task.cancel()
        self._held.clear()

    # ---- nodes that Ray will remove ----

    def _placed(self) -> dict[Life, str]:
        return {life: held.started.node for life, held in self._held.items() if held.started is not None}

    def _seated(self) -> dict[Life, tuple[str, float]]:
        found = {}
        for life, node in self._placed().items():
            if (launch := self._held[life].launch) is not None:
                asked = job_order.needs(life.role.kind, launch.limits, self._order.wish.resources)
                found[life] = node, asked["num_cpus"]
        return found

    def _nodes(self) -> placement.Nodes:
        homes = {node for life, node in self._placed().items() if life.role.kind is RoleKind.WORKER}
        return cluster.seats(self._order.name, homes)

    def _take(self, life: Life) -> None:
        if (held := self._held.get(life)) is not None:
            held.taken = True
            self.stop(life, kill=False)

    # ---- one actor ----

    def _keep(self, held: ActorEntry) -> None:
        self._held[held.life] = held
        held.task = asyncio.create_task(self._tend(held))

    async def _tend(self, held: ActorEntry) -> None:
        try:
            ended = await self._begin(held) or await self._follow(held)
        except exceptions.RayTaskError as error:  # the actor lives but failed the call, so no node was lost
            log.warning("%s: %s", held.life, first_line(error))
            ended = exit_by_signal(held.life, held.started.pid if held.started else 0, signal="SIGKILL")
        except exceptions.RayError as error:
            ended = self._lost(held, error)
        self._held.pop(held.life, None)
        cluster.kill(held.actor)
        held.on_exit(replace(ended, evicted=True) if held.taken and not ended.clean else ended)

    async def _begin(self, held: ActorEntry) -> RoleExit | None:
        try:
            async with asyncio.timeout(self._order.wish.pending_s):
                started = await (self._find(held) if held.launch is None else self._start(held, held.launch))
        except TimeoutError:
            return self._unplaced(held)
        if started is None:  # the previous steward died between creating the actor and starting the process
            return exit_by_signal(held.life, 0, signal="SIGKILL")
        held.started = started
        self._files.log_of(held.life.role).touch()
        log.info("%s runs on %s (node %s)", held.life, started.host, started.node[:8])
        return None

    async def _start(self, held: ActorEntry, launch: RoleLaunch) -> Started:
        started: Started = await held.actor.start.remote(launch, self._small_files(launch))
        return started

    async def _find(self, held: ActorEntry) -> Started | None:
        found: tuple[RoleLaunch, Started] | None = await held.actor.who.remote()
        if found is None:
            return None
        held.launch = found[0]
        await held.actor.put.remote("master.json", self._master())
        return found[1]

    async def _follow(self, held: ActorEntry) -> RoleExit:
        away_since: float | None = None
        while True:
            try:
                news: RoleOutput = await held.actor.news.remote()
            except exceptions.ActorUnavailableError as error:
                away_since = time.monotonic() if away_since is None else away_since
                if time.monotonic() >= away_since + AWAY_S:
                    return self._lost(held, error)
                await asyncio.sleep(LOOK_S)
                continue
            away_since = None
            if news.said:
                with contextlib.suppress(OSError), logs.open_log(self._files.log_of(held.life.role)) as file:
                    file.write(news.said)
            if news.exit is not None:
                with contextlib.suppress(exceptions.RayError, TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await held.actor.leave.remote()
                return news.exit

    def _lost(self, held: ActorEntry, error: Exception) -> RoleExit:
        pid = held.started.pid if held.started else 0
        if held.started is None and held.asked_to_end:
            return exit_by_signal(held.life, 0, signal="SIGTERM")
        node = held.started.node if held.started else ""
        ended = exit_of_lost(held.life, pid, error, node_lives=not node or cluster.node_lives(node))
        log.warning("%s: %s", held.life, first_line(error))
        return ended

    def _unplaced(self, held: ActorEntry) -> RoleExit:
        limits = held.launch.limits if held.launch is not None else ProcessLimits()
        asked = job_order.needs(held.life.role.kind, limits, self._order.wish.resources)
        why = f"no node took it within {self._order.wish.pending_s:g} s: {job_order.lacking(asked, cluster.free())}"
        self._say(f"{held.life}: {why}")
        return RoleExit(role=held.life.role, incarnation=held.life.incarnation, pid=0, unplaced=why)

    # ---- settings of a role ----

    def _small_files(self, launch: RoleLaunch) -> dict[str, bytes]:
        certificates = pathlib.Path(launch.settings["tls"]).iterdir() if launch.settings.get("tls") else ()
        return {
            "secret": self._files.secret.read_bytes(),
            "master.json": self._master(),
            **{f"tls/{path.name}": path.read_bytes() for path in certificates},
        }

    def _master(self) -> bytes:
        with contextlib.suppress(OSError):
            return self._files.master.read_bytes()
        return b""

    async def _tell_where_master_is(self) -> None:
        while True:
            if (where := self._master()) != self._known_master:
                self._known_master = where
                for held in self._held.values():
                    if held.started is not None:
                        held.actor.put.remote("master.json", where)
            await asyncio.sleep(LOOK_S)
