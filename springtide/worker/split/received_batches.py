"""Receives batches of data workers, fills in missing leaves, and compares a share of the batches with this worker's
own results.

In: trees from dataworker/feed/feed.py. Out: `Fed` batches. A leaf that data workers did not send is an `Absent`,
which reads its values on first use. At the first difference, the worker stops using data workers. Next:
controller.py.
"""

import copy
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree

from springtide import errors
from springtide.data.source import SampleSource, as_batch
from springtide.dataworker.feed.batch_rng import seeded
from springtide.dataworker.split.program import arguments, payload
from springtide.dataworker.split.recorder import torch_functions
from springtide.dataworker.split.recorder.reachable_state import ReachableState
from springtide.domain.data.data_workers import BatchName
from springtide.embedding.lookup.id_routes import is_absent
from springtide.worker.input.batch_plan import Fed

log = logging.getLogger(__name__)
Indices = NDArray[np.int64]
CHECKED = 64  # this worker also computes one batch in this many itself, and compares the results
REREAD = 4  # this worker also reads one compared batch in this many from the data set
Read = Callable[[], torch.Tensor]
Ask = Callable[[Indices, BatchName | None, tuple[int, ...]], Any]
"""Function that requests a batch with these leaves from data workers again, and returns None if no data worker can make
it."""
OF_TYPE = {
    torch.Tensor.long: torch.int64,
    torch.Tensor.int: torch.int32,
    torch.Tensor.float: torch.float32,
    torch.Tensor.double: torch.float64,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.bool: torch.bool,
}
STAYING = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.contiguous, *OF_TYPE}
DESCRIBING = torch_functions.DESCRIBING | {"Tensor.stride", "Tensor.is_contiguous"}
"""Functions that a placeholder can answer itself, because its shape and dtype suffice."""


class ReceivedBatches:
    """Receiver of batches for the thread that reads. The loop's thread may also call `differs`."""

    def __init__(self, source: SampleSource, seed: int, *, every: int) -> None:
        """Create the receiver. This worker also builds one of `every` batches itself, and compares the two results."""
        self.reread = 0
        """Number of batches read again here, because the loop read a leaf that data workers did not send."""
        self.compared = 0
        """Number of batches that were also read here, and compared."""
        self.draws = False
        """Whether the data set was seen to draw random numbers."""
        self.wrong = ""
        """Description of the first wrong result of a data worker; empty if there was none. From then on, the worker
        uses no results of data workers.
        """
        self.paths: list[arguments.Path] = []
        """Leaves that data workers may leave out; equal on every worker with the same program."""
        self.data: ReachableState | None = None
        """State that the data set reads, as it was when it was sent to data workers."""
        self.loop_thread = threading.get_ident()
        self.every = every
        self._source, self._seed = source, seed
        self._wanted: set[int] = set()
        self._earlier: weakref.WeakSet[BatchAgain] = weakref.WeakSet()
        """Batches that the loop has, and from which leaves are missing."""
        self._said = False

    def differs(self, why: str) -> None:
        """Report that a received result differs from this worker's own result. The current batch is trained
        correctly, and no further results are accepted.
        """
        log.error("data workers return other results than this program: %s", why)
        self.wrong = self.wrong or why

    def own(self, indices: Indices) -> Fed:
        return Fed(as_batch(self._source.fetch(indices)))

    def receive(
        self,
        tree: Mapping[str, Any],
        indices: Indices,
        name: BatchName | None = None,
        *,
        ask: Ask = lambda indices, name, leaves: None,
    ) -> Fed:
        if not self.wrong and (why := self._stale(tree)):
            for earlier in list(self._earlier):
                earlier.keep()  # data workers end now, and only they still have the data set of these batches
            self.differs(why)
        if self.wrong:
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
                self.differs(f"{at} of the data set differs between this worker and a data worker")
                return mine
        again = BatchAgain(self, ask, indices, name)
        self._earlier.add(again)
        # fill in leaves that the first stage did not send, even if a later stage failed
        batch = payload.filled(batch, again.stand_in)
        return Fed(batch, None if crossing is None else tuple(crossing), check and crossing is not None)

    def _rereads(self, name: BatchName | None) -> bool:
        """Return True if this worker also reads the batch itself, to compare the two results.

        If reading draws random numbers, read in the loop's thread, because reading and the loop may use the same
        generator.
        """
        alone = not self.draws or threading.get_ident() == self.loop_thread
        return alone and (self.every == 1 or self.checks(name, every=REREAD * self.every))

    def _stale(self, tree: Mapping[str, Any]) -> str:
        """Return the reason why data workers read other data than this process would read; empty if nothing has
        changed."""
        if "changed" in tree:
            return f"the data set changes while it is read: {tree['changed']}"
        changed = self.data.changed() if self.data is not None else ""
        return f"the data set has changed since it was sent to data workers: {changed}" if changed else ""

    def own_named(self, indices: Indices, name: BatchName | None) -> Fed:
        """Build a batch in this process instead of on a data worker, with the same random numbers."""
        alone = threading.get_ident() == self.loop_thread
        with seeded(self._seed, name if self.draws and alone else None):
            return self.own(indices)

    def checks(self, name: BatchName | None, *, every: int | None = None) -> bool:
        """Return True if this batch belongs to the random share of batches that are compared."""
        every = self.every if every is None else every
        if every == 1 or name is None:
            return every == 1
        return hash((self._seed, *name)) % every == 0  # the hash of integers is the same in every process

    def asks(self, name: BatchName | None) -> tuple[int, ...]:
        """Return the numbers of leaves that data workers must send with a batch, although only the moved part of
        forward() reads them."""
        return tuple(range(len(self.paths))) if self.checks(name) else tuple(sorted(self._wanted))

    def on_reread(self, number: int) -> None:
        """Count a batch that is read again, because the loop needs a leaf that was not sent."""
        self.reread += 1
        if number not in self._wanted:
            self._wanted.add(number)
            log.info(
                "the loop reads %s after all, so data workers send it from now on",
                arguments.spelled(self.paths[number]),
            )

    def read_here(self, indices: Indices, name: BatchName | None) -> Any:
        """Read a batch again from this worker's data set. Raise BadInput if the data set has other samples by now."""
        if self.data is not None and (changed := self.data.changed()):
            raise errors.BadInput(
                f"the loop reads a batch that came from data workers, but the data set has changed since ({changed}), "
                "and no data worker can send the batch again. Change the data set before the loop takes the batch, or "
                "use --split off"
            )
        with seeded(self._seed, name):
            return as_batch(self._source.fetch(indices))


