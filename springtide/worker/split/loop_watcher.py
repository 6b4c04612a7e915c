"""Observe some batches of a loop: the leaves that become arguments of the model, and the leaves that the loop reads.

In: batches handed to the loop, and calls of the model. Out: a `ModelCall`, the torch calls of some forwards
(forward_recorder.py) and the leaves that the loop reads; or the reason why no split is possible. Next: controller.py
makes the split.

Until data workers are wanted, the watcher only looks at real batches (`begin(looking=True)`). Afterwards, from the
second batch on, the model's arguments are placeholders (lazy_leaf.py) for the real tensors. The placeholders reveal
every read outside the model, and all code gets the same values as without them.
"""

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from springtide import errors
from springtide.dataworker.split.program import arguments, payload
from springtide.worker.split import lazy_leaf
from springtide.worker.split.forward_recorder import Recording

BATCHES = 4
"""Number of observed batches: the first shows the arguments, the others show the use of their leaves."""
PATIENCE = 16
"""Number of batches without a call of the model after which the watcher gives up."""
NOT_CALLED = (
    "model(...) was not called in training mode with a batch in hand, or it is compiled (torch.compile), which keeps "
    "it whole"
)
TOO_FEW = f"the loop has had fewer than {BATCHES} batches, which it takes to see how it calls its model"
PACKAGE = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class Sample(NamedTuple):
    """Observed call of the model."""

    indices: NDArray[np.int64]
    """Indices of the samples in the call."""


class Watching:
    """Observer of one model, from `begin` until it is `ready`."""

    def __init__(self, model: nn.Module) -> None:
        self.call: arguments.ModelCall | None = None
        self.samples: list[Sample] = []
        self.touched: set[arguments.Path] = set()
        """Leaves that code outside the model has read."""
        self.why = ""
        """Reason why the model cannot be split; empty while there is none."""
        self.place = ""
        """File and line of the call in the user's code."""
        self.begun = self.ready = False
        self.eager = False
        """Whether the model was seen to run uncompiled."""
        self._model = model
        self._batch: Any = None
        self._indices: NDArray[np.int64] | None = None
        self._handed = 0
        self._hook: Any = None
        self._recording: Recording | None = None
        self._looking = True

    def begin(self, *, looking: bool = False) -> None:
        """Observe from the next batch on; with `looking`, only observe how the model is called."""
        if not self.begun:
            self.begun = True
            self._hook = self._model.register_forward_pre_hook(self._called, with_kwargs=True)
        if self._looking and not looking and not self.ready:
            self._looking, self._handed = False, 0
            self._recording = Recording(self._model)

    @property
    def recorded(self) -> "Recording | None":
        """Return the recorded calls; None if calls were only looked at."""
        return self._recording

    @property
    def lacking(self) -> str:
        """Return the reason why too little was observed so far; empty if it suffices."""
        if self.ready:
            return ""
        return NOT_CALLED if self.call is None and self._handed >= BATCHES else TOO_FEW

    def end(self, why: str = "") -> None:
        self.why = self.why or why
        self.begun = self.ready = True
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._recording is not None:
            self._recording.remove()

    def hand_out(self, batch: Any, indices: NDArray[np.int64]) -> Any:
        if not self.begun or self.ready:
            return batch
        self._handed += 1
        self._batch, self._indices = batch, indices
        if self.call is not None and not self._looking:
            places = {path: functools.partial(self._stand_in, path) for path in whole_leaves(self.call)}
            self._batch = payload.replaced(self._batch, places)
        return self._batch

    def taken_back(self) -> None:
        self._batch = self._indices = None
        if self.begun and not self.ready:
            if self.why or len(self.samples) == BATCHES:
                self.end()
            elif self._handed >= PATIENCE and not (self._looking and self.call is not None):
                self.end(NOT_CALLED)

    def _stand_in(self, path: arguments.Path, leaf: Any) -> Any:
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.device.type != "cpu":
            return leaf

        def read() -> torch.Tensor:
            if not self._recording or not self._recording.running:
                self.touched.add(path)
            return leaf

        return lazy_leaf.Absent(tuple(leaf.shape), leaf.dtype, read)

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or (self._looking and self.call is not None):
            return
        if module.training and self._batch is not None:
            self.eager = True
            if self._look(args, kwargs) and self._recording is not None:
                assert self.call is not None
                self._recording.expect(self.call)
                if self._indices is not None:
                    self.samples.append(Sample(self._indices))
                    self._indices = None  # one call per batch suffices
                    self._recording.record(keep=len(self.samples) == BATCHES)

    def _look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if self.why:
            return False
        if self.call is not None:
            if self.call.fits(self.call.find(self._batch), args, kwargs):
                return True
            if self._indices is not None:
                self.why = f"model(...) is not called alike with every batch ({users_line()})"
            return False
        self.place = users_line()
        try:
            self.call = arguments.trace(self._batch, args, kwargs)
        except arguments.Computed as computed:
            self.why = (
                f"{computed} of model(...) is no leaf of the batch: the loop has computed it ({self.place}). "
                "Do it in forward(), or in the data set"
            )
            return False
        if not self.call.leaves():
            self.why = f"model(...) is given nothing of the batch ({self.place})"
        return not self.why


def whole_leaves(call: arguments.ModelCall) -> list[arguments.Path]:
    """Return the leaves of the batch that are passed to the model unchanged, if the loop makes no views of them."""
    viewed = {leaf.route.path for leaf in call.leaves() if leaf.route.view}
    paths = dict.fromkeys(leaf.route.path for leaf in call.leaves() if not leaf.route.view)
    return [path for path in paths if path not in viewed]


def users_line() -> str:
    """Return file and line of the innermost frame outside torch and Springtide."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        path = os.path.abspath(frame.f_code.co_filename)
        if not path.startswith((PACKAGE, TORCH)):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
