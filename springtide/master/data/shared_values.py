"""Passes values between members: shared and gathered values, tasks that are done once, addresses of shuffle peers,
and packages.
Also limits staleness.

State that must outlive the master is in the record, and is journaled. If trainer and master share a disk, the
package is not sent over the network.
"""

import asyncio
import contextlib
import pathlib
import zlib

import msgspec

from springtide import errors
from springtide.checkpoint.transfer.file_transfer import PART_BYTES, SegmentCopies
from springtide.dataworker.processes import package_transfer
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.model import tables
from springtide.domain.spec.tracker_target import HYPERPARAMETERS
from springtide.job.core import actions
from springtide.job.core.nodes import NodeState
from springtide.job.state import JobState
from springtide.master.core.context import ChangeSignal, MasterContext
from springtide.rpc.messages import coordination, messages
from springtide.rpc.messages.checkpoints import MissingFiles
from springtide.rpc.messages.coordination import (
    ClaimDone,
    ClaimReply,
    ClaimRequest,
    GatherReply,
    GatherRequest,
    Regroup,
    ShareRequest,
    Shuffler,
    Shufflers,
    ValueFound,
    ValueRequest,
)
from springtide.rpc.messages.data_workers import PackageAsk, PackageWritten
from springtide.rpc.messages.types import FilePart, Reply

Agreement = ShareRequest | ValueRequest | ClaimRequest | ClaimDone


class SharedValues:
    """Shared values of one job, and the tasks that it does only once."""

    def __init__(self, context: MasterContext) -> None:
        self._context, self._record = context, context.record
        self._changed, self._journaled = context.changed, context.journaled

    async def answer(self, holder: LeaseHolder, request: Agreement) -> Reply:
        record = self._record
        match request:
            case ShareRequest():
                if request.key == tables.SHARED_KEY:
                    self._check_model(request.value)
                if request.key == HYPERPARAMETERS and record.shared.values.get(request.key) != request.value:
                    self._context.log_event(HYPERPARAMETERS, values=msgspec.msgpack.decode(request.value))
                self._journaled(record.shared.share, request.key, request.value)
                self._changed.wake_all()
            case ValueRequest():
                return await self.look_up(request)
            case ClaimRequest():
                return await self._claim(holder, request.key)
            case ClaimDone():
                self._journaled(record.shared.finish, request.key, holder)
                self._changed.wake_all()
        return messages.Ok()

    def _check_model(self, value: bytes) -> None:
        known = self._record.shared.load(tables.SHARED_KEY, tables.Outline, tables.Outline())
        with contextlib.suppress(*UNDECODABLE):
            tables.check_same_dense(known, msgspec.msgpack.decode(value, type=tables.Outline))

    async def look_up(self, request: ValueRequest) -> ValueFound:
        await self._changed.until(lambda: request.key in self._record.shared.values)
        return ValueFound(self._record.shared.values[request.key])

    async def _claim(self, holder: LeaseHolder, key: str) -> ClaimReply:
        mine: bool | None = None

        def decided() -> bool:
            nonlocal mine
            mine = self._journaled(self._record.shared.claim, key, holder)
            return mine is not None

        await self._changed.until(decided)
        assert mine is not None
        return ClaimReply(mine)


