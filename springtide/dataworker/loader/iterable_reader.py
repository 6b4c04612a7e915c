"""Read batches of an IterableDataset with a single reader, each sample at most once.

In: an IterableDataset (loader.py). Out: its batches, each with the position reached. Next: the loop.

Batch k requires reading all batches before it, so data workers cannot share the work. No batch can be requested again,
so batches that a reader has read ahead are lost with the reader.
"""

import logging
from collections.abc import Iterator
from typing import Any

from torch.utils import data

from springtide.dataworker.loader.sampler import LoaderPosition

log = logging.getLogger(__name__)


class IterablePasses:
    """Passes over an IterableDataset, read in this process or in a single other process."""

    def __init__(self, dataset: Any, *, apart: bool, **options: Any) -> None:
        self._dataset = dataset
        self._options = {**options, "num_workers": int(apart)}
        log.warning(
            "%s has no indices: one reader reads it, and each sample comes at most once "
            "(what was read ahead is lost with a process)",
            type(dataset).__name__,
        )

    def __len__(self) -> int:
        return len(self._loader())

    def batches(self, place: LoaderPosition) -> Iterator[tuple[Any, LoaderPosition]]:
        """Yield all batches from a position to the end of its epoch; earlier batches are read and dropped."""
        if place.done:
            log.warning(
                "%s has no indices: the first %d batches are read and dropped to go on after them. That is exact only "
                "if it gives the same samples in the same order again",
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
