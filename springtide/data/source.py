"""Samples by index, whatever the user gave: a Dataset, a DataLoader or an IterableDataset become one Source.

In: what was passed to `job.prepare`. Out: `fetch(indices)`, a whole collated mini-batch. Next: worker/input/batches.py.
"""

import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree, data

from springtide import errors
from springtide.data.stream.dataset import StreamDataset
from springtide.domain.core import validation
from springtide.domain.data.samples import Batch

Indices = NDArray[np.int64]
Fetch = Callable[[Indices], Any]
NOT_THE_USERS = (  # parts of the names of files whose lines tell a user nothing
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}springtide{os.sep}dataworker{os.sep}",
    f"{os.sep}springtide{os.sep}data{os.sep}",
    os.path.dirname(os.__file__) + os.sep,
)
OF_INDICES = ("indices", "indexes", "index", "idx", "ids", "rows", "items", "samples", "numbers", "keys")
"""What the argument of a data set's own `batch(indices)` may be called."""
DEFAULT_BATCH_SIZE = 512  # a common size for click models on CPU; used when neither the call nor a DataLoader names one


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """A data set as training sees it."""

    samples: int | None
    """Samples of an epoch; None for an IterableDataset, which has no indices."""
    batch_size: int
    shuffle: bool
    drop_last: bool
    num_workers: int
    fetch: Fetch
    """A mini-batch of the samples with these indices (map-style only)."""
    stream: Callable[[], Iterable[Any]]
    """A fresh run over the mini-batches of an IterableDataset."""
    items: Callable[[], Iterable[list[Any]]]
    """The same run, each mini-batch as the list of its samples that `collate` has not seen."""
    collate: Callable[[list[Any]], Any] | None
    """The user's own, if there is one."""
    loader_options: dict[str, Any]
    online: StreamDataset | None = None
    """The stream that it is, where it is one: then nothing else here but the batch size means anything."""

    @property
    def rowwise(self) -> bool:
        """Whether no `collate_fn` of the user's makes batches: tensors as long as a batch have a row a sample then."""
        return self.collate is None

    def read(self, indices: Iterable[Indices], *, tolerant: bool = False) -> Iterator[Any]:
        """Mini-batches for these index arrays, in their order, read by `num_workers` processes when asked for.

        An empty array gives None: it keeps its place among the others. So does an `Unreadable`, where the data set
        raises and we are `tolerant`.
        """
        fetch = _tolerant(self.fetch) if tolerant else self.fetch
        if self.num_workers == 0:
            return (fetch(one) if len(one) else None for one in indices)
        # A forked reader only ever sees the data set: it touches no socket and no table of this process.
        loader: Any = data.DataLoader(
            _Whole(fetch),
            batch_size=None,
            sampler=_Once(indices),
            num_workers=self.num_workers,
            **self.loader_options,
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """Instead of a mini-batch: the data set raised. `error` says what and where, on one line."""

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
    """Understand `dataset`; arguments that are None are taken from it where it is a DataLoader."""
    options: dict[str, Any] = {}
    if isinstance(dataset, data.DataLoader):
        taken = _from_loader(dataset)
        options = taken["options"]
        batch_size = batch_size if batch_size is not None else taken["batch_size"]
        shuffle = taken["shuffle"] if shuffle is None else shuffle
        drop_last = taken["drop_last"] if drop_last is None else drop_last
        collate_fn = collate_fn or taken["collate_fn"]
        num_workers = taken["num_workers"] if num_workers is None else num_workers
        dataset = dataset.dataset
    asked = batch_size if batch_size is not None else DEFAULT_BATCH_SIZE
    size = validation.number(asked, "batch_size", "a whole number, 1 or more", least=1)
    validation.number(num_workers or 0, "num_workers", "a whole number of reader processes, 0 or more")
    _check(collate_fn, shuffle=shuffle, drop_last=drop_last)
    if isinstance(dataset, StreamDataset):
        return _of_stream(dataset, size, shuffle=shuffle, drop_last=drop_last, collate_fn=collate_fn)
    iterable = isinstance(dataset, data.IterableDataset)
    if iterable and shuffle:
        raise errors.BadInput("shuffle=True needs a data set with indices; an IterableDataset has its own order")
    samples = None if iterable else _count(dataset)

    def stream(collate: Callable[[list[Any]], Any] | None = collate_fn) -> Iterable[Any]:
        return data.DataLoader(
            dataset,
            batch_size=size,
            collate_fn=collate,
            num_workers=num_workers or 0,
            drop_last=bool(drop_last),
            **options,
        )

    def items() -> Iterable[list[Any]]:
        if not num_workers:
            return stream(list)
        return map(_unpacked, stream(_packed))

    return SampleSource(
        samples=samples,
        batch_size=size,
        shuffle=(not iterable) if shuffle is None else shuffle,
        drop_last=bool(drop_last),
        num_workers=num_workers or 0,
        fetch=fetcher(dataset, collate_fn),
        stream=stream,
        items=items,
        collate=collate_fn,
        loader_options=options,
    )


def _check(collate_fn: Any, **either: Any) -> None:
    for name, said in either.items():
        if said is not None and not isinstance(said, bool | np.bool_):
            raise errors.BadInput(f"{name}={said!r}: wanted True or False")
    if collate_fn is not None and not callable(collate_fn):
        raise errors.BadInput(f"collate_fn={collate_fn!r}: wanted a function from a list of samples to a batch")


def _of_stream(dataset: StreamDataset, batch_size: int, **given: Any) -> SampleSource:
    for name, value in given.items():
        if value:
            raise errors.BadInput(
                f"{name}= means nothing for a stream: its records come in the order of their offsets, and "
                "springtide.stream(decode=...) makes batches of them"
            )

    def none(*_: Any) -> Any:
        raise errors.BadInput("a stream has no samples with indices")

    return SampleSource(
        samples=None, batch_size=batch_size, shuffle=False, drop_last=False, num_workers=0, fetch=none, stream=none,
        items=none, collate=None, loader_options={}, online=dataset,
    )  # fmt: skip


def fetcher(dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> Fetch:
    """The quickest way this data set offers to read many samples at once."""
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
    return lambda indices: collate([dataset[index] for index in indices.tolist()])


def reads_batches(dataset: Any) -> bool:
    """Whether the data set has a `batch(indices)` of the kind meant here; others have methods of that name too."""
    method = getattr(dataset, "batch", None)
    if not callable(method):
        return False
    if not hasattr(dataset, "__getitem__"):
        return True  # there is no other way
    try:
        return next(iter(inspect.signature(method).parameters), "") in OF_INDICES
    except (TypeError, ValueError):  # a callable that says nothing of itself
        return False


def as_batch(collated: Any) -> Any:
    """A pair becomes a Batch (`batch.x`, `batch.y`, still a pair); anything else stays what collate made it."""
    if type(collated) in (tuple, list) and len(collated) == 2:
        return Batch(collated[0], collated[1])
    return collated


def _tolerant(fetch: Fetch) -> Fetch:
    def attempt(indices: Indices) -> Any:
        try:
            return fetch(indices)
        except Exception as error:  # whatever a user's data set may raise
            return UnreadableBatch(on_one_line(error))

    return attempt


def on_one_line(error: BaseException) -> str:
    """An error of the user's code in brief, with the deepest line of that code: not of a library that it called."""
    said = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in NOT_THE_USERS)]
    frame = (own or frames)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    line = f"{type(error).__name__}{': ' + said[0] if said else ''} ({place})"
    return line.encode(errors="backslashreplace").decode()  # names of files may hold what no message can carry