class ValueGatherer:
    """Calls of `job.gather` that wait for the values of other workers.

    A call waits for each worker that can still make the same call: the worker has begun an epoch, has not ended, and
    has not made a later call. A lost worker is waited for, because its next incarnation repeats the call. A value that
    was given counts, even if its worker is lost afterwards.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context, self._record = context, context.record
        self._given: dict[tuple[int, int], dict[int, bytes]] = {}
        self._reached: dict[int, tuple[int, int]] = {}
        """Latest call of each rank."""
        context.subscribe(self._on_actions)

    async def gather(self, holder: LeaseHolder, request: GatherRequest) -> GatherReply | Regroup | messages.DataEnd:
        key, call, state = f"{request.place}.{request.number}", (request.place, request.number), self._record.state
        gathered, role = self._record.shared.gathered, Role(RoleKind.WORKER, holder.rank)

        def regroups() -> bool:
            return state.bsp.members.get(holder.rank) == holder.incarnation and state.group_lost

        self._reached[holder.rank] = call
        if key not in gathered:
            self._given.setdefault(call, {})[holder.rank] = request.value
        self._context.changed.wake_all()
        await self._context.changed.until(
            lambda: key in self._record.shared.gathered or self._is_complete(call) or regroups() or state.draining(role)
        )
        if key not in (gathered := self._record.shared.gathered):
            if not self._is_complete(call):
                return messages.DataEnd() if state.draining(role) else Regroup()
            self._context.journaled(self._record.shared.gather, key, dict(sorted(self._given[call].items())))
            del self._given[call]
            self._context.changed.wake_all()
        return GatherReply(gathered[key])

    def _is_complete(self, call: tuple[int, int]) -> bool:
        given, begun = self._given.get(call, {}), self._record.scripts.places.keys() | self._reached.keys()
        for node in self._record.state.of_kind(RoleKind.WORKER):
            rank, ended = node.role.rank, node.state in (NodeState.FINISHED, NodeState.GONE)
            takes_part = call[0] < 0 or rank in begun
            if not ended and takes_part and rank not in given and self._reached.get(rank, call) <= call:
                return False
        return True

    def _on_actions(self, done: list[actions.JobAction]) -> None:
        if any(isinstance(action, actions.RollBack) for action in done):
            self._given, self._reached = {}, {}


class StalenessGate:
    """Workers that have read values and have not pushed yet (they are "inside"), each with the number of pushes
    applied since its read.

    A worker that is inside pushes once before it reads again. For each worker, add the pushes applied since its read
    to the number of other workers inside. This sum must stay within the bound. `admit` ensures this bound, and
    `leave` cannot break it.
    """

    def __init__(self, changed: ChangeSignal) -> None:
        self._changed = changed
        self._inside: dict[LeaseHolder, int] = {}
        self._queue: list[LeaseHolder] = []

    async def enter(self, holder: LeaseHolder, bound: int) -> None:
        self.leave(holder)  # the holder asks again because the reply was lost
        try:
            await self._changed.until(lambda: self.admit(holder, bound))
        except asyncio.CancelledError:
            self.leave(holder)
            raise
        self._changed.wake_all()  # the next worker in the queue may be admitted now

    def admit(self, holder: LeaseHolder, bound: int) -> bool:
        """Admit the holder if it is first in the queue and the bound permits it. Return True if the worker may read
        now.
        """
        if holder not in self._queue:
            self._queue.append(holder)
        if self._queue[0] != holder or len(self._inside) + max(self._inside.values(), default=0) > bound:
            return False
        self._queue.remove(holder)
        self._inside[holder] = 0
        return True

    def leave(self, holder: LeaseHolder) -> None:
        if holder in self._queue:
            self._queue.remove(holder)
        elif self._inside.pop(holder, None) is not None:
            for other in self._inside:
                self._inside[other] += 1
        else:
            return
        self._changed.wake_all()


class ShufflerList:
    """Workers that accept batches from other workers. Every lookup checks that a worker still belongs to the job."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._addresses: dict[LeaseHolder, str] = {}
        self._listed = coordination.listed(())

    def on_address(self, holder: LeaseHolder, address: str, known: int) -> Shufflers | None:
        """Record a worker's address. If the worker has an older list of workers, return the current list.

        Workers without an address do not take part, and get no list.
        """
        if not address:
            return None
        now = {known: where for known, where in self._addresses.items() if known.rank != holder.rank} | {
            holder: address
        }
        now = {known: where for known, where in now.items() if known == holder or self._belongs(known)}
        if now != self._addresses:
            self._addresses = now
            self._listed = coordination.listed(Shuffler(str(known), where) for known, where in now.items())
        return None if known == self._listed.digest else self._listed

    def _belongs(self, holder: LeaseHolder) -> bool:
        role = Role(RoleKind.WORKER, holder.rank)
        return str(role) in self._state.nodes and not self._state.fenced(role, holder.incarnation)


class PackageStore:
    """The package of one job."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._copies, self._turn = folder, SegmentCopies(folder, package_transfer.NAME), asyncio.Lock()
        self._sums: dict[str, tuple[int, int]] = {}
        """Modification time and CRC-32 of each file."""

    async def answer(self, request: PackageWritten | FilePart | PackageAsk) -> Reply:
        async with self._turn:
            match request:
                case PackageWritten():
                    return MissingFiles(await asyncio.to_thread(self._lacks, request))
                case FilePart():
                    await asyncio.to_thread(self._copies.take, request)
                    return messages.Ok()
                case PackageAsk():
                    return await asyncio.to_thread(self._part, request)

    def _lacks(self, written: PackageWritten) -> tuple[str, ...]:
        if package_transfer.sealed_in(self._folder) == written.sealed:
            return ()  # the package is already in the master's folder, so the worker sends nothing
        package_transfer.check_size(written.files)
        return tuple(name for name, _ in written.files if package_transfer.NAME.fullmatch(name))

    def _part(self, ask: PackageAsk) -> FilePart:
        if not package_transfer.NAME.fullmatch(ask.name):
            raise errors.BadInput(f"{ask.name!r} is not a file of a data package")
        if package_transfer.sealed_in(self._folder) != ask.sealed:
            raise errors.MissingFile(
                "the master does not have that data package: it was written again since, or is lost"
            )
        with open(self._folder / ask.name, "rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(ask.offset)
            content = file.read(PART_BYTES)
            last = ask.offset + len(content) >= size
            return FilePart(ask.name, ask.offset, content, last, self._sum(file.name) if last else 0)

    def _sum(self, path: str) -> int:
        stat = pathlib.Path(path).stat()
        known = self._sums.get(path)
        if known is None or known[0] != stat.st_mtime_ns:
            total = 0
            with open(path, "rb") as file:
                while piece := file.read(PART_BYTES):
                    total = zlib.crc32(piece, total)
            known = self._sums[path] = (stat.st_mtime_ns, total)
        return known[1]
