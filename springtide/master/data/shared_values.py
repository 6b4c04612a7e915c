"""Passes values between members: barriers, shared values, tasks to do once, shuffle peers, and data workers' package.

State that must survive is in the record and journaled. If trainer and master share a disk, the package is not sent over
the network.
"""

import asyncio
import pathlib
import zlib

from springtide import errors
from springtide.checkpoint.transfer.file_transfer import PART_BYTES, FilePart, SegmentCopies
from springtide.dataworker.processes import package_transfer
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.job.state import JobState
from springtide.master.core import journal_entries, waiters
from springtide.master.core.context import MasterContext
from springtide.rpc.messages import coordination, messages
from springtide.rpc.messages.coordination import Shuffler, Shufflers

Agreement = (
    messages.BarrierRequest | messages.ShareRequest | messages.ValueRequest | messages.ClaimRequest | messages.ClaimDone
)


class SharedValues:
    """Barriers and shared values of one job."""

    def __init__(self, context: MasterContext) -> None:
        self._record, self._changed, self._kept = context.record, context.changed, context.journaled
        self._arrivals = waiters.BarrierArrivals(context.state.spec.workers)

    async def answer(self, holder: LeaseHolder, request: Agreement) -> messages.Reply:
        record = self._record
        match request:
            case messages.BarrierRequest():
                await self._barrier(holder.rank, request.name, request.turn)
            case messages.ShareRequest():
                with self._kept(journal_entries.ShareEntry(request.key, request.value)):
                    record.shared.share(request.key, request.value)
                self._changed.turn()
            case messages.ValueRequest():
                return await self.look_up(request)
            case messages.ClaimRequest():
                return await self._claim(holder, request.key)
            case messages.ClaimDone():
                with self._kept(journal_entries.SettleEntry(request.key, holder)):
                    record.shared.settle(request.key, holder)
                self._changed.turn()
        return messages.Ok()

    async def look_up(self, request: messages.ValueRequest) -> messages.ValueFound:
        await self._changed.until(lambda: request.key in self._record.shared.values)
        return messages.ValueFound(self._record.shared.values[request.key])

    async def _barrier(self, rank: int, name: str, turn: int) -> None:
        gates = self._record.shared.gates
        if gates.get(name, 0) < turn and self._arrivals.complete(name, turn, rank):
            with self._kept(journal_entries.BarrierEntry(name, turn)):
                self._record.shared.open_gate(name, turn)
            self._changed.turn()
        await self._changed.until(lambda: gates.get(name, 0) >= turn)

    async def _claim(self, holder: LeaseHolder, key: str) -> messages.ClaimReply:
        mine: bool | None = None

        def decided() -> bool:
            nonlocal mine
            with self._kept(journal_entries.ClaimEntry(key, holder)):
                mine = self._record.shared.claim(key, holder)
            return mine is not None

        await self._changed.until(decided)
        assert mine is not None
        return messages.ClaimReply(mine)


class ShufflerList:
    """Workers that accept batches. Every lookup checks that a worker still belongs to the job."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._addresses: dict[LeaseHolder, str] = {}
        self._listed = coordination.listed(())

    def heard(self, holder: LeaseHolder, address: str, known: int) -> Shufflers | None:
        """Record a worker's address. Return the current list if the worker knows another list.

        Workers without an address do not take part and get no list.
        """
        if not address:
            return None
        now = {each: where for each, where in self._addresses.items() if each.rank != holder.rank} | {holder: address}
        now = {each: where for each, where in now.items() if each == holder or self._belongs(each)}
        if now != self._addresses:
            self._addresses = now
            self._listed = coordination.listed(Shuffler(str(each), where) for each, where in now.items())
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

    async def answer(
        self, request: messages.PackageWritten | messages.PackagePart | messages.PackageAsk
    ) -> messages.Reply:
        async with self._turn:
            match request:
                case messages.PackageWritten():
                    return messages.MissingFiles(await asyncio.to_thread(self._lacks, request))
                case messages.PackagePart():
                    part = FilePart(request.offset, request.content, request.last, request.checksum)
                    await asyncio.to_thread(self._copies.take, request.name, part)
                    return messages.Ok()
                case messages.PackageAsk():
                    return await asyncio.to_thread(self._part, request)

    def _lacks(self, written: messages.PackageWritten) -> tuple[str, ...]:
        if package_transfer.sealed_in(self._folder) == written.sealed:
            return ()  # the package is already in the master's folder, so nothing is sent
        package_transfer.check_size(written.files)
        return tuple(name for name, _ in written.files if package_transfer.NAME.fullmatch(name))

    def _part(self, ask: messages.PackageAsk) -> messages.PackagePart:
        if not package_transfer.NAME.fullmatch(ask.name):
            raise errors.BadInput(f"{ask.name!r} is no file of a package")
        if package_transfer.sealed_in(self._folder) != ask.sealed:
            raise errors.MissingFile("the master does not have that package: it was made again meanwhile, or is lost")
        with open(self._folder / ask.name, "rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(ask.offset)
            content = file.read(PART_BYTES)
            last = ask.offset + len(content) >= size
            return messages.PackagePart(ask.name, ask.offset, content, last, self._sum(file.name) if last else 0)

    def _sum(self, path: str) -> int:
        """Return the CRC-32 of a file. The result is cached for repeated requests."""
        stat = pathlib.Path(path).stat()
        known = self._sums.get(path)
        if known is None or known[0] != stat.st_mtime_ns:
            total = 0
            with open(path, "rb") as file:
                while piece := file.read(PART_BYTES):
                    total = zlib.crc32(piece, total)
            known = self._sums[path] = (stat.st_mtime_ns, total)
        return known[1]
