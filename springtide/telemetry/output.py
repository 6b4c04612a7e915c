"""Output of a process. Credentials are redacted, and after `keep_going()`, printing never fails or blocks. If the
reader is gone or does not read, or if the disk is full, only the output is lost. Lost bytes are counted, and the
count is printed as soon as something can be printed again.
"""

import contextlib
import io
import itertools
import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from springtide import config
from springtide.domain.core import redaction

MOST_HELD = 1 << 20
"""Most bytes to hold for a reader that does not read; this is enough for some minutes of progress lines. Further output
is dropped.
"""
PIPE_ROOM = 4096
"""Number of bytes that a pipe accepts without blocking when `poll` reports the pipe as writable (PIPE_BUF)."""
READER_WAIT_S = 0.1
"""Seconds for which a write waits for a busy reader. After a write has waited in vain, later writes do not wait until
the reader has read some output.
"""


class SteadyOutput(io.RawIOBase):
    """A file descriptor whose `write` always succeeds and never waits for long."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # a reentrant lock, because a signal handler may print while its own thread prints
        self._lock = threading.RLock()
        self._held = bytearray()
        self._lost, self._why, self._stalled = 0, "", False
        os.register_at_fork(after_in_child=self._after_fork)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        """Write as much as the descriptor accepts now. Keep or drop the rest."""
        size = memoryview(data).nbytes
        with self._lock:
            if self._held and len(self._held) + size > MOST_HELD:
                self._drop_held("its reader was too slow")
            self._held += data
            self._write_held(0.0 if self._stalled else READER_WAIT_S)
        return size

    def finish(self) -> None:
        """Write all held output, even if the reader is slow, because the program has nothing else to do."""
        with self._lock:
            self._write_held(None)

    def _write_held(self, wait_s: float | None) -> None:
        while self._held:
            self._stalled = not self._takes(wait_s)
            if self._stalled:
                return
            notice = f"[{self._lost} bytes of output were lost: {self._why}]\n".encode() if self._lost else b""
            try:
                written = os.write(self._descriptor, notice + self._held[: self._room()])
            except BlockingIOError:
                self._stalled = True
                return
            except OSError as error:
                self._drop_held(error.strerror or str(error))
                return
            if written >= len(notice):
                self._lost = 0
                del self._held[: written - len(notice)]

    def _room(self) -> int:
        regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        return len(self._held) if regular else PIPE_ROOM // 2

    def _takes(self, wait_s: float | None) -> bool:
        """Return True if a write to the descriptor would not block. This includes a broken descriptor."""
        asked = select.poll()
        asked.register(self._descriptor, select.POLLOUT)
        return bool(asked.poll(None if wait_s is None else wait_s * 1000))

    def _drop_held(self, why: str) -> None:
        self._lost += len(self._held)
        self._why = why
        self._held.clear()

    def _after_fork(self) -> None:
        """Replace the lock after a fork, because the thread that held it may not exist in the child process."""
        self._lock = threading.RLock()
        self._held.clear()


def keep_going() -> None:
    """Make standard output and error of this process independent of slow readers. Do not replace streams that other
    code has installed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            steady = _steady(stream)
            setattr(sys, name, steady)
            setattr(sys, f"__{name}__", steady)


def finish() -> None:
    """Wait until all output is written or lost. Must be called once, at the end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(steady := getattr(stream, "buffer", None), SteadyOutput):
            steady.finish()


def _steady(stream: TextIO) -> TextIO:
    below: Any = stream.buffer
    if isinstance(below, SteadyOutput):
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        SteadyOutput(stream.fileno()),  # type: ignore[type-var]
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=getattr(stream, "write_through", False),
    )


_remembered: set[str] = set()
_own: set[str] | None = None


def remember(*texts: str, variables: Mapping[str, str] | None = None) -> None:
    """From now on, hide the credentials that occur in these texts, such as a job's spec, and in these variables."""
    for text in texts:
        _remembered.update(redaction.secrets_in(text))
    _remembered.update(redaction.secrets_of_variables(variables or {}))


def redact(text: str) -> str:
    return redaction.redact(text, _known()) if text else text


def redact_all(value: Any) -> Any:
    """Redact every text within dicts, lists and tuples."""
    return redaction.redact_all(value, _known())


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    return redaction.redact_arguments(arguments, _known())


def option_pairs(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, and also each option joined with its value (`--option=value`), so that the caller finds
    secrets in joined options too.
    """
    pairs = [f"{name}={value}" for name, value in itertools.pairwise(arguments) if name.startswith("-")]
    return [*arguments, *pairs]


class RedactingFormatter(logging.Formatter):
    """Log formatter that redacts log lines and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _known() -> set[str]:
    global _own
    if _own is None:
        _own = redaction.secrets_of_variables(config.variables())
    return _own | _remembered
