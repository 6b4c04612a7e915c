"""What of a loop can be made elsewhere: reading, collating, and the part of forward() that needs no parameters.

In: the user's model and data set, batches as the loop gets them. Out: a Pipeline for data workers, and what becomes of
the batches that they send. Next: watching.py sees how the model is called, prep/split.py cuts it, split_forward.py runs
what is left of it, absent.py stands for leaves that stayed behind; feeding.py brings the batches.
"""

import functools
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from springtide import errors
from springtide.data.source import Source, as_batch
from springtide.domain.feeding import BatchName, SplitMode
from springtide.prep import arguments, beside, codec, leaves, shipping, split
from springtide.prep.chance import seeded
from springtide.prep.explain import Explanation
from springtide.prep.found import Found
from springtide.prep.searching import Arguments
from springtide.prep.stage import Pipeline, Stage
from springtide.train import absent
from springtide.train.leading import Leading
from springtide.train.split_forward import SplitForward
from springtide.train.watching import Sample, Watching, whole_leaves

if TYPE_CHECKING:
    from springtide.train.batches import Handed

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
SHORT_S = 0.01  # nobody would notice
OFF = "--split off was asked for"


class Fed(NamedTuple):
    """A batch as it came through a queue, whoever made it."""

    batch: Any
    crossing: tuple[Any, ...] | None = None
    """What the moved part of forward() has made of it; None: nothing, the user's own forward runs."""


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
    beside_s: float = 0.0
    """How long it was looked for beside the loop, which trained on."""
    in_vain: str = ""
    """Why what was found there could not be taken, so that the loop stood still."""

    @property
    def told(self) -> str:
        """One sentence for the job's story."""
        found = "" if self.explanation is None or self.why else self.explanation.summary
        what = found or f"only the data set moves, forward() stays whole: {self.why}"
        beside = f"found out in {self.beside_s:.1f} s beside the loop; " if self.beside_s else ""
        if self.in_vain:
            beside = f"looked for beside the loop in vain ({self.in_vain}); "
        return f"{what}; {beside}the loop stood still for {max(self.seconds, SHORT_S):.2g} s"

    @property
    def moved(self) -> bool:
        """Whether a part of forward() runs on data workers."""
        return not self.why


