"""The trainer's side of the saver: a queue of at most one image beside the one being written, and what became of each.

In: images that checkpoint/checkpointer/checkpointer.py has filled. Out: every `Save` is told its end. A saver that dies
is started again and given the image once more. Next: checkpoint/checkpointer/state_saver.py.
"""

import contextlib
import logging
import os
import pathlib
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO

import msgspec

from springtide import config, errors
from springtide.checkpoint.checkpointer import state_saver

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""Savers that may die over one image before it is given up."""


class Outcome(StrEnum):
    """Where a save stands."""

    PENDING = "pending"
    """In memory, whole; not in storage yet."""
    PERSISTED = "persisted"
    SUPERSEDED = "superseded"
    """A later save took its place in memory before it was written."""
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Save:
    """One save: in memory from the moment the caller has this, then told how it ended."""

    step: int
    sequence: int
    image: str
    bytes: int
    outcome: Outcome = Outcome.PENDING
    error: str = ""
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Block until it has ended, or the time is over (then still PENDING)."""
        self._over.wait(timeout_s)
        return self.outcome

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Tell it."""
        self.outcome, self.error = outcome, error
        if error:
            log.error("the save of step %d is in memory only: %s", self.step, error)
        self._over.set()


class SaverFailed(errors.TemporaryError):
    """A saver process that died with work in hand."""


class SaverProcess:
    """A saver in a process of its own, which outlives this one long enough to finish."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int, lock: int) -> None:
        self._command = [sys.executable, "-m", state_saver.__name__]
        self._arguments = [url, str(folder), str(keep)]
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    def save(self, request: state_saver.Request) -> state_saver.Answer:
        """Have it written; SaverFailed when the saver dies over it."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the saver process ended with status %d; another one is started", self._reap())
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[self._lock],
                env=config.with_arguments(self._arguments), start_new_session=True,  # Ctrl-C is for the trainer
            )  # fmt: skip
        try:
            _pipe(self._process.stdin).write(msgspec.json.encode(request) + b"\n")
            _pipe(self._process.stdin).flush()
            line = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise SaverFailed(f"the saver process ended with status {self._reap()}")
        return msgspec.json.decode(line, type=state_saver.Answer)

    def stop(self) -> None:
        """Nothing is left to write."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                _pipe(self._process.stdin).write(state_saver.GOODBYE)
                _pipe(self._process.stdin).flush()
            self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        _pipe(self._process.stdout).close()
        status = self._process.wait()
        self._process = None
        return status


class SaverThread:
    """The same within this process, for storage that no other process can see (memory://)."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int) -> None:
        self._saver = state_saver.Saver(url, folder, keep)

    def save(self, request: state_saver.Request) -> state_saver.Answer:
        """Write it here and now."""
        return self._saver.save(request)

    def stop(self) -> None:
        """Nothing to stop."""


class Saving:
    """Hands images to a saver one after the other, from a thread of its own."""

    def __init__(self, saver: SaverProcess | SaverThread) -> None:
        self._saver = saver
        self._lock = threading.RLock()  # entered by itself: an interrupt within Condition.__enter__ would leave it held
        self._change = threading.Condition(self._lock)
        self._waiting: Save | None = None
        self._writing: Save | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="springtide saver", daemon=True)
        self._thread.start()
        self.pid = os.getpid()

    def free_image(self, images: tuple[str, ...], newest: str, *, supersede: bool) -> str:
        """An image that may be overwritten: not the newest whole one, not one that is being written to storage.

        With both taken, wait for the one being written; or with `supersede` take that of the one that waits, and tell
        it so.
        """
        with self._lock:
            while self._waiting is not None:
                if supersede and self._writing is not None:
                    self._waiting.end(Outcome.SUPERSEDED)
                    image, self._waiting = self._waiting.image, None
                    return image
                self._change.wait()  # until its turn comes
            free = [image for image in images if self._writing is None or image != self._writing.image]
            return next((image for image in free if image != newest), free[0])

    def submit(self, save: Save) -> None:
        """Have it written when its turn comes."""
        with self._lock:
            assert self._waiting is None, "one image is filled at a time"
            self._waiting = save
            self._change.notify_all()

    def wait(self) -> None:
        """Until nothing waits and nothing is being written."""
        with self._lock:
            self._change.wait_for(lambda: self._waiting is None and self._writing is None)

    def close(self) -> None:
        """Write what is left, then end the saver."""
        with self._lock:
            self._closing = True
            self._change.notify_all()
        self._thread.join()
        self._saver.stop()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._change.wait_for(lambda: self._waiting is not None or self._closing)
                if self._waiting is None:
                    return
                self._writing, self._waiting = self._waiting, None
                self._change.notify_all()
            error = self._persist(self._writing)
            self._writing.end(Outcome.FAILED if error else Outcome.PERSISTED, error)
            with self._lock:
                self._writing = None
                self._change.notify_all()

    def _persist(self, save: Save) -> str:
        """Empty, or why it is not in storage."""
        request = state_saver.Request(save.image, save.sequence)
        error = ""
        for _ in range(ATTEMPTS):
            try:
                return self._saver.save(request).error
            except (SaverFailed, OSError) as failure:
                error = str(failure)
                log.warning("%s; trying the save of step %d again", error, save.step)
        return f"{error}, {ATTEMPTS} times"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
