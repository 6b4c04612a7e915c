"""Reads single keys from a terminal while a view is drawn. Without a terminal there are no keys."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self

NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[Z": "left",
    b"\t": "right",
    b"k": "up",
    b"j": "down",
    b" ": "page down",
}
"""Names of keys that send several bytes, or that mean the same as another key."""


class TerminalKeys:
    """Keys of standard input, without echo and without waiting for a line's end. Ctrl-C stays a signal."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._pending = b""
        """Bytes of further keys, because a slow connection delivers several keys at once."""

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the next key; empty if there is none within this time."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        if not self._pending:
            if not select.select([0], [], [], seconds)[0]:
                return ""
            self._pending = os.read(0, 1024)
            if not self._pending:
                return "q"  # the terminal is gone
        key = next((key for key in NAMES if self._pending.startswith(key)), self._pending[:1])
        self._pending = self._pending[len(key) :]
        return NAMES.get(key, key.decode("ascii", errors="replace"))
