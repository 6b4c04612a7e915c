"""What of a loop can be made elsewhere: reading, collating, and the part of forward() that needs no parameters.

In: the user's model and data set, batches as the loop gets them. Out: a Pipeline for data workers, and what becomes of
the batches that they send. Next: loop_watcher.py sees how the model is called and records it,
dataworker/split/search/split.py cuts it, split_forward.py runs it with what data workers have made, lazy_leaf.py stands
for leaves that stayed behind; worker/input/feed_switch.py brings the batches.
"""

import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from springtide import errors
from springtide.data.source import SampleSource, as_batch
from springtide.dataworker.feed.batch_rng import seeded
from springtide.dataworker.feed.stage import Pipeline, PipelineStage
from springtide.dataworker.split.program import arguments, payload
from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.reachable_state import ReachableState
from springtide.dataworker.split.search import batch_difference, split
from springtide.dataworker.split.search.report import Explanation
from springtide.dataworker.transport import codec
from springtide.domain.data.data_workers import BatchName, SplitMode
from springtide.worker.input.read_batch import Fed, ReadBatch
from springtide.worker.split import lazy_leaf
from springtide.worker.split.loop_watcher import Sample, Watching, whole_leaves
from springtide.worker.split.prefix_timer import Leading
from springtide.worker.split.split_forward import SplitForward

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
SHORT_S = 0.01  # nobody would notice
OFF = "--split off was asked for"
CHECKED = 64  # of so many batches one is computed here too, and compared
REREAD = 4  # of so many of these one is read from the data set here, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What data workers are to run."""

    pipeline: Pipeline
    digest: str
    """The same for every worker whose program is cut in the same way."""
    types: Mapping[str, type] = field(default_factory=dict)
    """The user's own types in a batch, by the names under which they travel."""
    explanation: Explanation | None = None
    why: str = ""
    """Why forward() stays whole; "": a part of it moved."""
    seconds: float = 0.0
    """How long the loop stood still for it."""

    @property
    def told(self) -> str:
        """One sentence for the job's story."""
        found = "" if self.explanation is None or self.why else self.explanation.summary
        what = found or f"only the data set moves, forward() stays whole: {self.why}"
        return f"{what}; the loop stood still for {max(self.seconds, SHORT_S):.2g} s"

    @property
    def moved(self) -> bool:
        """Whether a part of forward() runs on data workers."""
        return not self.why


