"""Makes a batch from its indices. On an error, finds the unreadable samples one by one, to skip or report them.

In: indices (sampler.py). Out: a `CollatedBatch` in the trainer's process; a data worker sends it as a plain tuple.
"""

import contextlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory

from springtide.data import source
from springtide.dataworker.loader.sampler import Indices
from springtide.domain.data.data_workers import Poison


class CollatedBatch(NamedTuple):
    """A batch, and a list of the samples that could not be read."""

    batch: Any
    """The batch; None if no sample could be read."""
    poison: list[int]
    """Indices of the samples that are missing from the batch."""
    why: list[str]
    """The errors of all missing samples, one line for each sample."""
    trace: str
    """The traceback of the first error; empty without errors."""


class BatchMaker:
    """Callable that takes the indices of a batch, and returns the fields of a `CollatedBatch`."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None = None,
        *,
        batched: bool = True,
        on_error: Poison = "fail",
        begin: Callable[[], None] | None = None,
    ) -> None:
        self._dataset = dataset
        self._batched = batched
        self._collate = collate_fn or (data.default_collate if batched else data.default_convert)
        self._plain = batched and collate_fn is None
        self._on_error = on_error
        self._begin = begin
        """Function that runs once per process, before the first batch."""

    def __call__(self, indices: Indices) -> tuple[Any, list[int], list[str], str]:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()
        # the user's data set may raise anything; `_salvaged` repeats the call and reports the error
        with contextlib.suppress(Exception):
            return CollatedBatch(self._whole(indices), [], [], "")[:]
        return self._salvaged(indices)[:]  # outside the `with`, so that its errors do not chain to the first error

    def _whole(self, indices: Indices) -> Any:
        dataset = self._dataset
        if self._plain:
            if source.reads_batches(dataset):
                return dataset.batch(indices)
            if type(dataset) is data.TensorDataset:
                chosen = torch.from_numpy(indices)
                return [tensor.index_select(0, chosen) for tensor in dataset.tensors]
        if not self._batched:
            return self._collate(dataset[int(indices[0])])
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            return self._collate(dataset.__getitems__(indices.tolist()))
        return self._collate([dataset[index] for index in indices.tolist()])

    def _salvaged(self, indices: Indices) -> CollatedBatch:
        good: list[int] = []
        bad: dict[int, str] = {}
        trace = ""
        for index in indices.tolist():
            try:
                self._whole(np.array([index], dtype=np.int64))
                good.append(index)
            except Exception as error:  # the user's data set may raise anything
                bad[index] = source.on_one_line(error)
                trace = trace or _trace(error)
                if self._on_error == "fail":
                    return CollatedBatch(None, list(bad), list(bad.values()), trace)
        try:
            batch = self._whole(np.array(good, dtype=np.int64)) if good else None
            return CollatedBatch(batch, list(bad), list(bad.values()), trace)
        except Exception as error:  # collating the remaining samples may raise too
            bad |= dict.fromkeys(good, f"cannot collate it with other samples: {source.on_one_line(error)}")
            return CollatedBatch(None, list(bad), list(bad.values()), trace or _trace(error))


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def pinned(batch: Any) -> Any:
    return pin_memory(batch) if torch.cuda.is_available() else batch
