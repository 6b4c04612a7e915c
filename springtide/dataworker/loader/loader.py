"""`springtide.data.ElasticLoader`: a DataLoader whose number of workers can change during iteration.

In: a torch data set, and the arguments of a DataLoader. Out: the batches, and a state from which a loop can resume. The
order of batches is a function of (seed, epoch, step). sampler.py draws the samples, worker_pool.py has the data
workers, and collate.py makes a batch.
"""

import dataclasses
import functools
import inspect
import logging
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import data

from springtide import errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.loader import options
from springtide.dataworker.loader.collate import BatchMaker, CollatedBatch, pinned
from springtide.dataworker.loader.sampler import DrawnBatch, LoaderPosition, SampleOrder, UserSampler
from springtide.dataworker.loader.worker_pool import Autosize, WorkerPool
from springtide.domain.core.validation import takes_numbers
from springtide.domain.data.data_workers import Poison

log = logging.getLogger(__name__)

NAMED = 5  # most indices in an error message; error.indices and loader.skipped have all indices


class LoaderPass:
    """Iterator over batches that the loader can end. A loader has a single active iterator."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches, self._taken = batches, False

    def __iter__(self) -> "LoaderPass":
        return self

    def __next__(self) -> Any:
        if self._taken:
            raise errors.BadInput(
                "another loop over this ElasticLoader has begun and ended this one: a loader serves one loop at a "
                "time. Use a loader for each of two nested or zip(...)ed loops"
            )
        return next(self._batches)

    def end(self, *, taken: bool) -> None:
        """End the iteration. `taken`: another loop over the loader has begun, so the next step of this iterator
        raises."""
        self._taken = taken and inspect.getgeneratorstate(self._batches) != inspect.GEN_CLOSED
        self._batches.close()


class IterablePasses:
    """Passes over an IterableDataset, read in this process or in a single other process."""

    def __init__(self, dataset: Any, *, apart: bool, **options: Any) -> None:
        self._dataset = dataset
        self._options = {**options, "num_workers": int(apart)}
        log.warning(
            "%s has no indices: one process reads it, and if that process dies, its prefetched samples are lost",
            type(dataset).__name__,
        )

    def __len__(self) -> int:
        return len(self._loader())

    def batches(self, place: LoaderPosition) -> Iterator[tuple[Any, LoaderPosition]]:
        """Yield all batches from a position to the end of its epoch. Read and drop the batches before that position."""
        if place.done:
            log.warning(
                "%s has no indices: to resume, the first %d batches are read and dropped. This is exact only if the "
                "data set yields the same samples in the same order",
                type(self._dataset).__name__,
                place.done,
            )
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(place.epoch)
        for step, batch in enumerate(self._loader()):
            if step >= place.done:
                yield batch, LoaderPosition(place.epoch, step + 1)

    def _loader(self) -> "data.DataLoader[Any]":
        return data.DataLoader(self._dataset, **self._options)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch."""

    index: int
    epoch: int
    why: str


