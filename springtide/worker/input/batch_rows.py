"""Takes samples out of a whole batch: by rows if possible, and otherwise by reading the samples again.

In: the group's batch, and the positions of some of its samples. Out: the batch that this rank trains.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from springtide.data.source import SampleSource, as_batch

Indices = NDArray[np.int64]


class NotRows(Exception):
    """Error for a batch that does not have one row per sample."""


class SamplePicker(Protocol):
    """Picker that extracts samples from whole batches."""

    def fetch(self, samples: Indices) -> Any: ...

    def pick(self, batch: Any, samples: Indices, places: Indices, *, jagged: bool) -> Any:
        """Return the batch of the samples at these positions. With `jagged`, the batch does not have one row per
        sample."""
        ...


class SourcePicker:
    """Picker that reads samples of a data set, or takes samples from a batch."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source

    def fetch(self, samples: Indices) -> Any:
        return as_batch(self._source.fetch(samples))

    def pick(self, batch: Any, samples: Indices, places: Indices, *, jagged: bool) -> Any:
        """Return a smaller batch with only the samples at `places` of this batch.


        Take rows if every tensor is as long as the batch and none contains offsets (`jagged`). Otherwise read the
        samples again.
        """
        if self._source.rowwise and not jagged:
            try:
                return rows_of(batch, len(samples), torch.from_numpy(places))
            except NotRows:
                pass
        return self.fetch(samples[places])


def rows_of(batch: Any, samples: int, places: torch.Tensor) -> Any:
    if isinstance(batch, torch.Tensor):
        if batch.dim() == 0 or batch.shape[0] != samples:
            raise NotRows
        return batch.index_select(0, places)
    if isinstance(batch, Mapping):
        return {key: rows_of(value, samples, places) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rows_of(value, samples, places) for value in batch))
    if isinstance(batch, tuple | list):
        if batch and len(batch) == samples and not any(isinstance(item, torch.Tensor) for item in batch):
            return type(batch)(batch[place] for place in places.tolist())
        return type(batch)(rows_of(value, samples, places) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        return dataclasses.replace(batch, **{name: rows_of(getattr(batch, name), samples, places) for name in names})
    raise NotRows
