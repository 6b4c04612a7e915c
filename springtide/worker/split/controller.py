"""Finds the part of a loop that data workers can run: reading, collating, and the stateless part of forward().

In: the user's model and data set, and batches of the loop. Out: a Pipeline for data workers, and the handling of the
batches that they send. Next: loop_watcher.py observes the model, dataworker/split/split.py finds the split,
split_forward.py runs the model with results of data workers.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from springtide import errors
from springtide.data.source import SampleSource, as_batch
from springtide.dataworker.feed.batch_rng import seeded
from springtide.dataworker.feed.worker import Pipeline, PipelineStage
from springtide.dataworker.split import split
from springtide.dataworker.split.program import arguments, payload
from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.reachable_state import ReachableState
from springtide.dataworker.split.report import Explanation
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import SplitMode
from springtide.worker.input.batch_plan import ReadBatch
from springtide.worker.split.loop_watcher import Leading, Watching, whole_leaves
from springtide.worker.split.received_batches import CHECKED, ReceivedBatches, leaf_at
from springtide.worker.split.split_forward import SplitForward

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
SHORT_S = 0.01  # shortest pause in seconds to report, because users do not notice shorter pauses
OFF = "--split off was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Pipeline that data workers run, with its explanation."""

    pipeline: Pipeline
    digest: str
    """Digest of the split, which is equal on all workers with the same split."""
    types: Mapping[str, type] = field(default_factory=dict)
    """Types in a batch that the user has defined, by their names in messages."""
    explanation: Explanation | None = None
    why: str = ""
    """Reason why forward() stays whole; empty if a part of it moved."""
    seconds: float = 0.0
    """Seconds for which the search paused the loop."""

    @property
    def summary(self) -> str:
        found = "" if self.explanation is None or self.why else self.explanation.summary
        what = found or f"data workers read the data set, but forward() stays whole: {self.why}"
        return f"{what}; the loop was blocked for {max(self.seconds, SHORT_S):.2g} s"

    @property
    def moved(self) -> bool:
        return not self.why


class SplitRules(NamedTuple):
    """Limits that the job sets for the split."""

    forbidden: Callable[[], str]
    on_split: Callable[[], None]
    on_ready: Callable[[], None]
    apart: bool
    """True if separate stages of data workers run the moved part."""