class Splitting:
    """One a `job.prepare` over a data set with indices. For the loop's thread, but for `receive` and `own`."""

    def __init__(
        self,
        model: nn.Module,
        source: SampleSource,
        *,
        seed: int = 0,
        mode: SplitMode = "auto",
        forbidden: Callable[[], str] = lambda: "",
        on_split: Callable[[], None] = lambda: None,
    ) -> None:
        """`seed`: of the feed, under which batches with chance in them are made; `mode`: see `FeedRules.split`.

        `forbidden`: why forward() must stay whole as things are now; "": it need not. `on_split` is called when a part
        of it moves. Both in the loop's thread, between two batches.
        """
        self.reread = 0
        """Batches that were read again here, since somebody wanted a leaf that had stayed behind."""
        self.draws = False
        """Whether the data set was seen to draw random numbers."""
        self.when_ready: Callable[[], None] | None = None
        """Called once enough was seen, between two batches."""
        self.when_wrong: Callable[[str], None] = lambda why: None
        """Told when what data workers have made is not what is made here: nothing more of theirs may be used."""
        self._model, self._source, self._seed = model, source, seed
        self._forbidden: Callable[[], str] = (lambda: OFF) if mode == "off" else forbidden
        self._on_split = on_split
        self._enabled = not self._forbidden()
        self._apart = mode == "stages"
        self._watching = Watching(model)
        self._leading = Leading(model)
        self._every = 1 if mode == "verify" else CHECKED
        self._made: Made | None = None
        self._forward: SplitForward | None = None
        self._paths: list[arguments.Path] = []
        """Leaves that may stay behind; the same list on every worker with the same program."""
        self._wanted: set[int] = set()
        self._seconds_a_batch = 0.0
        self._checked = self._reread_here = 0
        self._thread = threading.get_ident()
        """The loop's own."""
        self._seen: Any = None
        """The last batch that the loop has had, until there is a split."""
        self._data: ReachableState | None = None
        """What the data set reads, as it was when it was sent to data workers."""
        self._seconds = 0.0
        self._said = False

    # ---- before the split ----

    def watch(self, *, looking: bool = False) -> None:
        """Begin to watch how the model is called, for some batches; `looking`: only to guess what could move."""
        if self._enabled:
            self._watching.begin(looking=looking)

    @property
    def ready(self) -> bool:
        """Whether enough was seen for `make`, or no more is expected."""
        return not self._enabled or self._watching.ready

    @property
    def stateless_s(self) -> float:
        """Seconds that this process has spent in what could move of forward(): a guess before `make`, then measured."""
        return self._seconds if self._made is not None else self._leading.seconds

    # ---- the loop ----

    def hand_out(self, handed: ReadBatch) -> Any:
        """What the loop gets as its batch."""
        self._thread = threading.get_ident()
        if self._forward is not None:
            self._forward.hand_out(handed.batch, handed.crossing, check=handed.check)
            self._seconds += self._seconds_a_batch if handed.crossing is None else 0.0
            return handed.batch
        if self._made is None:
            parts, shape = pytree.flatten(handed.batch)  # as it is now: the loop may take something out of it
            self._seen = shape.rebuild([one.detach() if _is_plain(one) else one for one in parts])
        if self._made is None and self._watching.begun and self._watching.eager:
            self._leading.hand_out()
        return self._watching.hand_out(handed.batch, handed.order.indices)

    def taken_back(self) -> None:
        """The loop asks for its next batch."""
        if self._forward is not None:
            self._forward.taken_back()
        self._leading.taken_back()
        self._watching.taken_back()
        if self.ready and self.when_ready is not None:
            heard, self.when_ready = self.when_ready, None
            heard()

    # ---- the split ----

    def make(self) -> Made:
        """What data workers are to run, tried on real batches; between two batches.

        Takes some tenths of a second, once. BadInput where a batch holds what cannot travel; a forward() that cannot be
        split stays whole.
        """
        if self._made is None:
            self._watching.end(self._watching.lacking)
            began = time.perf_counter()
            codec.check(self._one_batch())
            made = self._whole(why) if (why := self._forbidden()) else self._split()
            self._data = self._watched_data()
            self._made, self._seen = replace(made, seconds=time.perf_counter() - began), None
            log.info("data workers: %s", self._made.told)
        return self._made

    def _watched_data(self) -> ReachableState:
        try:
            return ReachableState({"dataset": self._source.fetch})
        except Exception as error:  # whatever a user's object may raise when it is looked at
            raise errors.BadInput(
                f"the data set cannot be watched, so nobody would know when it changes: {type(error).__name__}: {error}"
            ) from error

    @property
    def checked(self) -> int:
        """Batches that were made here too, the moved part of forward() at least, and compared."""
        checked = self._forward.checked if self._forward is not None else self._checked
        return max(checked, self._reread_here)

    @property
    def place(self) -> str:
        """File and line where the user's code calls the model; "" where it was not seen to."""
        return self._watching.place

    @property
    def touched(self) -> set[arguments.Path]:
        """Leaves that the loop reads itself: they travel whatever moves."""
        return self._watching.touched

    def drop(self, why: str) -> None:
        """Forward is the user's own again; batches that come with crossings are trained by it just the same."""
        log.warning("forward() stays whole: %s", why)
        if self._forward is not None:
            self._forward.remove()
            self._checked = self._forward.checked
            self._forward = None
        self._made = self._whole(why)

    def _whole(self, why: str, explanation: Explanation | None = None) -> Made:
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
        """A batch as the data set makes it: one that the loop has had, since to read another might change the data set;
        None where there is none to be had, which data workers will tell of."""
        if self._seen is not None:
            return self._seen
        indices = np.arange(min(self._source.batch_size, self._source.samples or 0))
        try:
            with seeded(self._seed, (0,)):  # the loop's own random numbers stay where they are
                return as_batch(self._source.fetch(indices))
        except Exception:
            log.info("the first batch cannot be made", exc_info=True)
            return None

    def _split(self) -> Made:
        watched = self._watching
        if watched.why or watched.call is None:
            return self._whole(watched.why or "model(...) was not called")
        try:
            return self._cut(watched.call, watched.samples)
        except errors.BadInput:
            raise
        except arguments.Another as error:
            return self._whole(str(error))
        except Exception:  # a program that trains must not fail because it cannot be split
            log.warning("forward() could not be split", exc_info=True)
            return self._whole("the search for a split failed; the worker's log has the error")

    def _cut(self, call: arguments.ModelCall, samples: Sequence[Sample]) -> Made:
        recorded = self._watching.recorded
        if recorded is None or recorded.why or not recorded.logs:
            return self._whole(recorded.why if recorded is not None and recorded.why else "no call could be recorded")
        self._paths = whole_leaves(call)
        found = split.split(recorded.book, recorded.logs, forward_s=recorded.forward_s)
        if isinstance(found, split.Unsplit):
            return self._whole(found.explanation.why, found.explanation)
        batch = self._one_batch()
        pipeline = self._pipeline(found, call, batch)
        tree = payload.tried(pipeline, batch)
        if "crossing" not in tree:
            return self._whole(f"the moved part does not run by itself: {tree.get('unsplit')}", found.explanation)
        self._seconds_a_batch = found.explanation.moved_s
        self._forward = SplitForward(self._model, call, found, sample=batch, on_difference=self._differs)
        types = codec.types_in([tree, payload.LeftTensor(0, (), "")])
        self._on_split()
        digest = hashlib.sha256(f"{found.digest} {call!r}".encode()).hexdigest()[:16]
        return Made(pipeline=pipeline, digest=digest, types=types, explanation=found.explanation)

    def _differs(self, why: str) -> None:
        """What came with a batch is not what is made here. This batch is trained right; no other one is taken."""
        log.error("data workers give something else than this program: %s", why)
        self.when_wrong(why)

    def _pipeline(self, found: split.Split, call: arguments.ModelCall, batch: Any) -> Pipeline:
        flat, _ = pytree.flatten(call.fill(batch))
        needed = {id(flat[number]) for number in found.needs}
        left = [
            (number, path)
            for number, path in enumerate(self._paths)
            if path not in self._watching.touched and _can_stay(leaf := _at(batch, path)) and id(leaf) not in needed
        ]
        stages = list(found.stages)
        along = stages and stages[0].device == "cpu" and not self._apart
        run = stages.pop(0).run if along else None
        first = payload.FirstStage(self._source.fetch, call, run, tuple(left))
        return Pipeline(
            (
                PipelineStage("read", first),
                *(PipelineStage(one.name, payload.LaterStage(one.run), one.device) for one in stages),
            )
        )

    # ---- batches that come through a queue ----

    def own(self, indices: Indices) -> Fed:
        """A batch that is made here."""
        return Fed(as_batch(self._source.fetch(indices)))

    def receive(self, tree: Mapping[str, Any], indices: Indices, name: BatchName | None = None) -> Fed:
        """A batch that a data worker has made of these samples."""
        if why := self._stale(tree):
            self._differs(why)
            return self.own_named(indices, name)
        batch, crossing = tree["batch"], tree.get("crossing")
        if "unsplit" in tree and not self._said:
            self._said = True
            log.warning("a data worker could not run its part of forward(), so it runs here: %s", tree["unsplit"])
        self.draws |= "draws" in tree
        check = self.checks(name)
        if check and self._rereads(name):
            mine = self.own_named(indices, name)
            self._reread_here += 1
            if at := batch_difference.first(mine.batch, batch):
                self._differs(f"the data set gives another {at} here than on a data worker")
                return mine
        again = _Again(self.read_again, self._paths, indices, name)
        batch = payload.filled(batch, again.stand_in)  # a later stage may refuse what the first has left leaves out of
        return Fed(batch, None if crossing is None else tuple(crossing), check and crossing is not None)

    def _rereads(self, name: BatchName | None) -> bool:
        """Whether a batch that is compared is also read here: now, when the loop would have read it itself. Not where
        that draws random numbers and another thread, the loop's, may draw from the same meanwhile."""
        alone = not self.draws or threading.get_ident() == self._thread
        return alone and (self._every == 1 or self.checks(name, every=REREAD * self._every))

    def _stale(self, tree: Mapping[str, Any]) -> str:
        """Why data workers read something else by now than this process would; "": as far as is seen, they do not."""
        if "changed" in tree:
            return f"the data set changes while it is read: {tree['changed']}"
        changed = self._data.changed() if self._data is not None else ""
        return f"the data set has changed since it was sent to data workers: {changed}" if changed else ""

    def own_named(self, indices: Indices, name: BatchName | None) -> Fed:
        """A batch that is made here in a data worker's place, with the random numbers that it would have had."""
        alone = threading.get_ident() == self._thread
        with seeded(self._seed, name if self.draws and alone else None):
            return self.own(indices)

    def checks(self, name: BatchName | None, *, every: int | None = None) -> bool:
        """Whether what data workers make of a batch is compared with what is made here: a random share of them."""
        every = self._every if every is None else every
        if every == 1 or name is None:
            return every == 1
        drawn = hashlib.blake2b(repr((self._seed, *name)).encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "little") % every == 0

    def asks(self, name: BatchName | None) -> tuple[int, ...]:
        """Leaves that are to travel with a batch although the moved part alone reads them, by their numbers."""
        return tuple(range(len(self._paths))) if self.checks(name) else tuple(sorted(self._wanted))

    def read_again(self, indices: Indices, name: BatchName | None, number: int) -> Any:
        """The whole batch once more, since somebody wants a leaf that had stayed behind."""
        self.reread += 1
        if number not in self._wanted:
            self._wanted.add(number)
            log.info("%s is read by the loop after all: it travels from now on", arguments.spelled(self._paths[number]))
        with seeded(self._seed, name):
            return as_batch(self._source.fetch(indices))


