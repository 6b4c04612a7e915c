"""Search for a split in another process while the training loop goes on.

In: a model between two steps, and batches that it was called with. Out: what prep/split.py found there, bound to the
live model. The process is a new one that the model is sent to (prep/sending.py), never a fork of the trainer: a fork
lacks the threads of OpenMP, BLAS and CUDA, and a matrix product waits for them forever. What the search does to the
model is gone with its process. The loop has trained on meanwhile, so `split.confirm` compares once more, in the
trainer. If the model cannot be sent, or the search fails, `take` gives None and `why` has the reason. Called by:
train/splitting.py. The other side: prep/searching.py.
"""

import logging
import os
import subprocess
import time
from collections.abc import Sequence

from torch import nn

from springtide.prep import found, searching, sending
from springtide.prep.searching import Arguments, Question

log = logging.getLogger(__name__)


class Beside:
    """One search. Ask `done` between any two batches; then `take`, once."""

    def __init__(self, model: nn.Module, given: Arguments, more: Sequence[Arguments]) -> None:
        self.why = ""
        """Why the search gave nothing; "" while nothing is wrong."""
        self._model = model
        self._began = time.monotonic()
        self._answer: int | None = None
        """Memory that the process writes its answer to."""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._answer = os.memfd_create("springtide-split", os.MFD_CLOEXEC)
            self._process = sending.start(Question(model, given, tuple(more)), self._answer)
        except Exception as error:  # a model may hold anything, and that may raise anything when it is pickled
            self._fail(f"the model cannot be sent to another process: {type(error).__name__}: {error}")

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._process is None:
            return True
        status = self._process.poll()
        if status is None and time.monotonic() - self._began > searching.PATIENCE_S:
            self._fail(f"the search took longer than {searching.PATIENCE_S:.0f} s")
        elif status:
            self._fail(self._last_words(status))
        return self._process is None or status is not None

    def take(self) -> found.Found | None:
        """What was found, once; None: nothing that could be used."""
        assert self.done
        if self._process is None:
            return None
        try:
            return found.read(self._written(), self._model)
        except Exception as error:  # what it holds may be anything of the user's
            log.info("what was found of a split cannot be read back", exc_info=True)
            self._fail(f"what it found cannot be read here: {type(error).__name__}: {error}")
            return None
        finally:
            self.close()

    def close(self) -> None:
        """Give the search up, if it is not over, and forget its answer."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._answer is not None:
            os.close(self._answer)
            self._answer = None

    def _fail(self, why: str) -> None:
        log.info("no split was found beside the loop: %s", why)
        self.why = why[:300]
        self.close()

    def _last_words(self, status: int) -> str:
        """Of a traceback the error, of a crash what it was."""
        said = [line for line in self._written().decode(errors="replace").splitlines() if line]
        return said[0 if status < 0 else -1] if said else f"its process ended with {status}"

    def _written(self) -> bytes:
        assert self._answer is not None
        return os.pread(self._answer, os.fstat(self._answer).st_size, 0)
