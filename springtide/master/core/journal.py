"""Stores the master's journal in one SQLite file: entries in order, and a snapshot from time to time.

One transaction holds all entries of one turn of the event loop. The master sends a reply only after the entries
behind it are written. A master that takes over therefore knows every reply that a killed master has sent. WAL mode
with synchronous=NORMAL survives every way in which the process can end. On network file systems, where WAL is
unsafe, the journal uses SQLite's rollback journal.
"""

import asyncio
import contextlib
import errno
import logging
import pathlib
import secrets
import sqlite3
import time
from collections.abc import Iterator

import msgspec

from springtide import errors, private_files
from springtide.domain.core.validation import UNDECODABLE
from springtide.telemetry.events import as_disk_error, disk_errors
from springtide.telemetry.host import disks

FORMAT = 6
"""Version of the journal format. Increase this version when entries or snapshots change meaning. A master rejects
journals of other versions.
"""

AGAIN_S = 0.5  # seconds between retries on a full disk: short enough to resume soon after space is freed

_TABLES = """
create table if not exists head (
    one integer primary key check (one = 1), format integer, term integer, began real, run text
);
create table if not exists spec (one integer primary key check (one = 1), body blob);
create table if not exists turns (number integer primary key, body blob);
create table if not exists snapshot (one integer primary key check (one = 1), upto integer, body blob);
"""


class Superseded(errors.JobFailed):
    """A master with a higher term has taken over. Once this flag is True, this master must not write to the journal."""


