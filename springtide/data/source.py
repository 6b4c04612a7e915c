"""Reads samples by index: turns a Dataset, DataLoader or IterableDataset into a SampleSource.

In: the `dataset` argument of `job.prepare`. Out: `fetch(indices)`, which returns a collated mini-batch. Next:
worker/input/batches.py.
"""

import dataclasses
import functools
import inspect
import itertools
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree, data

from springtide import errors
from springtide.data.shards import RowGroups, row_groups
from springtide.data.stream.stream import StreamDataset
from springtide.domain.core import validation
from springtide.domain.data.samples import Batch

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
Fetch = Callable[[Indices], Any]
NOT_THE_USERS = (  # parts of file names that are not user code
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}springtide{os.sep}dataworker{os.sep}",
    f"{os.sep}springtide{os.sep}data{os.sep}",
    os.path.dirname(os.__file__) + os.sep,
)
OF_INDICES = ("indices", "indexes", "index", "idx", "ids", "i", "rows", "items", "samples", "numbers", "keys")
"""Names for the first argument of a data set's `batch(indices)` method that Springtide accepts, also after a prefix
such as `batch_`. An argument of a different name may be a size, as in `batch(batch_size)` of Hugging Face data sets.
"""
DEFAULT_BATCH_SIZE = 512  # a common size for click models on CPU; used when neither the call nor a DataLoader gives one


def _no_samples(*_: Any) -> Any:
    raise errors.BadInput("a stream has no samples with indices")


