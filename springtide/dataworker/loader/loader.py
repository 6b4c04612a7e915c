"""`springtide.data.ElasticLoader`: a DataLoader whose workers come and go while it is iterated over.

In: a torch data set and a DataLoader's arguments. Out: its batches, in an order that is a function of (seed, epoch,
step), made by as many data workers as there are at the time, and a state to go on from. Next: sampler.py draws,
dataworker/processes/supervisor.py keeps data workers, dataworker/feed/feed.py shares the batches out among them,
collate.py makes one.
"""

import dataclasses
import functools
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import data

from springtide import errors
from springtide.data.source import UnreadableBatch
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.loader import loader_state, options
from springtide.dataworker.loader.autosize import Autosize
from springtide.dataworker.loader.collate import Made, Making
from springtide.dataworker.loader.custom_sampler import OwnSampler
from springtide.dataworker.loader.iterable_reader import Streamed
from springtide.dataworker.loader.passes import Pass
from springtide.dataworker.loader.pin_memory import pinned
from springtide.dataworker.loader.sampler import Drawn, Order, Place
from springtide.dataworker.loader.worker_manager import Staff
from springtide.domain.core.plain_numbers import takes_numbers
from springtide.domain.data.data_workers import Poison

log = logging.getLogger(__name__)

NAMED = 5  # indices that a message names; all are in error.indices and loader.skipped


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch."""

    index: int
    epoch: int
    why: str


class ElasticLoader:
    """Iterate over it as over torch's DataLoader; `resize`, `state_dict` and `load_state_dict` at any time."""

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
        self.dataset = dataset
        self.batch_size, self.shuffle, self.drop_last = batch_size, bool(shuffle), drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn: Callable[[Any], Any] = collate_fn or options.usual_collate(self)
        self.pin_memory, self.timeout = pin_memory, timeout
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.generator, self.prefetch_factor, self.persistent_workers = generator, prefetch_factor, persistent_workers
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        """Taken as DataLoader takes them: the first is deprecated there, and batches come in order here whatever."""
        self.skipped: list[Skipped] = []
        """Samples that were left out, with `on_error="skip"`."""
        options.check(self)
        _check_numbers(num_workers, timeout, prefetch_factor, on_error)
        self._seed = seed if generator is None else _drawn_from(generator)
        self._on_error = on_error
        self._auto = Autosize(len(os.sched_getaffinity(0))) if num_workers == "auto" else None
        self._wanted = 0 if num_workers == "auto" else num_workers
        self._place = Place(0, 0)
        self._next: Place | None = self._place
        """Where the next pass begins; None: with the epoch after the one that was left."""
        self._looped_s = 0.0
        self._pass: weakref.ref[Pass] | None = None
        self._order: options.BatchOrder | None = None
        self._stream: Streamed | None = None
        self._staff: Staff | None = None
        if isinstance(dataset, data.IterableDataset):
            self._stream = self._stream_of(num_workers, worker_init_fn, generator, multiprocessing_context)
            return
        self._order = options.order_of(self, seed=self._seed, rank=rank, world=world)
        batched = batch_size is not None or batch_sampler is not None
        making = functools.partial(Making, dataset, collate_fn, batched=batched, on_error=on_error)
        self._making = making()
        self._staff = Staff(dataset, making, init=worker_init_fn, room=prefetch_factor, timeout_s=timeout or None)
        weakref.finalize(self, self._staff.dismiss)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in options.FIXED and name in vars(self):
            raise errors.BadInput(f"{name} cannot be changed once a loader is made: make another with {name}={value!r}")
        super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        raise TypeError(
            "an ElasticLoader holds processes and cannot be pickled or copied: make one where it is used, of the same "
            "data set, and give it this one's state_dict() to go on from there"
        )

    def _stream_of(self, num_workers: int | str, init: Any, generator: Any, context: Any) -> Streamed:
        if self._on_error == "skip":
            raise errors.BadInput(
                'on_error="skip" needs a data set with indices; an IterableDataset that raises has ended'
            )
        apart = num_workers != 0
        return Streamed(
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
        """Batches of an epoch; of this rank."""
        if self._stream is not None:
            return len(self._stream)
        assert self._order is not None
        return options.length(self._order)

    @property
    def num_workers(self) -> int:
        """Data workers that are wanted."""
        return self._wanted

    @property
    def workers(self) -> int:
        """Data workers that make batches now; with none, this process makes them."""
        return self._staff.state.workers if self._staff is not None else 0

    @property
    def pids(self) -> list[int]:
        """Processes of data workers that are there now."""
        crew = self._staff.crew if self._staff is not None else None
        return crew.pids if crew is not None else []

    @property
    def epoch(self) -> int:
        """The epoch under way, or the one that comes next."""
        return (self._next or self._place).epoch

    @takes_numbers("self")
    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch. Where a loaded state is in the middle of it, it goes on there."""
        if isinstance(self._order, OwnSampler):
            self._order.set_epoch(epoch)
        if self._next is None or self._next.epoch != epoch:
            self._next = Place(epoch, 0)

    @takes_numbers("self")
    def resize(self, workers: int) -> None:
        """So many data workers from now on, also in the middle of an epoch; 0: this process makes its batches."""
        _check_numbers(workers, 0, None, "fail")
        self._auto = None
        self._resize(workers)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: after the batch that it had last. Plain values; goes with the model's own state."""
        state = loader_state.written(options.kind_of(self._order), self._next or self._place, self._seed)
        return state | (self._order.state() if isinstance(self._order, OwnSampler) else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass begins there. The number of workers, ranks and the size of batches may be others."""
        reached, seed = loader_state.read(state, options.kind_of(self._order))
        self._leave()
        if seed != self._seed and self._staff is not None:
            self._staff.dismiss()  # data workers draw random numbers by the seed
        self._seed = seed
        if isinstance(self._order, Order):
            self._order = dataclasses.replace(self._order, seed=seed)
        elif self._order is not None:
            self._order.seed = seed
            self._order.load(dict(state))
        self._place = self._next = reached

    def close(self) -> None:
        """End all data workers. The loader can be used again: it begins with none."""
        self._leave()
        if self._staff is not None:
            self._staff.dismiss()

    def __enter__(self) -> "ElasticLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        self._leave(taken=True)
        begin = self._next or Place(self._place.epoch + 1, 0)
        self._next, self._place = None, begin
        running = Pass(self._run(begin))
        self._pass = weakref.ref(running)
        return running

    def _leave(self, *, taken: bool = False) -> None:
        """End a pass that is still under way: there is one at a time. `taken`: another begins."""
        running = self._pass() if self._pass is not None else None
        self._pass = None
        if running is not None:
            running.end(taken=taken)

    def _run(self, begin: Place) -> Generator[Any, None, None]:
        given = self._stream.batches(begin) if self._stream is not None else self._made(begin)
        for batch, reached in given:
            self._place = reached
            if batch is not None:
                yield pinned(batch) if self.pin_memory else batch
        self._place = self._next = Place(begin.epoch + 1, 0)
        if isinstance(self._order, OwnSampler):
            self._order.ended()
        if self._staff is not None and not self.persistent_workers:
            self._staff.dismiss()

    def _made(self, begin: Place) -> Iterator[tuple[Any, Place]]:
        """The batches of an indexable data set; None for one of which nothing is left."""
        assert self._order is not None and self._staff is not None
        under_way: deque[Drawn] = deque()
        last = time.monotonic()

        def drawn() -> Iterator[Drawn]:
            assert self._order is not None
            for one in self._order.batches(begin):
                under_way.append(one)
                yield one

        self._staff.resize(self._wanted)
        for answer in self._staff.read(drawn(), self._own, seed=self._seed):
            one = under_way.popleft()
            yield self._checked(answer, one), one.after
            now = time.monotonic()
            self._looped_s += now - last
            last = now
            self._retune(now)

    def _own(self, one: Drawn) -> Any:
        """Made in this process, with the random numbers that a data worker would have."""
        with batch_rng.seeded(self._seed, one.name):
            return self._making(one.indices)

    def _checked(self, answer: Any, one: Drawn) -> Any:
        if isinstance(answer, UnreadableBatch):  # it could not be sent, or killed everyone who tried
            made = Made(None, one.indices.tolist(), [answer.error] * len(one.indices), "")
        else:
            made = Made(*answer)
        if made.poison and self._on_error == "fail":
            error = errors.UnreadableSample(
                f"{made.why[0]}: sample {_named(made.poison)} of the data set cannot be made. Mend it, or pass "
                'on_error="skip" to leave such samples out and have them listed in loader.skipped',
                made.poison,
            )
            error.add_note(made.trace)
            raise error
        for index, why in zip(made.poison, made.why, strict=True):
            log.warning("sample %d is left out: %s", index, why)
            self.skipped.append(Skipped(index, one.after.epoch, why))
        return made.batch

    def _retune(self, now: float) -> None:
        if self._auto is None or self._staff is None:
            return
        state = dataclasses.replace(self._staff.state, looped_s=self._looped_s)
        target = self._auto.told(now, state)
        if target is not None and target.data_workers != self._wanted:
            log.info("%d data workers: %s", target.data_workers, target.why)
            self._resize(target.data_workers)

    def _resize(self, workers: int) -> None:
        self._wanted = workers
        if self._staff is not None:
            self._staff.resize(workers)


def _drawn_from(generator: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _named(indices: list[int]) -> str:
    more = len(indices) - NAMED
    return ", ".join(map(str, indices[:NAMED])) + (f" and {more} more" if more > 0 else "")


def _check_numbers(workers: Any, timeout: float, prefetch: int | None, on_error: str) -> None:
    if workers != "auto" and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
        raise errors.BadInput(f'num_workers={workers!r}: wanted 0 or more, or "auto"')
    if timeout < 0:
        raise errors.BadInput(f"timeout={timeout}: wanted seconds, or 0 to wait as long as it takes")
    if prefetch is not None and prefetch < 1:
        raise errors.BadInput(f"prefetch_factor={prefetch}: wanted 1 or more batches a data worker, or None")
    if on_error not in ("fail", "skip"):
        raise errors.BadInput(f'on_error={on_error!r}: wanted "fail" or "skip"')
