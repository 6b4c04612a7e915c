"""A terminal in memory that shows what a program draws on a real pseudo-terminal."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

import pyte

from tests.architecture.sources import ROOT

PATIENCE_S = 120.0


class Terminal:
    """A Python script on a pseudo-terminal. Use it as a context manager."""

    def __init__(self, script, *, columns=80, lines=24, **variables):
        self._ours, theirs = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream, self.raw = pyte.ByteStream(self.screen), b""
        self._resize(theirs)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, *parts, gone=""):
        """Read until the screen shows these parts and not what should be gone."""
        deadline = time.monotonic() + PATIENCE_S
        while not (all(part in self.text for part in parts) and (not gone or gone not in self.text)):
            assert time.monotonic() < deadline, f"no {parts} on the terminal:\n{self.text}"
            assert self._read(), f"the program ended before it showed {parts}:\n{self.text}\n{self.raw[-2000:]!r}"
        return self.text

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def resize(self, columns, lines):
        self.screen.resize(lines, columns)
        self._resize(self._ours)

    def finish(self):
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _resize(self, descriptor):
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)

    def _read(self):
        """Return False once the program has closed the terminal."""
        if select.select([self._ours], [], [], 1.0)[0]:
            try:
                part = os.read(self._ours, 65536)
            except OSError:
                return False
            self.raw += part
            self._stream.feed(part)
        return True
