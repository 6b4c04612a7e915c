"""Check the arguments of `ElasticLoader`, named as in torch's DataLoader, and derive the order of batches.

In: the arguments of loader.py. Out: attributes of the loader, and the order of its batches. Next: loader.py.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import data

from springtide import errors
from springtide.data import shards
from springtide.dataworker.loader.sampler import LoaderPosition, SampleOrder, UserSampler

FORMAT = 1


def kind_of(order: "BatchOrder | None") -> dict[str, Any]:
    """Return the kind of a loader. Loaders of the same kind have the same order, so a position saved by one loader is
    valid for the other. `order` is None for an IterableDataset.

    `unit` is the unit of `LoaderPosition.done`: samples of an indexable data set, or batches of a user's sampler or a
    stream.
    """
    if isinstance(order, SampleOrder):
        kind = {"unit": "samples", "samples": order.samples, "shuffle": order.shuffle}
        return kind if order.groups is None else {**kind, "row_groups": order.groups.checksum}
    return {"unit": "batches read" if order is None else "batches", "samples": None, "shuffle": False}


def written(kind: Mapping[str, Any], place: LoaderPosition, seed: int) -> dict[str, Any]:
    """Return a state as plain values, for torch.save or JSON."""
    return {"format": FORMAT, **kind, "seed": seed, **place._asdict()}


def read(state: Mapping[str, Any], kind: Mapping[str, Any]) -> tuple[LoaderPosition, int]:
    """Return position and seed of a state. Raise an error if the state belongs to a different kind of loader."""
    given = state.get("format") if isinstance(state, Mapping) else type(state).__name__
    if given != FORMAT:
        raise errors.BadInput(
            f"this state has format {given!r}: expected {FORMAT}, as ElasticLoader.state_dict() gives it. "
            "States of other loaders cannot be loaded"
        )
    for what, mine in kind.items():
        if state.get(what) != mine:
            raise errors.BadInput(
                f"this state was saved by a loader with {what}={state.get(what)!r}, and is loaded into one with "
                f"{what}={mine!r}: continuing would repeat some samples and lose others. Use the same data set, "
                "sampler and shuffle; batch size, ranks and number of workers may differ"
            )
    numbers = [state.get(what, 0 if what == "mark" else None) for what in ("epoch", "done", "mark", "seed")]
    if not all(isinstance(number, int) for number in numbers):
        raise errors.BadInput(
            f"this state has epoch {numbers[0]!r}, done {numbers[1]!r}, mark {numbers[2]!r}, seed {numbers[3]!r}: "
            "expected whole numbers, as ElasticLoader.state_dict() gives them; it may have been changed"
        )
    *reached, seed = numbers
    place = LoaderPosition(*reached)
    if place.epoch < 0 or place.done < 0 or (kind["samples"] is not None and place.done > kind["samples"]):
        raise errors.BadInput(
            f"this state is at {place.done} {kind['unit']} of epoch {place.epoch}, which is outside the epoch"
        )
    return place, seed


BatchOrder = SampleOrder | UserSampler


FIXED = frozenset({"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn"})
"""Arguments that cannot change later; DataLoader refuses most of these changes too."""


@dataclass(slots=False, eq=False)
class BatchArguments:
    """DataLoader arguments that determine the samples of each batch, as attributes of the loader."""

    dataset: Any
    batch_size: int | None
    shuffle: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    drop_last: bool
    generator: torch.Generator | None
    collate_fn: Callable[[Any], Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and name in vars(self):
            raise errors.BadInput(f"{name} of a loader cannot be changed: create another loader with {name}={value!r}")
        super().__setattr__(name, value)

    def check_batches(self) -> None:
        size = self.batch_size
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise errors.BadInput(
                f"batch_size={size!r}: expected a whole number, 1 or more, or None for samples as they are"
            )
        if self.batch_sampler is not None and (size != 1 or self.shuffle or self.sampler is not None or self.drop_last):
            raise errors.BadInput(
                "batch_sampler= makes the batches, so batch_size, shuffle, sampler and drop_last must be left out"
            )
        if self.sampler is not None and self.shuffle:
            raise errors.BadInput("sampler= decides the order, so shuffle=True must be left out")
        if size is None and self.drop_last:
            raise errors.BadInput("batch_size=None makes no batches, so drop_last=True has no meaning: leave it out")
        ordered = self.shuffle or self.sampler is not None or self.batch_sampler is not None
        if isinstance(self.dataset, data.IterableDataset) and ordered:
            raise errors.BadInput(
                f"{type(self.dataset).__name__} is an IterableDataset: it has its own order, so shuffle, sampler and "
                "batch_sampler must be left out"
            )

    @property
    def makes_batches(self) -> bool:
        """False if batch_size is None, because the loader then yields single samples."""
        return self.batch_size is not None or self.batch_sampler is not None

    def batch_order(self, *, seed: int, rank: int | None, world: int | None) -> BatchOrder:
        if self.batch_sampler is not None:
            return UserSampler(self.batch_sampler, batch_size=None, seed=seed)
        if self.sampler is not None:
            return UserSampler(self.sampler, batch_size=self.batch_size or 1, drop_last=self.drop_last, seed=seed)
        if not hasattr(self.dataset, "__len__"):
            raise errors.BadInput(
                f"{type(self.dataset).__name__} has no len(): expected a data set with __len__ and __getitem__ (or "
                "batch(indices)), a sampler=, or an IterableDataset"
            )
        rank, world = _place_among_ranks(rank, world)
        return SampleOrder(
            samples=len(self.dataset),
            batch_size=1 if self.batch_size is None else self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            seed=seed,
            rank=rank,
            world=world,
            groups=shards.row_groups(self.dataset),
        )


@dataclass(slots=False, eq=False)
class WorkerArguments:
    """DataLoader arguments that concern the worker processes, as attributes of the loader."""

    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    """Accepted for compatibility, and ignored: deprecated in DataLoader."""
    in_order: bool
    """Accepted for compatibility, and ignored: batches always come in order."""

    def check_workers(self, workers: Any, on_error: str) -> None:
        check_worker_number(workers)
        context, methods = self.multiprocessing_context, multiprocessing.get_all_start_methods()
        if isinstance(context, str) and context not in methods:
            raise errors.BadInput(f"multiprocessing_context={context!r}: expected one of {', '.join(methods)}")
        if self.timeout < 0:
            raise errors.BadInput(f"timeout={self.timeout}: expected seconds, or 0 to wait as long as it takes")
        prefetch = self.prefetch_factor
        if prefetch is not None and prefetch < 1:
            raise errors.BadInput(f"prefetch_factor={prefetch}: expected 1 or more batches a data worker, or None")
        if on_error not in ("fail", "skip"):
            raise errors.BadInput(f'on_error={on_error!r}: expected "fail" or "skip"')


def check_worker_number(workers: Any) -> None:
    if workers != "auto" and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
        raise errors.BadInput(f'num_workers={workers!r}: expected 0 or more, or "auto"')


def _place_among_ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return group.get_rank(), group.get_world_size()
        return 0, 1
    if world is None or (rank is None and world != 1):
        raise errors.BadInput(
            f"rank={rank}, world={world}: expected both, or neither to take them from torch.distributed"
        )
    return rank or 0, world
