"""Tracks checkpoint files on servers' own disks: which server mirrors and serves which files, and copies of files to
storage.

A job with one shared folder, no mirror and no URL does not use this module. Each server describes its disk whenever it
asks the master for orders. A new master therefore knows the disks after one request of each server. Next:
`server.checkpoints`, `server.mirror` and `checkpoint.transfer.file_transfer` on the servers.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import Manifest, bare, folder_of, number_of
from springtide.checkpoint.format.storage import FolderStore
from springtide.checkpoint.transfer.file_transfer import SegmentCopies
from springtide.checkpoint.transfer.upload import shares
from springtide.domain.core.roles import Role
from springtide.domain.model.checkpoints import Buddy, CheckpointRules, buddy_of
from springtide.master.core.context import ChangeSignal
from springtide.rpc.messages import checkpoints, messages
from springtide.rpc.messages.types import Reply, Request


class MirrorDirectory:
    """Disk facts that each server reported, by incarnation. Reports of earlier incarnations do not count."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._rules = rules
        self._said: dict[str, checkpoints.SaveRequest] = {}
        self.must_all_speak = rules.mirror
        """True if a checkpoint may begin only after every server has reported which checkpoints it knows."""

    def on_listening(self, role: Role, incarnation: int, request: checkpoints.SaveRequest) -> None:
        self._said[f"{role}.{incarnation}"] = request

    def known(self, lives: Mapping[int, str]) -> bool:
        return not (self.must_all_speak or self.nodes(lives)) or self.spoken(lives)

    def spoken(self, lives: Mapping[int, str]) -> bool:
        return all(life in self._said for life in lives.values())

    def nodes(self, lives: Mapping[int, str]) -> dict[str, str]:
        requests = {life: self._said[life] for life in lives.values() if life in self._said}
        return {server_of(life): report.node for life, report in requests.items() if report.node}

    def holders(self, lives: Mapping[int, str], numbers: Iterable[int]) -> checkpoints.FileHolders:
        spoken = {life: self._said[life] for life in lives.values() if life in self._said}
        addresses = {server_of(life): report.takes_copies_at for life, report in spoken.items() if report.node}
        awaited = sorted(server_of(life) for life in lives.values() if life not in spoken)
        return checkpoints.FileHolders(tuple(numbers), addresses, tuple(awaited))

    def named(
        self, order: checkpoints.SaveOrder, role: Role, lives: Mapping[int, str], kept: Iterable[Manifest] = ()
    ) -> checkpoints.SaveOrder:
        own = self._said.get(lives.get(role.rank, ""))
        if own is not None and own.node:
            files = [name for manifest in kept for file in manifest.files for name in (file.name, file.mirror)]
            needed = {bare(name) for name in files if folder_of(name) == str(role)}
            order = msgspec.structs.replace(order, needed=tuple(sorted(needed)))
        if not self._rules.mirrors(own.node if own is not None else ""):
            return order
        known = {rank: self._said[life] for rank, life in lives.items() if life in self._said}
        rank = buddy_of(role.rank, {rank: request.node for rank, request in known.items() if request.takes_copies_at})
        if rank is None:
            return order
        buddy = Buddy(server_of(lives[rank]), known[rank].takes_copies_at, known[rank].node)
        return msgspec.structs.replace(order, buddy=buddy)


def server_of(life: str) -> str:
    return life.rpartition(".")[0]


HOLD_S = 10.0  # longest time to hold a server's request for orders


class CopyFailed(Exception):
    """Error: servers could not copy all files to the URL. The message says why."""


class CopyTotals(NamedTuple):
    """Number of files and bytes that servers have sent."""

    files: int = 0
    bytes: int = 0


