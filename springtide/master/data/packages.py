"""Stores the data workers' package on the master: receives it from a trainer and sends it to data workers.

In: requests of `dataworker.processes.package_transfer`, from trainers and data workers. Out: files in the run's folder,
or ranges of them. If trainer and master share a disk, the package is already there and nothing is transferred. A thread
does the disk I/O, so that no heartbeat waits for it.
"""

import asyncio
import pathlib
import zlib

from springtide import errors
from springtide.checkpoint.transfer.file_transfer import PART_BYTES, FilePart, SegmentCopies
from springtide.dataworker.processes import package_transfer
from springtide.rpc.messages import messages


class PackageStore:
    """The package of one job."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._copies, self._turn = folder, SegmentCopies(folder, package_transfer.NAME), asyncio.Lock()
        self._sums: dict[str, tuple[int, int]] = {}
        """Modification time and CRC-32 of each file."""

    async def answer(
        self, request: messages.PackageWritten | messages.PackagePart | messages.PackageAsk
    ) -> messages.Reply:
        """Answer a message of a trainer or a data worker."""
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
            return ()  # the package is already there, so nothing is sent
        package_transfer.check_size(written.files)
        return tuple(name for name, _ in written.files if package_transfer.NAME.fullmatch(name))

    def _part(self, ask: messages.PackageAsk) -> messages.PackagePart:
        if not package_transfer.NAME.fullmatch(ask.name):
            raise errors.BadInput(f"{ask.name!r} is no file of a package")
        if package_transfer.sealed_in(self._folder) != ask.sealed:
            raise errors.MissingFile("the master does not have that package: it was made anew meanwhile, or is lost")
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