class Absent(torch.Tensor):
    """Placeholder that turns into its tensor on first use."""

    springtide_absent = True
    """Attribute by which other packages recognize a placeholder without importing this module."""
    springtide_read: Read
    springtide_here: torch.Tensor | None = None
    springtide_version = 0
    springtide_fresh: Read
    """Function that reads the original values again, without later writes."""
    springtide_exposed = False
    """True if the script has access to the tensor's memory (`.numpy()`, `.data`), and can therefore write to it
    undetected."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, read: Read, fresh: Read | None = None) -> "Absent":
        """Create a placeholder. `read` is called once; `fresh` reads the original values again."""
        made: Absent = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        made.springtide_read, made.springtide_fresh = read, fresh or read
        return made

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, read: Read, fresh: Read | None = None) -> None:
        """Do nothing, because __new__ sets all attributes."""

    def here(self) -> torch.Tensor:
        if self.springtide_here is None:
            self.springtide_here = self.springtide_read()
            self.springtide_version = self.springtide_here._version
        return self.springtide_here

    @property
    def changed(self) -> bool:
        here = self.springtide_here
        return here is not None and (
            self.springtide_exposed or here._version != self.springtide_version or here.requires_grad
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer functions that need no values. For casts that change nothing, return the placeholder. Run all other
        functions on the tensor.

        After the values are read, the tensor answers everything, because its gradient or shape may have changed.
        """
        kwargs, name = kwargs or {}, torch_functions.name_of(func)
        if name in DESCRIBING and args and is_absent(args[0]) and args[0].springtide_here is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in STAYING and args and is_absent(args[0]) and _stays(func, *args, **kwargs):
            return args[0]
        if name in torch_functions.EXPOSING:
            for arg in args:
                if is_absent(arg):
                    arg.springtide_exposed = True
        return func(*present(args), **present(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*present(args), **present(kwargs or {}))


class BatchAgain:
    """A batch that may have to be read again, but only once for all its leaves.

    Data workers still have the data set with which they made the batch, while the script may have changed its copy. So
    a data worker reads the batch again if possible.
    """

    def __init__(self, received: ReceivedBatches, ask: Ask, indices: Indices, name: BatchName | None) -> None:
        self._received, self._ask, self._indices, self._name = received, ask, indices, name
        self._batch: Any = None
        self._kept: Any = None
        """The batch with its original values, protected from writes of the loop; None before `keep`."""

    def keep(self) -> None:
        """Request the batch now, because no data worker can send it later."""
        self._kept = self._from_data_workers()

    def stand_in(self, left: payload.LeftTensor) -> Absent:
        read, fresh = functools.partial(self._leaf, left.number), functools.partial(self._fresh, left.number)
        return Absent(left.shape, payload.dtype_of(left), read, fresh)

    def _fresh(self, number: int) -> torch.Tensor:
        leaf: torch.Tensor = leaf_at(self._read(number), self._received.paths[number])
        return leaf

    def _leaf(self, number: int) -> torch.Tensor:
        if self._batch is None:
            self._batch = self._read(number)
        leaf: torch.Tensor = leaf_at(self._batch, self._received.paths[number])
        return leaf

    def _read(self, number: int) -> Any:
        self._received.on_reread(number)
        batch = self._from_data_workers() if self._kept is None else copy.deepcopy(self._kept)
        return self._received.read_here(self._indices, self._name) if batch is None else batch

    def _from_data_workers(self) -> Any:
        """Return the batch as a data worker makes it again; return None if no data worker can, or if its data set has
        changed too.
        """
        tree = self._ask(self._indices, self._name, tuple(range(len(self._received.paths))))
        return None if tree is None or "changed" in tree else tree["batch"]


def leaf_at(batch: Any, path: Any) -> Any:
    for kind, name in path:
        batch = getattr(batch, name) if kind == "attr" else batch[name]
    return batch


def present(tree: Any) -> Any:
    return _pytree.tree_map(lambda leaf: leaf.here() if is_absent(leaf) else leaf, tree)


def behind(leaf: Any) -> Any:
    """Return the real tensor without changing the placeholder, so that the next use counts as the first."""
    return leaf.springtide_read() if is_absent(leaf) else leaf


def _stays(func: Any, value: Absent, *args: Any, **kwargs: Any) -> bool:
    if func in OF_TYPE:
        return not args and not kwargs and value.dtype is OF_TYPE[func]
    if func is not torch.Tensor.to:
        return not args and not kwargs
    if kwargs.get("copy") or any(isinstance(arg, torch.Tensor) for arg in args):
        return False
    try:
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return False
    return (device is None or device == value.device) and dtype in (None, value.dtype) and layout is None
