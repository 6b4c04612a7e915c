"""Receive batches of data workers: fill missing leaves, and compare a share of the batches with this worker's own.

In: trees from dataworker/feed/feed.py. Out: `Fed` batches. At the first difference, the worker reports it once and
stops using data workers. Next: controller.py hands the batches to the loop.
"""

import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from springtide.data.source import SampleSource, as_batch
from springtide.dataworker.feed.batch_rng import seeded
from springtide.dataworker.split.program import arguments, payload
from springtide.dataworker.split.recorder.reachable_state import ReachableState
from springtide.dataworker.split.search import batch_difference
from springtide.domain.data.data_workers import BatchName
from springtide.worker.input.read_batch import Fed
from springtide.worker.split import lazy_leaf

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
CHECKED = 64  # of so many batches one is computed here too, and compared
REREAD = 4  # of so many of these one is read from the data set here, too


class ReceivedBatches:
    """Receiver of batches for the reading thread; the loop's thread may also call `differs`."""

    def __init__(self, source: SampleSource, seed: int, *, every: int) -> None:
        """`every`: one of so many batches is made here too, and compared."""
        self.reread = 0
        """Number of batches read again here, because the loop read a leaf that data workers did not send."""
        self.compared = 0
        """Number of batches read here too and compared."""
        self.draws = False
        """Whether the data set was seen to draw random numbers."""
        self.when_wrong: Callable[[str], None] = lambda why: None
        """Function called when a data worker's result differs. No further result of data workers may be used then."""
        self.paths: list[arguments.Path] = []
        """Leaves that data workers may leave out; equal on every worker with the same program."""
        self.data: ReachableState | None = None
        """State that the data set reads, as it was when it was sent to data workers."""
        self.loop_thread = threading.get_ident()
        self.every = every
        self._source, self._seed = source, seed
        self._wanted: set[int] = set()
        self._said = False

    def differs(self, why: str) -> None:
        """What came with a batch is not what is made here. This batch is trained right; no other one is taken."""
        log.error("data workers give something else than this program: %s", why)
        self.when_wrong(why)

    def own(self, indices: Indices) -> Fed:
        return Fed(as_batch(self._source.fetch(indices)))

    def receive(self, tree: Mapping[str, Any], indices: Indices, name: BatchName | None = None) -> Fed:
        if why := self._stale(tree):
            self.differs(why)
            return self.own_named(indices, name)
        batch, crossing = tree["batch"], tree.get("crossing")
        if "unsplit" in tree and not self._said:
            self._said = True
            log.warning("a data worker could not run its part of forward(), so it runs here: %s", tree["unsplit"])
        self.draws |= "draws" in tree
        check = self.checks(name)
        if check and self._rereads(name):
            mine = self.own_named(indices, name)
            self.compared += 1
            if at := batch_difference.first(mine.batch, batch):
                self.differs(f"the data set gives another {at} here than on a data worker")
                return mine
        again = BatchAgain(self.read_again, self.paths, indices, name)
        batch = payload.filled(batch, again.stand_in)  # a later stage may refuse what the first has left leaves out of
        return Fed(batch, None if crossing is None else tuple(crossing), check and crossing is not None)

    def _rereads(self, name: BatchName | None) -> bool:
        """Whether a batch that is compared is also read here: now, when the loop would have read it itself. Not where
        that draws random numbers and another thread, the loop's, may draw from the same meanwhile."""
        alone = not self.draws or threading.get_ident() == self.loop_thread
        return alone and (self.every == 1 or self.checks(name, every=REREAD * self.every))

    def _stale(self, tree: Mapping[str, Any]) -> str:
        """Why data workers read something else by now than this process would; "": as far as is seen, they do not."""
        if "changed" in tree:
            return f"the data set changes while it is read: {tree['changed']}"
        changed = self.data.changed() if self.data is not None else ""
        return f"the data set has changed since it was sent to data workers: {changed}" if changed else ""

    def own_named(self, indices: Indices, name: BatchName | None) -> Fed:
        """A batch that is made here in a data worker's place, with the random numbers that it would have had."""
        alone = threading.get_ident() == self.loop_thread
        with seeded(self._seed, name if self.draws and alone else None):
            return self.own(indices)

    def checks(self, name: BatchName | None, *, every: int | None = None) -> bool:
        """Whether what data workers make of a batch is compared with what is made here: a random share of them."""
        every = self.every if every is None else every
        if every == 1 or name is None:
            return every == 1
        drawn = hashlib.blake2b(repr((self._seed, *name)).encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "little") % every == 0

    def asks(self, name: BatchName | None) -> tuple[int, ...]:
        """Leaves that are to travel with a batch although the moved part alone reads them, by their numbers."""
        return tuple(range(len(self.paths))) if self.checks(name) else tuple(sorted(self._wanted))

    def read_again(self, indices: Indices, name: BatchName | None, number: int) -> Any:
        """The whole batch once more, since somebody wants a leaf that had stayed behind."""
        self.reread += 1
        if number not in self._wanted:
            self._wanted.add(number)
            log.info("%s is read by the loop after all: it travels from now on", arguments.spelled(self.paths[number]))
        with seeded(self._seed, name):
            return as_batch(self._source.fetch(indices))


class BatchAgain:
    """Batch that may have to be read again, once for all its leaves."""

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
        read, fresh = functools.partial(self._leaf, left.number), functools.partial(self._fresh, left.number)
        return lazy_leaf.Absent(left.shape, payload.dtype_of(left), read, fresh)

    def _fresh(self, number: int) -> torch.Tensor:
        leaf: torch.Tensor = leaf_at(self._read(self._indices, self._name, number), self._paths[number])
        return leaf

    def _leaf(self, number: int) -> torch.Tensor:
        if self._batch is None:
            self._batch = self._read(self._indices, self._name, number)
        leaf: torch.Tensor = leaf_at(self._batch, self._paths[number])
        return leaf


def leaf_at(batch: Any, path: Any) -> Any:
    for kind, name in path:
        batch = getattr(batch, name) if kind == "attr" else batch[name]
    return batch