def _rows(tensor: torch.Tensor, indices: Indices) -> torch.Tensor:
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices) and (len(indices) < 3 or bool((np.diff(indices) == 1).all())):
        return tensor[first : last + 1].clone()  # as DataLoader does: a loop may write to its batch
    return tensor.index_select(0, torch.from_numpy(indices))


def _count(dataset: Any) -> int:
    named = isinstance(dataset, Mapping) and 0 not in dataset
    if named or isinstance(dataset, str | bytes | os.PathLike):
        raise errors.BadInput(
            f"the data set is a {type(dataset).__name__}: wanted samples by index. A file needs a reader, such as "
            "springtide.zoo.CriteoTsv(path); columns of tensors go into torch.utils.data.TensorDataset(x, y)"
        )
    if isinstance(dataset, tuple) and dataset and all(isinstance(one, torch.Tensor | np.ndarray) for one in dataset):
        raise errors.BadInput(
            f"the data set is a tuple of {len(dataset)} arrays: wanted samples by index. "
            "Wrap them: torch.utils.data.TensorDataset(x, y)"
        )
    if not hasattr(dataset, "__len__") or not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
        raise errors.BadInput(
            f"cannot train from a {type(dataset).__name__}: wanted a torch Dataset with __len__ and __getitem__ "
            "(or .batch(indices)), a DataLoader, or an IterableDataset"
        )
    count = len(dataset)
    if count == 0:
        raise errors.BadInput(f"the data set ({type(dataset).__name__}) is empty: len() is 0, wanted 1 or more samples")
    return count


def _from_loader(loader: "data.DataLoader[Any]") -> dict[str, Any]:
    if loader.batch_size is None:
        raise errors.BadInput(
            "this DataLoader batches by its own batch_sampler, which is not taken over: Springtide cuts batches, "
            "so that workers share them exactly once. Pass the data set and batch_size to job.prepare instead"
        )
    sampler = None if isinstance(loader.dataset, data.IterableDataset) else loader.sampler
    plain_random = (
        type(sampler) is data.RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if sampler is not None and type(sampler) is not data.SequentialSampler and not plain_random:
        raise errors.BadInput(
            f"this DataLoader has a {type(sampler).__name__}, which is not taken over: Springtide decides which worker "
            "trains which sample. Use shuffle=True or False, or apply the sampler's choice in the data set (Subset)"
        )
    options: dict[str, Any] = {"pin_memory": loader.pin_memory}
    if loader.num_workers > 0:
        options |= {
            "worker_init_fn": loader.worker_init_fn,
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
        }
    custom_collate = loader.collate_fn is not data.default_collate
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
    """A tensor on its way from a reader's process: as a tensor it would be a file to hand over, for every sample."""

    values: NDArray[Any]


def _packed(items: list[Any]) -> list[Any]:
    """Samples as a reader's process hands them over."""

    def pack(tensor: torch.Tensor) -> Any:
        try:
            return _Array(tensor.numpy())
        except (TypeError, RuntimeError):  # a kind that NumPy does not have
            return tensor

    return [_pytree.tree_map_only(torch.Tensor, pack, item) for item in items]


def _unpacked(items: list[Any]) -> list[Any]:
    return [_pytree.tree_map_only(_Array, lambda one: torch.from_numpy(one.values), item) for item in items]


class _Whole(data.Dataset[Any]):
    """One item is one mini-batch: its index is an array of sample indices."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def __getitem__(self, indices: Indices) -> Any:
        return self.fetch(indices) if len(indices) else None


class _Once(data.Sampler[Any]):
    """Hands index arrays on as they come; a DataLoader asks for them a little ahead of their use."""

    def __init__(self, indices: Iterable[Indices]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.indices)
