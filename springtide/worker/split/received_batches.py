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
from springtide.domain.data.data_workers import BatchName
from springtide.worker.input.read_batch import Fed
from springtide.worker.split import lazy_leaf

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
CHECKED = 64  # one of this many batches is also computed here and compared
REREAD = 4  # one of this many compared batches is also read from the data set here


class ReceivedBatches:
    """Receiver of batches for the reading thread; the loop's thread may also call `differs`."""

    def __init__(self, source: SampleSource, seed: int, *, every: int) -> None:
        """Create the receiver. One of `every` batches is also built here and compared."""
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
        """Report that a received result differs. The current batch is trained correctly, and no other is accepted."""
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
            if at := payload.difference(mine.batch, batch):
                self.differs(f"the data set gives another {at} here than on a data worker")
                return mine
        again = BatchAgain(self.read_again, self.paths, indices, name)
        batch = payload.filled(batch, again.stand_in)  # the first stage may omit leaves even if a later stage fails
        return Fed(batch, None if crossing is None else tuple(crossing), check and crossing is not None)

    def _rereads(self, name: BatchName | None) -> bool:
        """Return True if a compared batch is also read here, at the time when the loop would have read it. If reading
        draws random numbers, it must run in the loop's thread, which may draw from the same generator.
        """
        alone = not self.draws or threading.get_ident() == self.loop_thread
        return alone and (self.every == 1 or self.checks(name, every=REREAD * self.every))

    def _stale(self, tree: Mapping[str, Any]) -> str:
        """Return the reason why data workers read other data than this process would; empty if no change was found."""
        if "changed" in tree:
            return f"the data set changes while it is read: {tree['changed']}"
        changed = self.data.changed() if self.data is not None else ""
        return f"the data set has changed since it was sent to data workers: {changed}" if changed else ""

    def own_named(self, indices: Indices, name: BatchName | None) -> Fed:
        """Build a batch here instead of on a data worker, with the random numbers that the data worker would use."""
        alone = threading.get_ident() == self.loop_thread
        with seeded(self._seed, name if self.draws and alone else None):
            return self.own(indices)

    def checks(self, name: BatchName | None, *, every: int | None = None) -> bool:
        """Return True if this batch belongs to the random share that is compared."""
        every = self.every if every is None else every
        if every == 1 or name is None:
            return every == 1
        drawn = hashlib.blake2b(repr((self._seed, *name)).encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "little") % every == 0

    def asks(self, name: BatchName | None) -> tuple[int, ...]:
        """Return the numbers of leaves that must travel with a batch although only the moved part reads them."""
        return tuple(range(len(self.paths))) if self.checks(name) else tuple(sorted(self._wanted))

    def read_again(self, indices: Indices, name: BatchName | None, number: int) -> Any:
        """Read the whole batch again, because the loop needs a leaf that data workers did not send."""
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