class CountedBatch(NamedTuple):
    """Mini-batch of an IterableDataset, with its number of samples. The last mini-batch of a reader has fewer."""

    samples: int
    batch: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """A data set with a uniform interface for training."""

    batch_size: int
    samples: int | None = None
    """Number of samples of an epoch; None for data sets without indices."""
    shuffle: bool = False
    drop_last: bool = False
    num_workers: int = 0
    fetch: Fetch = _no_samples
    """Function that reads the mini-batch with these indices (map-style only)."""
    stream: Callable[[], Iterable[CountedBatch]] = _no_samples
    """Function that starts a new run over the mini-batches of an IterableDataset."""
    items: Callable[[], Iterable[list[Any]]] = _no_samples
    """Function that also starts a new run, but yields each mini-batch as a list of samples, not yet collated."""
    collate: Callable[[list[Any]], Any] | None = None
    """The user's `collate_fn`, if there is one."""
    loader_options: dict[str, Any] = field(default_factory=dict)
    length: Callable[[], int] | None = None
    """Function that returns the number of mini-batches of an IterableDataset with `__len__`."""
    whole: bool = False
    """True if each item of the data set is a whole batch, as with DataLoader(batch_size=None). A batch then counts as
    one sample.
    """
    groups: RowGroups | None = None
    """Groups of samples that are cheap to read together, if the data set has an attribute `row_groups`."""
    online: StreamDataset | None = None
    """The stream, if the data set is a stream. For a stream, only the batch size of the other fields is used."""

    @property
    def rowwise(self) -> bool:
        """True if the user gave no `collate_fn`. With the default, a tensor whose length equals the batch size has one
        row for each sample.
        """
        return self.collate is None and not self.whole

    def read(self, indices: Iterable[Indices], *, tolerant: bool = False) -> Iterator[Any]:
        """Yield the mini-batches of these index arrays, in order, read by `num_workers` processes.

        For an empty array, yield None. With `tolerant`, an `UnreadableBatch` replaces a batch for which the data set
        raised.
        """
        fetch = _tolerant(self.fetch) if tolerant else self.fetch
        if self.num_workers == 0:
            return (fetch(batch_indices) if len(batch_indices) else None for batch_indices in indices)
        # A forked reader process uses only the data set; it uses no socket and no table of this process.
        loader: Any = data.DataLoader(
            _Whole(fetch), batch_size=None, sampler=_Once(indices), num_workers=self.num_workers, **self.loader_options
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """Placeholder for a mini-batch for which the data set raised. `error` has the error and its position, on one
    line."""

    error: str


def open_source(
    dataset: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int | None = None,
) -> SampleSource:
    """Create a SampleSource for `dataset`. If `dataset` is a DataLoader, arguments that are None come from the
    DataLoader."""
    options: dict[str, Any] = {}
    whole = False
    if isinstance(dataset, data.DataLoader):
        taken = _from_loader(dataset)
        options = taken["options"]
        whole = taken["batch_size"] is None and batch_size is None
        batch_size = batch_size if batch_size is not None else taken["batch_size"]
        shuffle = taken["shuffle"] if shuffle is None else shuffle
        drop_last = taken["drop_last"] if drop_last is None else drop_last
        collate_fn = collate_fn or taken["collate_fn"]
        num_workers = taken["num_workers"] if num_workers is None else num_workers
        dataset = dataset.dataset
    asked = 1 if whole else batch_size if batch_size is not None else DEFAULT_BATCH_SIZE
    size = validation.number(asked, "batch_size", "a whole number, 1 or more", least=1)
    validation.number(num_workers or 0, "num_workers", "a whole number of reader processes, 0 or more")
    _check(collate_fn, shuffle=shuffle, drop_last=drop_last)
    if isinstance(dataset, StreamDataset):
        return _of_stream(dataset, size, shuffle=shuffle, drop_last=drop_last, collate_fn=collate_fn)
    iterable = isinstance(dataset, data.IterableDataset)
    if iterable and shuffle:
        raise errors.BadInput("shuffle=True needs a data set with indices; an IterableDataset has its own order")
    if whole:
        warn_of_whole_batches()
    common: Any = {
        "batch_size": size,
        "drop_last": bool(drop_last) and not whole,
        "num_workers": num_workers or 0,
        "collate": collate_fn,
        "loader_options": options,
        "whole": whole,
    }
    if iterable:
        return _of_iterable(dataset, SampleSource(**common))
    fetch = _whole_fetcher(dataset, collate_fn) if whole else fetcher(dataset, collate_fn)
    common |= {"shuffle": True if shuffle is None else shuffle, "groups": row_groups(dataset)}
    return SampleSource(samples=_count(dataset), fetch=fetch, **common)


def _of_iterable(dataset: Any, source: SampleSource) -> SampleSource:
    def load(collate: Callable[[Any], Any]) -> Iterable[Any]:
        how: Any = {"num_workers": source.num_workers, **source.loader_options}
        if source.whole:
            return data.DataLoader(dataset, batch_size=None, collate_fn=collate, **how)
        how["drop_last"] = source.drop_last
        return data.DataLoader(dataset, batch_size=source.batch_size, collate_fn=collate, **how)

    def stream() -> Iterable[CountedBatch]:
        default = data.default_convert if source.whole else data.default_collate
        return itertools.starmap(CountedBatch, load(_Counted(source.collate or default, source.whole)))

    def items() -> Iterable[list[Any]]:
        return map(_unpacked, load(_packed)) if source.num_workers else load(list)

    def length() -> int:
        full, rest = divmod(len(dataset), source.batch_size)
        return full + (rest > 0 and not source.drop_last)

    known = length if hasattr(dataset, "__len__") else None
    return dataclasses.replace(source, stream=stream, items=items, length=known)


def _whole_fetcher(dataset: Any, collate_fn: Callable[[Any], Any] | None) -> Fetch:
    convert = collate_fn or data.default_convert
    return lambda indices: convert(dataset[int(indices[0])])  # the caller asks for one batch at a time


@functools.cache
def warn_of_whole_batches() -> None:
    log.warning("DataLoader(batch_size=None): each item of the data set is a batch, and counts as one sample")


def _check(collate_fn: Any, **either: Any) -> None:
    for name, value in either.items():
        if value is not None and not isinstance(value, bool | np.bool_):
            raise errors.BadInput(f"{name}={value!r}: expected True or False")
    if collate_fn is not None and not callable(collate_fn):
        raise errors.BadInput(f"collate_fn={collate_fn!r}: expected a function from a list of samples to a batch")


def _of_stream(dataset: StreamDataset, batch_size: int, **given: Any) -> SampleSource:
    for name, value in given.items():
        if value:
            raise errors.BadInput(
                f"{name}= has no meaning for a stream: its records come in the order of their offsets, and "
                f"springtide.stream(decode=...) makes batches of them"
            )
    return SampleSource(batch_size=batch_size, online=dataset)


def fetcher(dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> Fetch:
    """Return the fastest function that reads many samples of this data set together."""
    if collate_fn is None:
        if reads_batches(dataset):
            return dataset.batch  # type: ignore[no-any-return]
        if isinstance(dataset, data.TensorDataset):
            tensors = dataset.tensors
            return lambda indices: tuple(_rows(tensor, indices) for tensor in tensors)
    if isinstance(dataset, data.Subset):
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        inner = fetcher(dataset.dataset, collate_fn)
        return lambda indices: inner(chosen[indices])
    collate = collate_fn or data.default_collate
    if hasattr(dataset, "__getitems__"):
        return lambda indices: collate(dataset.__getitems__(indices.tolist()))
    if collate_fn is None and callable(getattr(dataset, "batch", None)):
        warn_of_unused_batch(type(dataset).__qualname__)
    return lambda indices: collate([dataset[index] for index in indices.tolist()])


def reads_batches(dataset: Any) -> bool:
    """Return True if the data set has `batch(indices)`. A method `batch` with other arguments does not count."""
    method = getattr(dataset, "batch", None)
    if not callable(method):
        return False
    if not hasattr(dataset, "__getitem__"):
        return True  # without __getitem__, this is the only way to read the data set
    try:
        name = next(iter(inspect.signature(method).parameters), "")
    except (TypeError, ValueError):  # `batch` is a callable without a signature
        return False
    return name in OF_INDICES or name.rpartition("_")[2] in OF_INDICES


@functools.cache
def warn_of_unused_batch(kind: str) -> None:
    """Warn once that samples are read one at a time, although the data set has a method `batch`."""
    log.warning(
        "%s.batch is not used, because its argument is not called `indices`, and may mean something else. Samples are "
        "read one at a time, which is slower: rename the argument, or write __getitems__(indices)",
        kind,
    )


def as_batch(collated: Any) -> Any:
    """Convert a pair to a `Batch` (`batch.x`, `batch.y`, still a pair); return anything else unchanged."""
    if type(collated) in (tuple, list) and len(collated) == 2:
        return Batch(collated[0], collated[1])
    return collated


def _tolerant(fetch: Fetch) -> Fetch:
    def attempt(indices: Indices) -> Any:
        try:
            return fetch(indices)
        except Exception as error:  # the user's data set may raise anything
            return UnreadableBatch(on_one_line(error))

    return attempt


def on_one_line(error: BaseException) -> str:
    """Summarise a user's error on one line, with the deepest line of user code."""
    message = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in NOT_THE_USERS)]
    frame = (own or frames)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    line = f"{type(error).__name__}{': ' + message[0] if message else ''} ({place})"
    return line.encode(errors="backslashreplace").decode()  # escape bytes of file names that no message can carry