class Splitting:
    """Search for the split of one `job.prepare`. Only `receive` and `own` of `received` may run outside the loop's
    thread.
    """

    def __init__(
        self,
        model: nn.Module,
        source: SampleSource,
        *,
        seed: int = 0,
        mode: SplitMode = "auto",
        forbidden: Callable[[], str] = lambda: "",
        on_split: Callable[[], None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the object. `forbidden` returns the reason why forward() must not be split now, or an empty text.

        `on_split` runs when a part of forward() moves, and `on_ready` when the loop was observed for long enough.
        All run in the loop's thread, between two batches.
        """
        self.received = ReceivedBatches(source, seed, every=1 if mode == "verify" else CHECKED)
        self._model, self._source, self._seed = model, source, seed
        forbidden = (lambda: OFF) if mode == "off" else forbidden
        self._rules = SplitRules(forbidden, on_split, on_ready, apart=mode == "stages")
        self._enabled = not forbidden()
        self._watching = Watching(model)
        self._leading = Leading(model)
        self._made: Made | None = None
        self._forward: SplitForward | None = None
        self._seconds_a_batch = 0.0
        self._checked = 0
        self._told_ready = False
        self._seen: Any = None
        """Last batch that the loop received, until the split is made."""
        self._seconds = 0.0

    # ---- before the split ----

    def watch(self, *, looking: bool = False) -> None:
        """Observe the calls of the model for some batches. With `looking`, only estimate how much could move."""
        if self._enabled:
            self._watching.begin(looking=looking)

    @property
    def ready(self) -> bool:
        """Return True if enough calls were observed for `make`, or no more are expected."""
        return not self._enabled or self._watching.ready

    @property
    def stateless_s(self) -> float:
        """Return the seconds that this worker spends on the movable part of forward(). Before `make` the seconds are
        estimated, and afterwards they are measured.
        """
        return self._seconds if self._made is not None else self._leading.seconds

    # ---- the loop ----

    def hand_out(self, handed: ReadBatch) -> Any:
        self.received.loop_thread = threading.get_ident()
        if self._forward is not None:
            self._forward.hand_out(handed.batch, handed.crossing, check=handed.check)
            self._seconds += self._seconds_a_batch if handed.crossing is None else 0.0
            return handed.batch
        if self._made is None:
            # copy the structure of the batch now, because the loop may remove items from it
            parts, shape = pytree.flatten(handed.batch)
            self._seen = shape.rebuild([part.detach() if _is_plain(part) else part for part in parts])
        if self._made is None and self._watching.begun and self._watching.eager:
            self._leading.hand_out()
        return self._watching.hand_out(handed.batch)

    def on_batch_done(self) -> None:
        if self._forward is not None:
            self._forward.on_batch_done()
        self._leading.on_batch_done()
        self._watching.on_batch_done()
        if self.ready and not self._told_ready:
            self._told_ready = True
            self._rules.on_ready()

    # ---- the split ----

    def make(self) -> Made:
        """Build the pipeline for data workers and try it on a real batch. The search takes some tenths of a second, and
        happens once.

        Raise BadInput if a batch contains values that cannot be sent. A forward() that cannot be split stays whole.
        """
        if self._made is None:
            self._watching.end(self._watching.lacking)
            began = time.perf_counter()
            codec.check(self._one_batch())
            made = self._unsplit(why) if (why := self._rules.forbidden()) else self._split()
            self.received.data = self._watched_data()
            self._made, self._seen = replace(made, seconds=time.perf_counter() - began), None
            log.info("data workers: %s", self._made.summary)
        return self._made

    def _watched_data(self) -> ReachableState:
        try:
            return ReachableState({"dataset": self._source.fetch})
        except Exception as error:  # a user's object may raise anything when inspected
            raise errors.BadInput(
                "the data set cannot be inspected, so changes to it would go unnoticed: "
                f"{type(error).__name__}: {error}"
            ) from error

    @property
    def checked(self) -> int:
        """Return the number of batches that this worker also computed, at least in the moved part of forward(), to
        compare the results.
        """
        checked = self._forward.checked if self._forward is not None else self._checked
        return max(checked, self.received.compared)

    @property
    def place(self) -> str:
        """Return the file and line where the user's code calls the model; empty if no call was observed."""
        return self._watching.place

    @property
    def touched(self) -> set[arguments.Path]:
        return self._watching.touched

    def drop(self, why: str) -> None:
        """Restore the user's own forward(), which can also train a batch that data workers have partly computed."""
        log.warning("forward() stays whole: %s", why)
        if self._forward is not None:
            self._forward.remove()
            self._checked = self._forward.checked
            self._forward = None
        self._made = self._unsplit(why)

    def _unsplit(self, why: str, explanation: Explanation | None = None) -> Made:
        first = payload.FirstStage(self._source.fetch)
        types = codec.types_in({"batch": self._one_batch()})
        return Made(
            pipeline=Pipeline((PipelineStage("read", first),)),
            digest="whole",
            types=types,
            explanation=explanation,
            why=why,
        )

    def _one_batch(self) -> Any:
        """Return a batch. Prefer a batch that the loop has received, because reading another batch might change the
        data set's state. Return None if no batch can be read.
        """
        if self._seen is not None:
            return self._seen
        indices = np.arange(min(self._source.batch_size, self._source.samples or 0))
        try:
            with seeded(self._seed, (0,)):  # use separate generators, so that the loop's random state does not change
                return as_batch(self._source.fetch(indices))
        except Exception:
            log.info("the first batch cannot be made", exc_info=True)
            return None

    def _split(self) -> Made:
        watched = self._watching
        if watched.why or watched.call is None:
            return self._unsplit(watched.why or "model(...) was not called")
        try:
            return self._cut(watched.call)
        except errors.BadInput:
            raise
        except arguments.Another as error:
            return self._unsplit(str(error))
        except Exception:  # a failed split must not stop training
            log.warning("forward() could not be split", exc_info=True)
            return self._unsplit("the search for a split failed; the worker's log has the error")

    def _cut(self, call: arguments.ModelCall) -> Made:
        recorded = self._watching.recorded
        if recorded is None or recorded.why or not recorded.logs:
            return self._unsplit(recorded.why if recorded is not None and recorded.why else "no call could be recorded")
        self.received.paths = whole_leaves(call)
        found = split.split(recorded.book, recorded.logs, forward_s=recorded.forward_s)
        if isinstance(found, split.Unsplit):
            return self._unsplit(found.explanation.why, found.explanation)
        batch = self._one_batch()
        pipeline = self._pipeline(found, call, batch)
        tree = payload.tried(pipeline, batch)
        if "crossing" not in tree:
            return self._unsplit(f"the moved part does not run by itself: {tree.get('unsplit')}", found.explanation)
        self._seconds_a_batch = found.explanation.moved_s
        self._forward = SplitForward(self._model, call, found, sample=batch, on_difference=self.received.differs)
        types = codec.types_in([tree, payload.LeftTensor(0, (), "")])
        self._rules.on_split()
        digest = hashlib.sha256(f"{found.digest} {call!r}".encode()).hexdigest()[:16]
        return Made(pipeline=pipeline, digest=digest, types=types, explanation=found.explanation)

    def _pipeline(self, found: split.Split, call: arguments.ModelCall, batch: Any) -> Pipeline:
        flat, _ = pytree.flatten(call.fill(batch))
        needed = {id(flat[number]) for number in found.needs}
        left = [
            (number, path)
            for number, path in enumerate(self.received.paths)
            if path not in self._watching.touched and _can_stay(leaf := leaf_at(batch, path)) and id(leaf) not in needed
        ]
        stages = list(found.stages)
        along = stages and stages[0].device == "cpu" and not self._rules.apart
        run = stages.pop(0).run if along else None
        first = payload.FirstStage(self._source.fetch, call, run, tuple(left))
        return Pipeline(
            (
                PipelineStage("read", first),
                *(PipelineStage(stage.name, payload.LaterStage(stage.run), stage.device) for stage in stages),
            )
        )


def _is_plain(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and not leaf.requires_grad and not vars(leaf)


def _can_stay(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and leaf.device.type == "cpu"
