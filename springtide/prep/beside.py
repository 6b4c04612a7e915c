"""A split that is looked for by another process, while the loop trains on: a fork of this one, and how it answers.

In: a model between two steps, and batches that it was called with. Out: what prep/split.py has found, bound to the live
model: parameters, modules and tables go by their paths. The child has the program as it was, runs it at will, and what
it does to it is gone with it; it cannot differentiate (torch's engine does not live on in a fork) and it may differ in
threads, so `split.confirm` compares everything once more, here. What only dynamo can capture must be captured here,
by that rung alone. Whatever goes wrong, there is the way without: `take`
gives None, and the loop stands still for it. Called by: train/splitting.py.

What is unpickled was written by our own child into memory that no other process has.
"""

import contextlib
import faulthandler
import gc
import io
import logging
import os
import pickle
import signal
import sys
import time
import traceback
import types
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import nn

from springtide import orphans
from springtide.prep import dynamo_rung, split
from springtide.prep.explain import Refusal
from springtide.prep.parts import Split, Unsplit

log = logging.getLogger(__name__)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

PATIENCE_S = 120.0  # a child that takes longer hangs: some lock was held by a thread that it does not have
NICENESS = 5  # it shares the loop's cores and gets about a quarter of one that both want
FAILED = 1  # how a child ends that has found nothing, or not what holds here


def possible() -> bool:
    """Whether a fork of this process could run the program: not one that has a GPU's context."""
    return hasattr(os, "memfd_create") and not torch.cuda.is_initialized()


class Climbed(NamedTuple):
    """What was found cannot be written down (dynamo's first graph): no more than what the rungs below it have said."""

    refusals: tuple[Refusal, ...]


class Beside:
    """One search. `done` between any two batches; then `take`, once."""

    def __init__(self, model: nn.Module, given: Arguments, more: Sequence[Arguments]) -> None:
        self.why = ""
        """Why nothing could be taken."""
        self._model = model
        self._answer = os.memfd_create("springtide-split", os.MFD_CLOEXEC)
        self._began = time.monotonic()
        self._status: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forks beside threads: this one takes none of their locks
            parent = os.getpid()
            self._pid = os.fork()
        if self._pid == 0:
            _look(model, given, more, self._answer, parent)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                self._status = FAILED  # somebody else has waited for it
                return True
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - self._began > PATIENCE_S:
                self.close()  # it hangs
        return self._status is not None

    def take(self) -> Split | Unsplit | Climbed | None:
        """What was found; None: nothing that could be used."""
        assert self.done
        try:
            with os.fdopen(os.dup(self._answer), "rb") as file:
                file.seek(0)
                if self._status:
                    told = file.read().decode(errors="replace").strip()
                    log.info("a split could not be looked for beside the loop: %s", told or self._status)
                    said = [line for line in told.splitlines() if line]
                    self.why = said[0 if self._status < 0 else -1][:300] if said else f"it ended with {self._status}"
                    return None
                found: Split | Unsplit | Climbed = _Unpickler(file, self._model).load()
                return found
        except Exception as error:  # what it holds may be anything of the user's
            log.info("what was found of a split cannot be read back", exc_info=True)
            self.why = f"{type(error).__name__}: {error}"[:300]
            return None
        finally:
            os.close(self._answer)

    def close(self) -> None:
        """Give it up."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._status = FAILED


def _look(model: nn.Module, given: Arguments, more: Sequence[Arguments], answer: int, parent: int) -> None:
    """The child's whole life."""
    code, told = FAILED, b""
    try:
        orphans.die_with(parent)
        gc.disable()  # nothing of the parent's is to be finalized here
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(2 * PATIENCE_S))
        os.nice(NICENESS)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        faulthandler.enable(answer, all_threads=False)
        torch.set_num_threads(1)  # the others' threads are not here
        found = split.split(model, *given, more=more, gradients=False)
        if isinstance(found, Unsplit) and found.explanation.why.startswith(split.FORWARD_FAILED):
            told = found.explanation.why.encode()  # it may be the fork that it cannot bear
        else:
            written = io.BytesIO()
            begun = found.explanation.rung == dynamo_rung.NAME
            _Pickler(written, model).dump(Climbed(found.explanation.refusals) if begun else found)
            code, told = 0, written.getvalue()
    except BaseException:
        told = traceback.format_exc().encode()
    try:
        with os.fdopen(answer, "wb") as file:
            file.write(told)
    finally:
        os._exit(code)


def _parts(model: nn.Module) -> dict[int, tuple[str, str]]:
    """Modules and tensors of a model by their identity: a module's path, and what a tensor is called there."""
    found: dict[int, tuple[str, str]] = {}
    for path, part in model.named_modules():
        found[id(part)] = (path, "")
        for name, one in (*part._parameters.items(), *part._buffers.items(), *vars(part).items()):
            if isinstance(one, torch.Tensor):
                found[id(one)] = (path, name)
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """What is part of the model, and what the script has given a name, are the parent's own."""

    def __init__(self, file: io.BytesIO, model: nn.Module) -> None:
        super().__init__(file)
        self._known = _parts(model)

    def persistent_id(self, item: Any) -> tuple[str, str] | None:
        """A path instead of a module or tensor."""
        return self._known.get(id(item)) if isinstance(item, nn.Module | torch.Tensor) else None

    def reducer_override(self, item: Any) -> Any:
        """Classes and functions of the script itself go by name; cloudpickle would copy them."""
        scripts = isinstance(item, type | types.FunctionType) and item.__module__ == "__main__"
        if scripts and _named(item.__qualname__) is item:
            return _named, (item.__qualname__,)
        return super().reducer_override(item)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, model: nn.Module) -> None:
        super().__init__(file)
        self._model = model

    def persistent_load(self, place: tuple[str, str]) -> Any:
        path, name = place
        owner = self._model.get_submodule(path)
        return getattr(owner, name) if name else owner


def _named(name: str) -> Any:
    """What goes by this name in the script; None: nothing."""
    found: Any = sys.modules["__main__"]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