def _rows(tensor: torch.Tensor, indices: Indices) -> torch.Tensor:
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices) and (len(indices) < 3 or bool((np.diff(indices) == 1).all())):
        # copy the rows, as a DataLoader does, because the loop may write to its batch
        return tensor[first : last + 1].clone()
    return tensor.index_select(0, torch.from_numpy(indices))


def _count(dataset: Any) -> int:
    named = isinstance(dataset, Mapping) and 0 not in dataset
    if named or isinstance(dataset, str | bytes | os.PathLike):
        raise errors.BadInput(
            f"the data set is a {type(dataset).__name__}: expected samples by index. A file needs a reader, such as "
            "springtide.read_csv(path); columns of tensors go into torch.utils.data.TensorDataset(x, y)"
        )
    if (
        isinstance(dataset, tuple)
        and dataset
        and all(isinstance(column, torch.Tensor | np.ndarray) for column in dataset)
    ):
        raise errors.BadInput(
            f"the data set is a tuple of {len(dataset)} arrays: expected samples by index. "
            "Wrap them: torch.utils.data.TensorDataset(x, y)"
        )
    if not hasattr(dataset, "__len__") or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
        raise errors.BadInput(
            f"cannot train from a {type(dataset).__name__}: expected a torch Dataset with __len__ and __getitem__ "
            "(or .batch(indices)), a DataLoader, or an IterableDataset"
        )
    count = len(dataset)
    if count == 0:
        raise errors.BadInput(
            f"the data set ({type(dataset).__name__}) is empty: len() is 0, expected 1 or more samples"
        )
    return count


