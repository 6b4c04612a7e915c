"""The trainer's side of the saver: a queue of one image beside the one being written, and the outcome of each.

In: images filled by checkpoint/checkpointer/checkpointer.py. Out: every `Save` learns its outcome. A saver that dies is
restarted and gets the image again. Next: checkpoint/checkpointer/state_saver.py.
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
"""Number of savers that may die over one image before it is given up."""


class Outcome(StrEnum):
    """State of a save."""

    PENDING = "pending"
    """The save is complete in memory, but not in storage yet."""
    PERSISTED = "persisted"
    SUPERSEDED = "superseded"
    """A later save replaced it in memory before it was written."""
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Save:
    """One save. It is in memory once `save` returns it, and gets its outcome later."""

    step: int
    sequence: int
    image: str
    bytes: int
    outcome: Outcome = Outcome.PENDING
    error: str = ""
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Block until the save has ended or the timeout expires. The outcome is then still PENDING."""
        self._over.wait(timeout_s)
        return self.outcome

    def end(self, outcome: Outcome, error: str = "") -> None:
        self.outcome, self.error = outcome, error
        if error:
            log.error("the save of step %d is in memory only: %s", self.step, error)
        self._over.set()


class SaverFailed(errors.TemporaryError):
    """A saver process died with work left."""


class SaverProcess:
    """A saver in its own process, which outlives the trainer long enough to finish."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int, lock: int) -> None:
        self._command = [sys.executable, "-m", state_saver.__name__]
        self._arguments = [url, str(folder), str(keep)]
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None

    def save(self, request: state_saver.ImageRequest) -> state_saver.SaveReply:
        """Let the saver write the image. Raise SaverFailed if the saver dies."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the saver process ended with status %d; another one is started", self._reap())
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._lock],
                env=config.with_arguments(self._arguments),
                start_new_session=True,  # Ctrl-C is for the trainer only
            )
        try:
            _pipe(self._process.stdin).write(msgspec.json.encode(request) + b"\n")
            _pipe(self._process.stdin).flush()
            line = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise SaverFailed(f"the saver process ended with status {self._reap()}")
        return msgspec.json.decode(line, type=state_saver.SaveReply)

    def stop(self) -> None:
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
    """A saver within this process, for storage that no other process can see (memory://)."""

    def __init__(self, url: str, folder: pathlib.Path, keep: int) -> None:
        self._saver = state_saver.ImageSaver(url, folder, keep)

    def save(self, request: state_saver.ImageRequest) -> state_saver.SaveReply:
        return self._saver.save(request)

    def stop(self) -> None: ...


class SaveQueue:
    """Queue that passes images to a saver one at a time, from its own thread."""

    def __init__(self, saver: SaverProcess | SaverThread) -> None:
        self._saver = saver
        # entered directly, because an interrupt within Condition.__enter__ would leave it locked
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._waiting: Save | None = None
        self._writing: Save | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="springtide saver", daemon=True)
        self._thread.start()
        self.pid = os.getpid()

    def free_image(self, images: tuple[str, ...], newest: str, *, supersede: bool) -> str:
        """Return an image that may be overwritten: neither the newest complete image nor the image being written.

        If both are in use, wait for the image being written, or with `supersede` replace the waiting image.
        """
        with self._lock:
            while self._waiting is not None:
                if supersede and self._writing is not None:
                    self._waiting.end(Outcome.SUPERSEDED)
                    image, self._waiting = self._waiting.image, None
                    return image
                self._change.wait()  # until the waiting save is being written
            free = [image for image in images if self._writing is None or image != self._writing.image]
            return next((image for image in free if image != newest), free[0])

    def submit(self, save: Save) -> None:
        with self._lock:
            assert self._waiting is None, "one image is filled at a time"
            self._waiting = save
            self._change.notify_all()

    def wait(self) -> None:
        with self._lock:
            self._change.wait_for(lambda: self._waiting is None and self._writing is None)

    def close(self) -> None:
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
        """Write a save to storage. Return an error text, or an empty text on success."""
        request = state_saver.ImageRequest(save.image, save.sequence)
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
