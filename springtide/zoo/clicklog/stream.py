"""Generated click log as a stream: fixed-width records for producers, and a decoder for jobs.

In: `LogSpec`. Out: `Clicks` makes records for `data.stream.produce`; `decoder()` yields (ClickBatch, labels).
"""

import dataclasses

import numpy as np

from springtide.data.stream.decode import Field, Fixed
from springtide.data.stream.records import Bytes
from springtide.zoo.batches import ClickBatch
from springtide.zoo.clicklog.clicklog import Generator
from springtide.zoo.clicklog.spec import LogSpec


def fields(spec: LogSpec | None = None) -> dict[str, Field]:
    """Return the fields of a record: counters, ids and the click."""
    spec = spec or LogSpec()
    return {"dense": ("f4", spec.dense), "sparse": ("i8", len(spec.cardinalities)), "click": "f4"}


def decoder(spec: LogSpec | None = None) -> Fixed:
    """Return the decoder for `springtide.stream(url, decode=...)`: batches of (ClickBatch, labels)."""
    return Fixed(fields(spec), to=lambda found: (ClickBatch(found["dense"], found["sparse"]), found["click"]))


class Clicks:
    """Records of the log: record i is sample i. The truth drifts with the log's own time, not with the wall clock."""

    def __init__(self, spec: LogSpec | None = None, *, seed: int = 0) -> None:
        self._generator = Generator(dataclasses.replace(spec or LogSpec(), seed=seed))
        self._type = Fixed(fields(self._generator.spec)).dtype

    def take(self, first: int, count: int) -> Bytes:
        made = self._generator.between(first, first + count)
        rows = np.empty(count, self._type)
        rows["dense"], rows["sparse"], rows["click"] = made.dense, made.sparse, made.click
        return rows.view(np.uint8).reshape(count, self._type.itemsize)