def _from_loader(loader: "data.DataLoader[Any]") -> dict[str, Any]:
    if loader.batch_size is None and loader.batch_sampler is not None:
        raise errors.BadInput(
            "this DataLoader batches by its own batch_sampler, which Springtide cannot use: Springtide itself forms "
            "batches, so that workers share samples exactly once. Pass the data set and batch_size to job.prepare "
            "instead"
        )
    sampler = None if isinstance(loader.dataset, data.IterableDataset) else loader.sampler
    plain_random = (
        type(sampler) is data.RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if sampler is not None and type(sampler) is not data.SequentialSampler and not plain_random:
        raise errors.BadInput(
            f"this DataLoader has a {type(sampler).__name__}, which Springtide cannot use: Springtide decides which "
            "worker trains which sample. Use shuffle=True or False, or apply the sampler's choice in the data set "
            "(Subset)"
        )
    options: dict[str, Any] = {"pin_memory": loader.pin_memory}
    if loader.num_workers > 0:
        options |= {
            "worker_init_fn": loader.worker_init_fn,
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
        }
    custom_collate = loader.collate_fn not in (data.default_collate, data.default_convert)
    return {
        "batch_size": loader.batch_size,
        "shuffle": plain_random if sampler is not None else False,
        "drop_last": loader.drop_last,
        "collate_fn": loader.collate_fn if custom_collate else None,
        "num_workers": loader.num_workers,
        "options": options,
    }


@dataclass(frozen=True, slots=True)
class _Array:
    """A tensor in the form in which a reader process sends it: an array, because each tensor would need a file
    descriptor.
    """

    values: NDArray[Any]


def _packed(items: list[Any]) -> list[Any]:
    def pack(tensor: torch.Tensor) -> Any:
        try:
            return _Array(tensor.numpy())
        except (TypeError, RuntimeError):  # NumPy lacks this dtype
            return tensor

    return [_pytree.tree_map_only(torch.Tensor, pack, item) for item in items]


def _unpacked(items: list[Any]) -> list[Any]:
    return [_pytree.tree_map_only(_Array, lambda array: torch.from_numpy(array.values), item) for item in items]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A `collate_fn` that also returns the number of samples. A `whole` batch of the data set counts as one sample."""

    collate: Callable[[Any], Any]
    whole: bool

    def __call__(self, items: Any) -> tuple[int, Any]:
        return 1 if self.whole else len(items), self.collate(items)


class _Whole(data.Dataset[Any]):
    """A data set whose items are mini-batches. The index of an item is an array with the indices of its samples."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def __getitem__(self, indices: Indices) -> Any:
        return self.fetch(indices) if len(indices) else None


class _Once(data.Sampler[Any]):
    """A sampler that yields the given index arrays unchanged. A DataLoader requests index arrays slightly ahead of
    their use."""

    def __init__(self, indices: Iterable[Indices]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.indices)
