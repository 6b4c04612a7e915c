"""Writes a server's part of a checkpoint: copies its slots into a segment file while the server serves.

The writing thread copies and writes small pieces without the GIL. Between pieces the thread sleeps, so that training
gets the CPU and the slot. Out: a `SaveReport` with the position of each slot. Next: `master.checkpoint.round`.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection

import msgspec

from springtide import _native, errors
from springtide.checkpoint.format.checkpoint_io import PIECE_BYTES, SegmentWriter
from springtide.checkpoint.transfer.file_transfer import SegmentCopies
from springtide.domain.model.checkpoints import SlotExtent
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import plain_spec
from springtide.rpc.messages import messages
from springtide.rpc.messages.checkpoints import SaveOrder, SaveReport, SaveRequest
from springtide.rpc.messages.types import Reply, Request
from springtide.server import mirror
from springtide.server.server import ServerRole

log = logging.getLogger(__name__)

BUSY_SHARE = 0.25  # share of one CPU that saving may use while no role waits for the checkpoint
REST_S = 0.002  # shortest sleep in seconds; shorter sleeps are added up until they reach this length
WHOLE = sys.maxsize  # bytes per piece while a role waits for the checkpoint: no limit
# most increments after a full image; each slot adds 0 to 7 to this number, so that full images are spread over time
MOST_LINKS = 8


class Chain(msgspec.Struct, frozen=True):
    """Full image and increments of one slot that this server has written, up to the checkpoint `number`."""

    number: int
    cut: int
    files: tuple[str, ...]
    """Names of the segment files that hold the chain."""
    links: int = 0
    full_bytes: int = 0
    more_bytes: int = 0
    """Bytes of the increments after the full image."""

    def long(self, slot: int) -> bool:
        """Return True if the increments are so many or so large that the next save must be a full image."""
        return self.links >= MOST_LINKS + slot % MOST_LINKS or self.more_bytes > self.full_bytes


class SlotSaver:
    """Checkpoint writer of one server incarnation."""

    def __init__(
        self,
        role: ServerRole,
        folder: pathlib.Path,
        life: str,
        *,
        run: str,
        node: str = "",
        mirror: mirror.Mirror | None = None,
        sweep: Callable[[Collection[str], int], object] | None = None,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        """Create the saver. `node` is set if the folder is on a local disk. On a local disk, `sweep` deletes unneeded
        files.
        """
        self._role, self._folder, self._life, self._run, self._rest = role, folder, life, run, rest
        self._mirror, self._node = mirror, node
        self._home = life.rpartition(".")[0] if mirror or node else ""
        """Name of this server's folder, if each server has its own folder; else empty."""
        self._sweep = sweep or SegmentCopies(folder / self._home).sweep
        self._chains: dict[int, Chain] = {}
        """Chains by slot, up to the last complete checkpoint."""
        self._pending: dict[int, Chain] = {}
        """Chains of the last save by slot. The server uses these chains once the next order confirms that the last
        checkpoint is complete.
        """
        self._sizes: dict[str, int] = {}
        """Sizes in bytes of the segment files that hold chains, by name."""
        self._copy = _native.SlotCopy()
        """Buffer that all slots share, one after the other."""
        self._specs: dict[int, TableSpec] = {}
        """Converted specs by table id. A table keeps its spec for life."""

    def save(self, order: SaveOrder) -> SaveReport:
        """Write the slots that the order names. Report errors instead of raising them."""
        try:
            return self._save(order)
        except errors.SpringtideError:
            raise
        except Exception as error:
            log.exception("checkpoint %d", order.number)
            why = f"{type(error).__name__}: {error}"
            return SaveReport(order.term, order.number, error=why, part=order.part)

    def _save(self, order: SaveOrder) -> SaveReport:
        began, cpu = time.monotonic(), time.thread_time()
        lost: tuple[str, ...] = ()
        if not order.part:
            self._settle(order.base)
            lost = self._leave_lost_chains()
            if self._node:  # delete unneeded files now, because every earlier checkpoint is complete or abandoned
                self._sweep(order.needed, order.number - 1)
        pace = WritePace(BUSY_SHARE, self._rest, waited_for=lambda: order.hurry or self._role.hurried)
        try:
            with SegmentWriter(
                self._folder, self._life, order.number, order.part, run=self._run, home=self._home
            ) as file:
                self._write(order, file, pace)
                written = file.close()._replace(node=self._node)
                self._sizes[file.path.name] = file.size
        except OSError as error:
            log.warning("checkpoint %d: %s", order.number, error)
            where = f"cannot write to {self._folder}"
            why = f"{where}: {error.strerror or error}"
            return SaveReport(order.term, order.number, error=why, part=order.part)
        unmirrored = ""
        if self._mirror is not None and (order.buddy is not None or self._mirror.asked):
            written, unmirrored = self._mirror.copy(written, order.buddy, order.base, pace)
        seconds, cpu_s = time.monotonic() - began, time.thread_time() - cpu
        log.info("checkpoint %d: %d slots, %d bytes in %.2f s", order.number, len(written.pieces), file.size, seconds)
        tables = tuple(self._tables())
        return SaveReport(
            order.term,
            order.number,
            written,
            tables,
            seconds=seconds,
            cpu_s=cpu_s,
            part=order.part,
            unmirrored=unmirrored,
            lost=lost,
        )

    def tidy(self, reply: messages.HeartbeatReply) -> None:
        if self._node and reply.tidy:
            shutil.rmtree(self._folder / self._home, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder.rmdir()  # the removal fails harmlessly if another server still uses the folder

    def _write(self, order: SaveOrder, file: SegmentWriter, pace: "WritePace") -> None:
        """Write all slots of this server, or full images of the ordered slots that it owns now."""
        store, cut = self._role.store, self._role.store.cut()
        asked = order.slots if order.part else range(store.slots)
        done: set[int] = set() if order.part else set(self._pending)
        while left := [slot for slot in asked if slot not in done and self._role.owns(slot)]:
            for slot in filter(self._role.owns, left):
                chain = None if order.part else self._chains.get(slot)
                since = chain if chain is not None and chain.number == order.base and not chain.long(slot) else None
                piece = self._append(file, slot, since, pace)
                if self._role.owns(slot):
                    self._pending[slot] = grown(since, piece, order.number, cut, file.path.name)
                    done.add(slot)
                else:  # the slot was handed over during the copy, so its copy may be incomplete
                    file.take_back(slot)

    def _append(self, file: SegmentWriter, slot: int, since: Chain | None, pace: "WritePace") -> SlotExtent:
        cut, whole = since.cut if since else 0, False
        while not whole:
            with pace:
                whole = self._role.store.copy_slot(slot, cut, self._copy, WHOLE if pace.hurried else PIECE_BYTES)
        return file.append(slot, self._copy, since=since.number if since else 0, pace=pace)

    def _tables(self) -> list[TableSpec]:
        native = self._role.store.tables()
        self._specs |= {spec.id: plain_spec(spec) for spec in native if spec.id not in self._specs}
        return [self._specs[spec.id] for spec in native]

    def _settle(self, base: int) -> None:
        self._chains |= {slot: chain for slot, chain in self._pending.items() if chain.number == base}
        self._chains = {slot: chain for slot, chain in self._chains.items() if chain.number == base}
        self._pending = {}

    def _leave_lost_chains(self) -> tuple[str, ...]:
        """Forget chains that have a missing or torn file, so that their slots are written completely. Return the names
        of these files."""
        needed = {name for chain in self._chains.values() for name in chain.files}
        self._sizes = {name: size for name, size in self._sizes.items() if name in needed}
        lost = {name for name in needed if self._size(name) != self._sizes.get(name)}
        if lost:
            log.warning(
                "%s: missing or damaged; the slots in these files are written again in full", ", ".join(sorted(lost))
            )
            self._chains = {slot: chain for slot, chain in self._chains.items() if lost.isdisjoint(chain.files)}
        return tuple(sorted(lost))

    def _size(self, name: str) -> int | None:
        try:
            return os.stat(os.path.join(self._folder, self._home, name)).st_size
        except OSError:
            return None


def grown(since: Chain | None, piece: SlotExtent, number: int, cut: int, file: str) -> Chain:
    if not piece.since or since is None:
        return Chain(number, cut, (file,), full_bytes=piece.length)
    files, more = (*since.files, file), since.more_bytes + piece.length
    return Chain(number, cut, files, since.links + 1, since.full_bytes, more)


def run_behind() -> None:
    """Lower this thread's priority. The thread then does not preempt serving or training threads, but still gets its
    share of the CPU.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid this; saves then disturb training slightly more
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class WritePace:
    """Throttle for saving: sleeps between pieces of work, unless the checkpoint is urgent."""

    def __init__(self, share: float, rest: Callable[[float], object], *, waited_for: Callable[[], bool]) -> None:
        self._rest, self._owed, self._factor = rest, 0.0, (1 - share) / share
        self._began, self._waited_for = 0.0, waited_for

    @property
    def hurried(self) -> bool:
        return self._waited_for()

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._owed += (time.monotonic() - self._began) * self._factor
        if self.hurried:
            self._owed = 0.0
        if self._owed > REST_S:
            began = time.monotonic()
            self._rest(self._owed)
            self._owed -= time.monotonic() - began


def start(
    saver: SlotSaver,
    ask: Callable[[Request], Reply],
    over: threading.Event,
    takes_copies_at: str = "",
    node: str = "",
) -> threading.Thread:

    def attend() -> None:
        term = number = part = 0
        run_behind()
        try:
            while not over.is_set():
                order = ask(SaveRequest(term, number, part, takes_copies_at, node))
                if isinstance(order, messages.HeartbeatReply):  # the job is over
                    saver.tidy(order)
                    return
                if isinstance(order, SaveOrder):
                    term, number, part = order.term, order.number, order.part
                    ask(saver.save(order))
        except errors.SpringtideError as error:
            if not over.is_set():
                log.warning("this server saves no more checkpoints: %s", error)

    thread = threading.Thread(target=attend, name="springtide-save", daemon=True)
    thread.start()
    return thread
