"""Use a user's sampler as the order of batches, and repeat its draws when a run resumes.

In: `sampler=` or `batch_sampler=` of loader.py. Out: `DrawnBatch`es, as from sampler.py. Next: loader.py.

The sampler's draws from torch's, NumPy's or Python's global generators are a function of (seed, epoch). A generator of
its own continues as in a DataLoader, and its state at the start of an epoch is saved.

To resume within an epoch, the sampler draws again, and consumed batches are dropped. A checksum shows whether the
sampler repeated itself.
"""

import base64
import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from springtide import errors
from springtide.dataworker.feed import batch_rng
from springtide.dataworker.loader.sampler import DrawnBatch, Indices, LoaderPosition
from springtide.domain.data.data_workers import BatchName


class UserSampler:
    """Batches from the indices of a sampler or, with `batch_size` None, of a batch sampler."""

    def __init__(
        self, sampler: Iterable[Any], *, batch_size: int | None, drop_last: bool = False, seed: int = 0
    ) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.seed = seed
        self._generator_began: str | None = None

    def __len__(self) -> int:
        try:
            count = len(self._sampler)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(
                f"len(loader) is not known: its sampler ({type(self._sampler).__name__}) has no len()"
            ) from None
        if self._batch_size is None:
            return count
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to a sampler with `set_epoch`."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def batches(self, place: LoaderPosition) -> Iterator[DrawnBatch]:
        """Yield all batches from a position to the end of its epoch."""
        generator = self._generator()
        self._generator_began = None if generator is None else _written(generator)
        mark = 0
        for step, indices in enumerate(self._draw(place.epoch)):
            mark = zlib.crc32(indices.tobytes(), mark)
            after = LoaderPosition(place.epoch, step + 1, mark)
            if step >= place.done:
                yield DrawnBatch(indices, BatchName(place.epoch, 0, step, len(indices)), after)
            elif step + 1 == place.done and mark != place.mark:
                raise errors.BadInput(
                    f"{type(self._sampler).__name__} did not repeat itself: its first {place.done} batches are not "
                    "those that were consumed before, so going on would repeat samples and lose others. Give it a "
                    "seeded generator, let it draw from torch's random numbers, or begin the epoch anew"
                )

    def state(self) -> dict[str, Any]:
        """Return the extra state that is needed to repeat the current epoch, as plain values."""
        epoch = getattr(self._sampler, "epoch", None)
        generator = self._generator()
        began = self._generator_began or (None if generator is None else _written(generator))
        return {"sampler_epoch": epoch if isinstance(epoch, int) else None, "sampler_generator": began}

    def load(self, state: dict[str, Any]) -> None:
        """Make the next `batches` repeat the epoch of this state."""
        if state.get("sampler_epoch") is not None:
            self.set_epoch(int(state["sampler_epoch"]))
        generator, began = self._generator(), state.get("sampler_generator")
        if generator is not None and began is not None:
            raw = np.frombuffer(base64.b85decode(began), dtype=np.uint8)
            generator.set_state(torch.from_numpy(raw.copy()))

    def ended(self) -> None:
        """End the epoch: later states belong to the next epoch."""
        self._generator_began = None

    def _draw(self, epoch: int) -> Iterator[Indices]:
        strand = batch_rng.Strand(self.seed, (epoch,))
        with strand.on():
            given = iter(self._sampler)
        while True:
            with strand.on():
                if self._batch_size is None:
                    taken = next(given, None)
                else:
                    taken = list(itertools.islice(given, self._batch_size)) or None
            if taken is None or (self._drop_last and self._batch_size and len(taken) < self._batch_size):
                return
            yield self._indices(taken)

    def _indices(self, taken: Any) -> Indices:
        try:
            found = np.array([operator.index(index) for index in taken], dtype=np.int64)
        except (TypeError, OverflowError) as error:
            raise errors.BadInput(
                f"{type(self._sampler).__name__} gave {str(taken)[:80]!r}: wanted integers that index the data set "
                f"({'each batch a list of them' if self._batch_size is None else 'one at a time'})"
            ) from error
        if not len(found):
            raise errors.BadInput(f"{type(self._sampler).__name__} gave an empty batch: wanted 1 or more indices")
        return found

    def _generator(self) -> torch.Generator | None:
        for holder in (self._sampler, getattr(self._sampler, "sampler", None)):
            if isinstance(found := getattr(holder, "generator", None), torch.Generator):
                return found
        return None


def _written(generator: torch.Generator) -> str:
    return base64.b85encode(generator.get_state().numpy().tobytes()).decode()
