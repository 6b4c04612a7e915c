"""Runs a model's forward(), and answers its moved torch calls with the results of data workers.

The results are used in training mode, if the loop calls the model with the unmodified leaves of the current batch. This
worker computes all other calls of the model itself. If a torch call differs from the split, the worker detects the
difference (dataworker/split/program/call_replay.py). This worker also computes some of the batches itself and compares.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide.dataworker.split.program import arguments
from springtide.dataworker.split.recorder import bit_compare, pytree
from springtide.dataworker.split.split import Split
from springtide.embedding.lookup import id_routes
from springtide.worker.split import received_batches
from springtide.worker.split.loop_watcher import ForwardStandIn, surrounded

log = logging.getLogger(__name__)

STALE = 64  # after this many calls in a row with unusable results, the split no longer fits the program


class InHand:
    """The current batch with results of data workers, and a snapshot of the batch's state on arrival."""

    __slots__ = ("_marks", "_snapshots", "check", "crossing", "parts", "used")

    def __init__(self, parts: Sequence[Any], crossing: Sequence[Any], read: Sequence[bool], *, check: bool) -> None:
        """Take a snapshot of the parts of a batch that the model is called with.

        `read` marks the parts that the moved part of forward() reads.
        """
        self.parts, self.crossing, self.check, self.used = parts, crossing, check, False
        self._snapshots = {
            at: bit_compare.Snapshot(part)
            for at, (part, wanted) in enumerate(zip(self.parts, read, strict=True))
            if wanted and type(part) is torch.Tensor
        }
        self._marks = [_mark(part) for part in self.parts]

    @property
    def untouched(self) -> bool:
        """Return True if these arguments are unmodified and none of them requires a gradient."""
        if not all(snapshot.is_still for snapshot in self._snapshots.values()):
            return False
        return all(_mark(part) == mark for part, mark in zip(self.parts, self._marks, strict=True))

    def pristine(self, leaf: Any) -> Any:
        if type(leaf) is received_batches.Absent:
            return leaf.springtide_fresh()
        return next(self._snapshots[at].copy for at, part in enumerate(self.parts) if _is_same(part, leaf))


class SplitForward(ForwardStandIn):
    """Replacement of the model's `forward` that uses the results of data workers, until `remove` is called."""

    def __init__(
        self,
        model: nn.Module,
        call: arguments.ModelCall,
        split: Split,
        *,
        sample: Any,
        on_difference: Callable[[str], None],
    ) -> None:
        """Replace the model's forward. `sample` shows which part of a batch becomes which input.

        `on_difference` is called if a received result differs, or if the split no longer fits the program.
        """
        super().__init__(model)
        self.split_calls = self.whole_calls = self.checked = 0
        """Training calls with crossings, counted by outcome: crossings used, not used, compared."""
        self._call, self._split, self._on_difference = call, split, on_difference
        self._routes = [leaf.route for leaf in call.leaves()]
        self._read = [bool(numbers & split.answering.read) for numbers in _numbers(call, sample)]
        self._in_hand: InHand | None = None
        self._twice = self._off = False
        self._stale = 0
        self._said = ""

    def hand_out(self, batch: Any, crossing: Sequence[Any] | None, *, check: bool = False) -> None:
        came = crossing is not None
        parts = [route.follow(batch) for route in self._routes] if came else ()
        self._in_hand = InHand(parts, crossing or (), self._read, check=check) if came else None

    def on_batch_done(self) -> None:
        self._in_hand = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.own(*args, **kwargs)
        now = self._in_hand
        if now is None or self._off or not self._model.training:
            return self._run_whole(args, kwargs)
        why = self._against(now, args, kwargs)
        if why:
            self.whole_calls += 1
            self._warn(why)
            return self._run_whole(args, kwargs)
        return self._answered(now, args, self._call.in_order(kwargs))

    def _run_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with pytree.substituted((args, kwargs), id_routes.real) as (args, kwargs):
            return self.own(*args, **kwargs)

    def _answered(self, now: InHand, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        crossing = now.crossing
        if self._twice:  # forward() may modify its inputs, but the second call needs the original values
            crossing = [value.clone() if isinstance(value, torch.Tensor) else value for value in crossing]
        now.used = True
        result, answers = self._split.answering.run(
            self.own, args, kwargs, crossing, pristine=now.pristine, check=now.check
        )
        if now.check:
            self.checked += 1
            if answers.differs:
                self._stop(answers.differs)
        if answers.used:
            self.split_calls += 1
        else:
            self.whole_calls += 1
        self._stale = 0 if answers.complete else self._stale + 1
        if not answers.complete:
            self._warn(answers.why)
            if self._stale == STALE:
                self._stop(f"{STALE} batches in a row, {answers.why}")
        return result

    def _stop(self, why: str) -> None:
        """Stop using results of data workers, even those that have already arrived."""
        self._off = True
        self._on_difference(why)

    def _against(self, now: InHand, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if not self._call.fits(now.parts, args, kwargs):
            return "model(...) was called with other values than those of its batch"
        if not now.untouched:
            return "the loop has written to its batch, or needs a gradient of the batch"
        if now.used and not self._twice:
            self._twice = True
            return "the model is called more than once with a batch, unlike in the observed batches"
        if self._split.threads and torch.get_num_threads() != self._split.threads:
            return f"torch has {torch.get_num_threads()} threads now, and had {self._split.threads}: sums may differ"
        return surrounded()

    def _warn(self, why: str) -> None:
        if why != self._said:
            self._said = why
            log.warning("this worker runs forward() as a whole and ignores the results of data workers: %s", why)


def _is_same(part: Any, leaf: Any) -> bool:
    return part is leaf or id_routes.key_of(part) == id_routes.key_of(leaf)


def _numbers(call: arguments.ModelCall, batch: Any) -> list[frozenset[int]]:
    """Return the input numbers of each part of a batch that the model is called with."""
    found: list[frozenset[int]] = []
    count = 0

    def walk(part: arguments.Part) -> None:
        nonlocal count
        if isinstance(part, arguments.BatchLeaf):
            size = len(pytree.flatten(part.route.follow(batch))[0])
            found.append(frozenset(range(count, count + size)))
            count += size
        elif isinstance(part, arguments.ConstantArgument):
            count += 1
        else:
            for inner in part.parts:
                walk(inner)

    for part in (*call.args, *(part for _, part in call.kwargs)):
        walk(part)
    return found


def _mark(part: Any) -> Any:
    if type(part) is received_batches.Absent:
        return part.changed
    if isinstance(part, torch.Tensor):
        return (0 if part.is_inference() else part._version), part.requires_grad
    if isinstance(part, np.ndarray):
        return part.shape, part.dtype, part.tobytes()
    return tuple(part) if pytree.is_text(part) else None