class Journal:
    """One open journal, for use from one event loop."""

    def __init__(self, path: pathlib.Path, *, term: int, now: float, patience_s: float = 0.0) -> None:
        self.path, self.term, self._patience_s = path, term, patience_s
        self._waiting: list[msgspec.Raw] = []
        self._committed: asyncio.Future[None] | None = None
        self._tried: asyncio.Future[bool] | None = None
        """Result of the first attempt to write the queued entries."""
        self._failed: errors.SpringtideError | None = None
        self._stuck: tuple[float, str] | None = None
        """Time since which nothing can be written, and the reason."""
        self._again: asyncio.TimerHandle | None = None
        self._mode = disks.sqlite_journal_mode(path)
        with self._sqlite():
            with disk_errors(path):
                private_files.make(path)  # SQLite creates its additional files with the same mode
            self._file = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            try:
                self._check_format()
                self._file.execute(f"pragma journal_mode={self._mode}")
                self._file.execute("pragma synchronous=normal")
                # a checkpoint blocks on the disk, so a separate thread runs it
                self._file.execute("pragma wal_autocheckpoint=0")
                self._file.executescript(_TABLES)
                self.began, self.run, self._next = self._take_over(now)
            except BaseException:
                self._file.close()
                raise
        self.since_snapshot = 0
        """Number of entries since the last snapshot. Many entries trigger another snapshot."""

    def tidy(self) -> None:
        """Move entries from the write-ahead file into the main file. Blocks on the disk, so call it in a thread.

        The event loop can write during this call. No reply waits for this call.
        """
        if self._mode != "wal":
            return
        with self._sqlite(), contextlib.closing(sqlite3.connect(self.path, timeout=5.0)) as other:
            other.execute("pragma wal_checkpoint(passive)")

    def begun_with(self, spec: bytes) -> bytes:
        """Return the spec of the job's first master, which says how to read the entries. If the journal has no spec,
        store `spec`.
        """
        with self._sqlite(), self._turn():
            self._file.execute("insert or ignore into spec values (1, ?)", (spec,))
            return bytes(self._file.execute("select body from spec").fetchone()[0])

    def read(self) -> tuple[bytes | None, list[bytes]]:
        with self._sqlite():
            row = self._file.execute("select upto, body from snapshot").fetchone()
            upto, body = row or (-1, None)
            turns = self._file.execute("select body from turns where number > ? order by number", (upto,)).fetchall()
        try:
            entries = [bytes(entry) for (turn,) in turns for entry in _decoder.decode(turn)]
        except UNDECODABLE as error:
            raise self.damaged(error) from error
        self.since_snapshot = len(entries)
        return body, entries

    def damaged(self, error: Exception) -> errors.JobFailed:
        return errors.JobFailed(
            f"the master's journal {self.path} is damaged: {type(error).__name__}: {error}. Continue from the job's "
            "checkpoints with --resume"
        )

    def append(self, entry: bytes) -> None:
        """Queue an entry for the end of this turn of the event loop. `committed` waits until the entry is written."""
        if self._failed:
            raise self._failed
        self._waiting.append(msgspec.Raw(entry))
        if self._committed is None:
            loop = asyncio.get_running_loop()
            self._committed, self._tried = loop.create_future(), loop.create_future()
            loop.call_soon(self._flush)

    async def committed(self) -> None:
        if self._committed is not None:
            await asyncio.shield(self._committed)
        elif self._failed:
            raise self._failed

    async def flushed_or_full(self) -> bool:
        """Wait until everything appended so far is written or the disk is full. Return True if the entry is written."""
        if self._tried is not None and not await asyncio.shield(self._tried):
            return False
        if self._failed:
            raise self._failed
        return True

    @property
    def stuck(self) -> str:
        if self._stuck is None:
            return ""
        since, why = self._stuck
        return (
            f"cannot write {self.path} since {time.monotonic() - since:.0f} s ({why}); free some space. Until then the "
            f"master grants no leases and makes no decisions; after {self._patience_s:g} s the job fails"
        )

    def save(self, snapshot: bytes) -> None:
        """Store a snapshot and delete the entries before it. Must be called only when no entry waits to be written."""
        # reset the count even if the snapshot fails, so that the next attempt waits for the same number of entries
        self.since_snapshot = 0
        with self._sqlite(), self._turn():
            self._file.execute("insert or replace into snapshot values (1, ?, ?)", (self._next - 1, snapshot))
            self._file.execute("delete from turns where number < ?", (self._next,))

    @property
    def idle(self) -> bool:
        return self._committed is None

    def close(self) -> None:
        if self._committed is not None:
            self._flush()
        if self._again is not None:
            self._again.cancel()
        self._file.close()

    def _flush(self) -> None:
        if self._committed is None:
            return
        try:
            with self._turn():
                self._file.execute("insert into turns values (?, ?)", (self._next, _encoder.encode(self._waiting)))
        except sqlite3.OperationalError as error:  # the disk is full or fails
            self._wait_for_disk(error)
        except sqlite3.Error as error:
            self._fail(self._as_error(error))
        except Superseded as error:
            self._fail(error)
        else:
            self._next += 1
            self.since_snapshot += len(self._waiting)
            self._stuck = None
            self._settle(None)

    def _wait_for_disk(self, error: sqlite3.Error) -> None:
        now = time.monotonic()
        since = self._stuck[0] if self._stuck is not None else now
        self._stuck = (since, str(error))
        if now - since >= self._patience_s:
            failure = self._as_error(error)
            waited = f". The master retried for {self._patience_s:g} s (--disk-wait)" if self._patience_s else ""
            self._fail(type(failure)(f"{failure}{waited}"))
            return
        if self._tried is not None and not self._tried.done():
            self._tried.set_result(False)
        self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._flush)

    def _fail(self, error: errors.SpringtideError) -> None:
        self._failed, self._stuck = error, None
        self._settle(error)

    def _settle(self, error: errors.SpringtideError | None) -> None:
        committed, tried = self._committed, self._tried
        self._waiting, self._committed, self._tried = [], None, None
        assert committed is not None and tried is not None
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(error)
            # read the task's error, so that asyncio does not warn about it; the next `append` raises the error
            committed.exception()
        if not tried.done():
            tried.set_result(True)

    def _check_format(self) -> None:
        """Raise OtherVersion before anything is written to a journal of another format."""
        if self._file.execute("select name from sqlite_master where name = 'head'").fetchone() is None:
            return
        head = self._file.execute("select format from head").fetchone()
        if head is not None and head[0] != FORMAT:
            then = "finish the job with the version that started it, or resume from its checkpoints with --resume"
            raise errors.OtherVersion(str(self.path), head[0], FORMAT, then)

    def _take_over(self, now: float) -> tuple[float, str, int]:
        """Store this master's term. Return when the run began, its identity, and the number of the next turn."""
        with self._turn(check=False):
            row = self._file.execute("select term, began, run from head").fetchone()
            if row and row[0] >= self.term:
                raise Superseded(
                    f"{self.path} belongs to master number {row[0]}, which has taken over from this "
                    f"master, number {self.term}"
                )
            began, run = row[1:] if row else (now, secrets.token_hex(8))
            self._file.execute("insert or replace into head values (1, ?, ?, ?, ?)", (FORMAT, self.term, began, run))
            upto = self._file.execute("select max(upto) from snapshot").fetchone()[0]
            last = self._file.execute("select max(number) from turns").fetchone()[0]
        return began, run, 1 + max(upto if upto is not None else -1, last if last is not None else -1)

    @contextlib.contextmanager
    def _turn(self, *, check: bool = True) -> Iterator[None]:
        self._file.execute("begin immediate")
        try:
            if check and (term := self._file.execute("select term from head").fetchone()[0]) != self.term:
                raise Superseded(f"master number {term} has taken over from number {self.term}")
            yield
            self._file.execute("commit")
        except BaseException:
            if self._file.in_transaction:  # on a full disk, SQLite may already have ended the transaction
                self._file.execute("rollback")
            raise

    @contextlib.contextmanager
    def _sqlite(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._as_error(error) from error

    def _as_error(self, error: sqlite3.Error) -> errors.SpringtideError:
        if "full" in str(error):
            return as_disk_error(OSError(errno.ENOSPC, str(error)), self.path)
        return errors.JobFailed(f"the master's journal {self.path} cannot be used: {error}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


log = logging.getLogger(__name__)