class ElasticLoader(options.BatchArguments, options.WorkerArguments):
    """DataLoader with elastic workers; `resize`, `state_dict` and `load_state_dict` work at any time.

    Arguments up to `in_order` are those of torch's DataLoader.

    num_workers: data workers at the start; "auto": the loader chooses and changes the number itself.
    seed: seed of the order of samples, which also depends on the epoch.
    on_error: "fail", or "skip" to leave out samples that raise an error.
    rank, world: the number of this process, and the number of processes that share each epoch; None: take both from
      torch.distributed.
    """

    @takes_numbers("self", "dataset", "sampler", "batch_sampler", "generator", "multiprocessing_context")
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
        on_error: Poison = "fail",
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        batching = batch_size is not None or batch_sampler is not None
        collate = collate_fn or (data.default_collate if batching else data.default_convert)
        options.BatchArguments.__init__(
            self, dataset, batch_size, bool(shuffle), sampler, batch_sampler, drop_last, generator, collate
        )
        starting = (worker_init_fn, multiprocessing_context, prefetch_factor, persistent_workers)
        options.WorkerArguments.__init__(self, pin_memory, timeout, *starting, pin_memory_device, in_order)
        self.check_batches()
        self.check_workers(num_workers, on_error)
        self.skipped: list[Skipped] = []
        """Samples that were left out, with `on_error="skip"`."""
        self._seed = seed if generator is None else _drawn_from(generator)
        self._on_error = on_error
        self._auto = Autosize(len(os.sched_getaffinity(0))) if num_workers == "auto" else None
        self._wanted = 0 if num_workers == "auto" else num_workers
        self._place = LoaderPosition(0, 0)
        self._next: LoaderPosition | None = self._place
        """Start of the next pass; None to start with the next epoch."""
        self._looped_s = 0.0
        self._pass: weakref.ref[LoaderPass] | None = None
        self._order: options.BatchOrder | None = None
        self._stream: IterablePasses | None = None
        self._pool: WorkerPool | None = None
        if isinstance(dataset, data.IterableDataset):
            self._stream = self._stream_of(num_workers, worker_init_fn, generator, multiprocessing_context)
            return
        self._order = self.batch_order(seed=self._seed, rank=rank, world=world)
        maker = functools.partial(BatchMaker, dataset, collate_fn, batched=self.makes_batches, on_error=on_error)
        self._pool = WorkerPool(dataset, maker, init=worker_init_fn, room=prefetch_factor, timeout_s=timeout or None)
        weakref.finalize(self, self._pool.dismiss)

    def __reduce__(self) -> Any:
        raise TypeError(
            "an ElasticLoader cannot be pickled or copied, because it has processes: create another one for the same "
            "data set, and load this loader's state_dict() there to continue"
        )

    def _stream_of(self, num_workers: int | str, init: Any, generator: Any, context: Any) -> IterablePasses:
        if self._on_error == "skip":
            raise errors.BadInput(
                'on_error="skip" needs a data set with indices: an IterableDataset cannot continue after an error'
            )
        apart = num_workers != 0
        return IterablePasses(
            self.dataset,
            apart=apart,
            batch_size=self.batch_size,
            collate_fn=self.collate_fn,
            drop_last=self.drop_last,
            generator=generator,
            timeout=self.timeout if apart else 0,
            worker_init_fn=init if apart else None,
            multiprocessing_context=context if apart else None,
        )

    def __len__(self) -> int:
        """Return the number of this rank's batches in an epoch."""
        return len(self._stream if self._stream is not None else self._order)  # type: ignore[arg-type]

    @property
    def num_workers(self) -> int:
        return self._wanted

    @property
    def workers(self) -> int:
        """Number of data workers that currently make batches. If 0, this process makes the batches."""
        return self._pool.state.workers if self._pool is not None else 0

    @property
    def pids(self) -> list[int]:
        return self._pool.pids if self._pool is not None else []

    @property
    def epoch(self) -> int:
        """The current epoch. Between two passes, the next epoch."""
        return (self._next or self._place).epoch

    @takes_numbers("self")
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. If a loaded state lies within that epoch, the pass continues there."""
        if isinstance(self._order, UserSampler):
            self._order.set_epoch(epoch)
        if self._next is None or self._next.epoch != epoch:
            self._next = LoaderPosition(epoch, 0)

    @takes_numbers("self")
    def resize(self, workers: int) -> None:
        """Change the number of data workers, also within an epoch. With 0, this process makes the batches."""
        options.check_worker_number(workers)
        self._auto = None
        self._resize(workers)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch of the loop, as plain values to save with the model."""
        state = options.written(options.kind_of(self._order), self._next or self._place, self._seed)
        return state | (self._order.state() if isinstance(self._order, UserSampler) else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next pass at this position. The number of workers, ranks and the batch size may differ."""
        reached, seed = options.read(state, options.kind_of(self._order))
        self._leave()
        if seed != self._seed and self._pool is not None:
            self._pool.dismiss()  # end the running data workers, because they use the old seed
        self._seed = seed
        if isinstance(self._order, SampleOrder):
            self._order = dataclasses.replace(self._order, seed=seed)
        elif self._order is not None:
            self._order.seed = seed
            self._order.load(dict(state))
        self._place = self._next = reached

    def close(self) -> None:
        """End all data workers. The loader stays usable; the next pass starts without data workers."""
        self._leave()
        if self._pool is not None:
            self._pool.dismiss()

    def __enter__(self) -> "ElasticLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        self._leave(taken=True)
        begin = self._next or LoaderPosition(self._place.epoch + 1, 0)
        self._next, self._place = None, begin
        running = LoaderPass(self._run(begin))
        self._pass = weakref.ref(running)
        return running

    def _leave(self, *, taken: bool = False) -> None:
        running = self._pass() if self._pass is not None else None
        self._pass = None
        if running is not None:
            running.end(taken=taken)

    def _run(self, begin: LoaderPosition) -> Generator[Any, None, None]:
        given = self._stream.batches(begin) if self._stream is not None else self._made(begin)
        for batch, reached in given:
            self._place = reached
            if batch is not None:
                yield pinned(batch) if self.pin_memory else batch
        self._place = self._next = LoaderPosition(begin.epoch + 1, 0)
        if isinstance(self._order, UserSampler):
            self._order.ended()
        if self._pool is not None and not self.persistent_workers:
            self._pool.dismiss()

    def _made(self, begin: LoaderPosition) -> Iterator[tuple[Any, LoaderPosition]]:
        """Yield the batches of a data set with indices. Yield None for a batch without usable samples."""
        assert self._order is not None and self._pool is not None
        last = time.monotonic()
        self._pool.resize(self._wanted)
        for answer, batch in self._pool.read(self._order.batches(begin), seed=self._seed):
            yield self._checked(answer, batch), batch.after
            now = time.monotonic()
            self._looped_s += now - last
            last = now
            self._retune(now)

    def _checked(self, answer: Any, drawn: DrawnBatch) -> Any:
        # the batch could not be sent, or killed every data worker that tried it
        if isinstance(answer, UnreadableBatch):
            made = CollatedBatch(None, drawn.indices.tolist(), [answer.error] * len(drawn.indices), "")
        else:
            made = CollatedBatch(*answer)
        if made.poison and self._on_error == "fail":
            error = errors.UnreadableSample(
                f"{made.why[0]}: sample {_named(made.poison)} of the data set cannot be read. Repair it, or pass "
                'on_error="skip" to leave such samples out and have them listed in loader.skipped',
                made.poison,
            )
            error.add_note(made.trace)
            raise error
        for index, why in zip(made.poison, made.why, strict=True):
            log.warning("sample %d is skipped: %s", index, why)
            self.skipped.append(Skipped(index, drawn.after.epoch, why))
        return made.batch

    def _retune(self, now: float) -> None:
        if self._auto is None or self._pool is None:
            return
        state = dataclasses.replace(self._pool.state, looped_s=self._looped_s)
        target = self._auto.propose(now, state)
        if target is not None and target.data_workers != self._wanted:
            log.info("%d data workers: %s", target.data_workers, target.why)
            self._resize(target.data_workers)

    def _resize(self, workers: int) -> None:
        self._wanted = workers
        if self._pool is not None:
            self._pool.resize(workers)


def _drawn_from(generator: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _named(indices: list[int]) -> str:
    more = len(indices) - NAMED
    return ", ".join(map(str, indices[:NAMED])) + (f" and {more} more" if more > 0 else "")