class Splitting:
    """One a `job.prepare` over a data set with indices. For the loop's thread, but for `receive` and `own`."""

    def __init__(
        self,
        model: nn.Module,
        source: Source,
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
        self.asks: Callable[[tuple[int, ...]], None] = lambda numbers: None
        """Told of leaves that are wanted after all, by their numbers: they are to travel from now on."""
        self.when_ready: Callable[[], None] | None = None
        """Called once enough was seen, between two batches."""
        self._model, self._source, self._seed = model, source, seed
        self._forbidden: Callable[[], str] = (lambda: OFF) if mode == "off" else forbidden
        self._on_split = on_split
        self._enabled = not self._forbidden()
        self._apart = mode == "stages"
        self._watching = Watching(model)
        self._leading = Leading(model)
        self._beside: beside.Beside | None = None
        self._beside_since = self._still_s = 0.0
        self._in_vain = ""
        self._made: Made | None = None
        self._forward: SplitForward | None = None
        self._paths: list[arguments.Path] = []
        """Leaves that may stay behind; the same list on every worker with the same program."""
        self._wanted: set[int] = set()
        self._seconds_a_batch = 0.0
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

    def hand_out(self, handed: "Handed") -> Any:
        """What the loop gets as its batch."""
        if self._forward is not None:
            self._forward.hand_out(handed.batch, handed.crossing)
            self._seconds += self._seconds_a_batch if handed.crossing is None else 0.0
            return handed.batch
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

    def look_beside(self) -> bool:
        """Between two batches, when ready: have the split looked for by another process. True: `make` need not wait."""
        watched, began = self._watching, time.perf_counter()
        if self._made is not None or self._forbidden():
            return True
        if self._beside is None:
            watched.end(watched.lacking)
            if watched.why or watched.call is None:
                return True
            first, *more = self._given(watched.call, watched.samples)
            self._beside = beside.Beside(self._model, first, more)
            self._beside_since = time.perf_counter()
        done = self._beside.done
        self._still_s += time.perf_counter() - began
        return done

    def make(self) -> Made:
        """What data workers are to run, tried on real batches; between two batches.

        Takes some seconds, once; or some hundredths of one where `look_beside` has found it. BadInput where a batch
        holds what cannot travel; a forward() that cannot be split stays whole.
        """
        if self._made is None:
            self._watching.end(self._watching.lacking)
            began = time.perf_counter()
            looked_s = began - self._beside_since if self._beside is not None else 0.0
            codec.check(self._one_batch())
            made = self._whole(why) if (why := self._forbidden()) else self._split()
            still_s = time.perf_counter() - began + self._still_s
            self._made = replace(made, seconds=still_s, beside_s=looked_s, in_vain=self._in_vain)
            log.info("data workers: %s", self._made.told)
        return self._made

    def close(self) -> None:
        """The loop is over: nobody looks for a split any more."""
        if self._beside is not None and self._made is None:
            self._beside.close()

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
            self._forward = None
        self._made = self._whole(why)

    def _whole(self, why: str, explanation: Explanation | None = None) -> Made:
        first = shipping.First(self._source.fetch)
        types = codec.types_in({"batch": self._one_batch()})
        return Made(
            pipeline=Pipeline((Stage("read", first),)), digest="whole", types=types, explanation=explanation, why=why
        )

    def _one_batch(self) -> Any:
        """A batch as the data set makes it; None where it raises, which data workers will tell of."""
        seen, source = self._watching.samples, self._source
        indices = seen[0].indices if seen else np.arange(min(source.batch_size, source.samples or 0))
        try:
            with seeded(self._seed, (0,)):  # the loop's own random numbers stay where they are
                return as_batch(source.fetch(indices))
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

    def _cut(self, call: arguments.Call, samples: Sequence[Sample]) -> Made:
        self._paths = whole_leaves(call)
        given = self._given(call, samples)
        found = self._found_beside(given)
        if found is None:
            found = split.split(self._model, *given[0], more=given[1:])
        if isinstance(found, split.Unsplit):
            return self._whole(found.explanation.why, found.explanation)
        pipeline = self._pipeline(found, call, samples[0])
        with seeded(self._seed, (0,)):
            tree = pipeline(samples[0].indices)
        if "crossing" not in tree:
            return self._whole(f"the moved part does not run by itself: {tree.get('unsplit')}", found.explanation)
        self._seconds_a_batch = _seconds(found, [leaves.flatten(one)[0] for one in given[: len(samples)]])
        self._forward = SplitForward(self._model, call, found)
        types = codec.types_in([tree, shipping.Left(0, (), "")])
        self._on_split()
        digest = hashlib.sha256(f"{found.digest} {call!r}".encode()).hexdigest()[:16]
        return Made(pipeline=pipeline, digest=digest, types=types, explanation=found.explanation)

    def _given(self, call: arguments.Call, samples: Sequence[Sample]) -> list[Arguments]:
        """What the model was called with, and a smaller batch of the same kind."""
        return [*((one.args, call.in_order(one.kwargs)) for one in samples), *self._half(call, samples[0])]

    def _found_beside(self, given: Sequence[Arguments]) -> Found | None:
        """What another process has found, if it holds for the model as it is now."""
        if self._beside is None:
            return None
        if not self._beside.done:
            self._beside.close()
        found = self._beside.take()
        if found is None:
            self._in_vain = self._beside.why
        if not isinstance(found, split.Split):
            return found
        try:
            return split.confirm(self._model, found, *given[0], more=given[1:])
        except Exception as error:
            self._in_vain = f"it does not hold here: {error}"
            return None

    def _half(self, call: arguments.Call, sample: Sample) -> list[Arguments]:
        """The arguments of a smaller batch: an epoch's last one is often none of the full size."""
        count = len(sample.indices) // 2
        if count < 2:
            return []
        try:
            with seeded(self._seed, (0,)):
                return [call.fill(as_batch(self._source.fetch(sample.indices[:count])))]
        except Exception as error:  # a list of samples is shorter then, a collate_fn may take no other size
            log.info("no smaller batch to try a split with: %s", error)
            return []

    def _pipeline(self, found: split.Split, call: arguments.Call, sample: Sample) -> Pipeline:
        with seeded(self._seed, (0,)):
            batch = as_batch(self._source.fetch(sample.indices))
        flat, _ = leaves.flatten(call.fill(batch))
        needed = {id(flat[number]) for number in found.needs}
        left = [
            (number, path)
            for number, path in enumerate(self._paths)
            if path not in self._watching.touched and _can_stay(leaf := _at(batch, path)) and id(leaf) not in needed
        ]
        stages = list(found.stages)
        along = stages and stages[0].device == "cpu" and not self._apart
        run = stages.pop(0).run if along else None
        first = shipping.First(self._source.fetch, call, run, tuple(left))
        return Pipeline(
            (Stage("read", first), *(Stage(one.name, shipping.Later(one.run), one.device) for one in stages))
        )

    # ---- batches that come through a queue ----

    def own(self, indices: Indices) -> Fed:
        """A batch that is made here."""
        return Fed(as_batch(self._source.fetch(indices)))

    def receive(self, tree: Mapping[str, Any], indices: Indices, name: BatchName | None = None) -> Fed:
        """A batch that a data worker has made of these samples."""
        batch, crossing = tree["batch"], tree.get("crossing")
        if "unsplit" in tree and not self._said:
            self._said = True
            log.warning("a data worker could not run its part of forward(), so it runs here: %s", tree["unsplit"])
        again = _Again(self.read_again, self._paths, indices, name)
        batch = shipping.filled(batch, again.stand_in)  # a later stage may refuse what the first has left leaves out of
        return Fed(batch, None if crossing is None else tuple(crossing))

    def read_again(self, indices: Indices, name: BatchName | None, number: int) -> Any:
        """The whole batch once more, since somebody wants a leaf that had stayed behind."""
        self.reread += 1
        if number not in self._wanted:
            self._wanted.add(number)
            self.asks(tuple(sorted(self._wanted)))
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

    def stand_in(self, left: shipping.Left) -> absent.Absent:
        """For a leaf of it."""
        return absent.Absent(left.shape, shipping.dtype_of(left), functools.partial(self._leaf, left.number))

    def _leaf(self, number: int) -> torch.Tensor:
        if self._batch is None:
            self._batch = self._read(self._indices, self._name, number)
        leaf: torch.Tensor = _at(self._batch, self._paths[number])
        return leaf


def _at(batch: Any, path: Any) -> Any:
    for kind, name in path:
        batch = getattr(batch, name) if kind == "attr" else batch[name]
    return batch


def _can_stay(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and leaf.device.type == "cpu"


def _seconds(found: split.Split, flats: list[list[Any]]) -> float:
    """What the moved part takes here, for one batch: the quickest of those tried."""
    taken = []
    for flat in flats:
        made: Any = flat
        began = time.perf_counter()
        for stage in found.stages:
            made = stage.run(made) if made is not None and stage.device == "cpu" else None
        taken.append(time.perf_counter() - began)
    return min(taken, default=0.0)