class ServerCopies:
    """Orders to copy files, of one job, for one checkpoint at a time."""

    def __init__(self, url: str, changed: ChangeSignal, *, term: int = 1) -> None:
        self._url, self._changed = url, changed
        self._ids = itertools.count((term << 32) + 1)  # numbers that no other master uses
        self._orders: dict[str, checkpoints.CopyOrder] = {}
        self._lacking: set[str] = set()
        self._sent = CopyTotals()
        self._trouble = ""

    async def through(self, manifest: Manifest) -> CopyTotals:
        self._lacking, self._sent, self._trouble = set(), CopyTotals(), ""
        before: frozenset[str] | None = None
        while before is None or self._lacking != before:
            before = frozenset(self._lacking)
            found = shares(manifest, self._lacking)
            if found.missing:
                raise CopyFailed(f"{', '.join(found.missing)}: no server has these files any more")
            self._orders = {
                server: checkpoints.CopyOrder(next(self._ids), self._url, files) for server, files in found.of.items()
            }
            self._changed.wake_all()
            await self._changed.until(lambda: not self._orders or bool(self._trouble))
            if self._trouble:
                self._orders = {}
                raise CopyFailed(self._trouble)
        return self._sent

    def poll(self, there: Collection[str]) -> None:
        gone = [server for server in self._orders if server not in there]
        for server in gone:
            self._lacking |= {name for name, _ in self._orders.pop(server).files}
        if gone:
            self._changed.wake_all()

    async def order_for(
        self, server: str, request: checkpoints.CopyRequest
    ) -> checkpoints.CopyOrder | messages.WaitReply:
        def new() -> bool:
            return server in self._orders and self._orders[server].id != request.after

        await self._changed.until(new, at_most_s=HOLD_S)
        return self._orders[server] if new() else messages.WaitReply()

    def on_report(self, server: str, report: checkpoints.CopyReport) -> None:
        if server not in self._orders or self._orders[server].id != report.id:
            return
        del self._orders[server]
        self._lacking |= set(report.lacks)
        self._sent = CopyTotals(self._sent.files + report.files, self._sent.bytes + report.bytes)
        if report.error:
            self._trouble = f"{server}: {report.error}"
        self._changed.wake_all()


ALONE = "with no copy elsewhere"
GROUP = (
    ". When one server of a bsp group is lost, all servers restart. If each process has its own disk, as a pod does, "
    "only a checkpoint URL or a folder that all servers share can restore the group"
)


class FileDirectory:
    """Which server holds which checkpoint files of one job. `lives` returns the servers that run now or will run
    soon."""

    def __init__(
        self,
        folder: FolderStore,
        buddies: MirrorDirectory,
        copying: ServerCopies,
        *,
        lives: Callable[[], Mapping[int, str]],
    ) -> None:
        self._folder, self._buddies, self._copying, self._lives = folder, buddies, copying, lives
        self._segments = SegmentCopies(folder.path)

    async def answer(self, role: Role, request: Request) -> Reply:
        match request:
            case checkpoints.FileHoldersRequest():
                return self._buddies.holders(
                    self._lives(), await asyncio.to_thread(checkpoint_io.numbers, self._folder)
                )
            case checkpoints.ReadFile():
                return checkpoints.FileRun(*await asyncio.to_thread(self._run, request))
            case checkpoints.CopyRequest():
                return await self._copying.order_for(str(role), request)
            case checkpoints.CopyReport():
                self._copying.on_report(str(role), request)
                return messages.Ok()
        raise errors.BadInput(f"a server may not send {type(request).__name__}")

    def _run(self, request: checkpoints.ReadFile) -> tuple[int, bytes]:
        if number_of(request.name) is None:
            return self._segments.run(request.name, request.offset, request.length)
        size = self._folder.size(request.name)
        if size is None:
            return -1, b""
        return size, self._folder.read(request.name, request.offset, request.length) if request.length else b""


def cost_of_a_host(rules: CheckpointRules, nodes: Mapping[str, str], servers: int, *, in_step: bool = False) -> str:
    """Describe the effect of losing a machine, for a job whose servers have their own disks. `nodes` maps servers to
    machines; the result is empty if all servers see one folder. `in_step` is True for a bsp group, in which all servers
    restart if one is lost.
    """
    if not nodes:
        return ""
    who = f"{len(nodes)} of {servers} servers do not see the job's folder, and keep checkpoints on their own disks"
    mirror = all(map(rules.mirrors, nodes.values())) and servers > 1
    together = mirror and len(set(nodes.values())) < 2 and len(nodes) == servers
    copies = [
        *(["from another server's copies"] if mirror and not together else []),
        *([f"from {rules.url}, losing at most the last {rules.upload_every_s:g} s"] if rules.url else []),
    ]
    same = ", which are all on one machine" if together else ""
    if copies:
        group = "" if rules.url or not in_step else GROUP
        return f"{who}{same}; after the loss of a disk the job continues {', else '.join(copies)}{group}"
    return (
        f"{who}{same}, {ALONE}: a lost server can be restored only from its own disk. If that "
        "disk (a machine, a pod) is lost too, the job is lost. Give a checkpoint URL, two or more servers on different "
        "machines, or a folder that all servers share"
    )
