"""A split that is looked for by another process, while the loop trains on.

In: a model between two steps, and batches that it was called with. Out: what prep/split.py has found there, bound to
the live model. Two ways, tried in this order: a fork of this process, which has the program as it is, unless there is a
GPU's context, which no fork can use; and a process of its own that the model is sent to (prep/sending.py), where forks
fail too. What either does to the model is gone with it. It cannot differentiate (torch's engine does not live on in a
fork) and may differ in threads, so `split.confirm` compares everything once more, here. Where nothing goes, `take`
gives None, says why, and the loop stands still. Called by: train/splitting.py. The other side: prep/searching.py.
"""

import contextlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple

import torch
from torch import nn

from springtide.prep import found, searching, sending
from springtide.prep.searching import FAILED, Arguments, Question

log = logging.getLogger(__name__)


class Way(NamedTuple):
    """One way to have it looked for."""

    name: str
    start: Callable[[Question, int], int]
    """Given what to split and where to answer; the process."""


def fork(question: Question, answer: int) -> int:
    """A fork of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads: this one takes none of their locks
        parent = os.getpid()
        pid = os.fork()
    if pid == 0:
        searching.live(lambda: question, answer, parent)
    return pid


FORK, SEND = Way("a fork", fork), Way("a process of its own", sending.start)


def ways() -> list[Way]:
    """Those that could do in this process as it is now, the quickest first."""
    if not hasattr(os, "memfd_create"):
        return []
    return [SEND] if torch.cuda.is_initialized() else [FORK, SEND]


class Beside:
    """One search. `done` between any two batches; then `take`, once."""

    def __init__(self, model: nn.Module, given: Arguments, more: Sequence[Arguments]) -> None:
        self.why = ""
        """Why nothing could be taken."""
        self._question = Question(model, given, tuple(more))
        self._ways = ways()
        self._gone: _Gone | None = None
        self._try_next()

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        while self._gone is not None and (status := self._gone.ended()) is not None:
            if status == 0:
                return True
            self._in_vain(self._gone.way, self._gone.said())
            self._gone.forget()
            self._try_next()
        return self._gone is None

    def take(self) -> found.Found | None:
        """What was found, once; None: nothing that could be used."""
        assert self.done
        gone, self._gone = self._gone, None
        if gone is None:
            return None
        try:
            return gone.read(self._question.model)
        except Exception as error:  # what it holds may be anything of the user's
            log.info("what was found of a split cannot be read back", exc_info=True)
            self._in_vain(gone.way, f"{type(error).__name__}: {error}")
            return None
        finally:
            gone.forget()

    def close(self) -> None:
        """Give it up."""
        if self._gone is not None:
            self._gone.kill()
            self._gone.forget()
            self._gone = None

    def _try_next(self) -> None:
        """Go the next way that can be gone."""
        self._gone = None
        while self._ways and self._gone is None:
            way = self._ways.pop(0)
            try:
                self._gone = _Gone(way, self._question)
            except Exception as error:  # a model may hold anything, and that may raise anything
                self._in_vain(way, f"{type(error).__name__}: {error}")

    def _in_vain(self, way: Way, why: str) -> None:
        log.info("a split could not be looked for by %s: %s", way.name, why)
        self.why += f"{'; ' if self.why else ''}{way.name}: {why[:300]}"


class _Gone:
    """A way that is gone: its process, and where that answers."""

    def __init__(self, way: Way, question: Question) -> None:
        self.way = way
        self._answer = os.memfd_create("springtide-split", os.MFD_CLOEXEC)
        self._began = time.monotonic()
        self._status: int | None = None
        try:
            self._pid = way.start(question, self._answer)
        except BaseException:
            self.forget()
            raise

    def ended(self) -> int | None:
        """How it ended; None: it has not."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                self._status = FAILED  # somebody else has waited for it
                return self._status
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - self._began > searching.PATIENCE_S:
                self.kill()  # it hangs
        return self._status

    def said(self) -> str:
        """Its last words: of a traceback the error, of a crash what it was."""
        with self._opened() as file:
            said = [line for line in file.read().decode(errors="replace").splitlines() if line]
        return said[0 if (self._status or 0) < 0 else -1] if said else f"it ended with {self._status}"

    def read(self, model: nn.Module) -> found.Found:
        """What it has found."""
        with self._opened() as file:
            return found.read(file, model)

    def kill(self) -> None:
        """Do not wait any longer."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._status = FAILED

    def forget(self) -> None:
        """Its answer is not needed any more."""
        os.close(self._answer)

    def _opened(self) -> BinaryIO:
        os.lseek(self._answer, 0, os.SEEK_SET)
        return os.fdopen(os.dup(self._answer), "rb")