class _Again:
    """One batch that may have to be read again, once for all its leaves."""

    def __init__(
        self,
        read: Callable[[Indices, BatchName | None, int], Any],
        paths: Sequence[arguments.Path],
        indices: Indices,
        name: BatchName | None,
    ) -> None:
        self._read, self._paths, self._indices, self._name = read, paths, indices, name
        self._batch: Any = None

    def stand_in(self, left: payload.LeftTensor) -> lazy_leaf.Absent:
        """For a leaf of it."""
        read, fresh = functools.partial(self._leaf, left.number), functools.partial(self._fresh, left.number)
        return lazy_leaf.Absent(left.shape, payload.dtype_of(left), read, fresh)

    def _fresh(self, number: int) -> torch.Tensor:
        leaf: torch.Tensor = _at(self._read(self._indices, self._name, number), self._paths[number])
        return leaf

    def _leaf(self, number: int) -> torch.Tensor:
        if self._batch is None:
            self._batch = self._read(self._indices, self._name, number)
        leaf: torch.Tensor = _at(self._batch, self._paths[number])
        return leaf


def _at(batch: Any, path: Any) -> Any:
    for kind, name in path:
        batch = getattr(batch, name) if kind == "attr" else batch[name]
    return batch


def _is_plain(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and not leaf.requires_grad and not vars(leaf)


def _can_stay(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and leaf.device.type == "cpu"
