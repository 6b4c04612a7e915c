"""Extract the ids of each sample of a batch by table, for the sample scheduler.

In: the lookup calls that a batch will make (embedding/lookup/lookup.py). Out: `FeatureIds`, contiguous copies that
outlive the batch. Next: embedding/schedule/scheduler.py.
"""

import ctypes
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from springtide.embedding.lookup.calls import Bag, Ids, LookupCall, LookupFeature
from springtide.embedding.schedule.scheduler import FeatureIds

Keys = npt.NDArray[np.int64]
ID_BYTES = 8


def of_calls(calls: Iterable[LookupCall], samples: int) -> list[FeatureIds] | None:
    """Return the ids of all features of these calls; None if ids cannot be assigned to samples (rows of the batch)."""
    found = []
    for call in calls:
        for feature, ids, bag, place in zip(call.features, call.ids, call.bags, call.places, strict=True):
            one = _of_feature(feature, ids, bag, call.shapes[place[0]][0], samples)
            if one is None:
                return None
            found.append(one)
    return found


def in_units(features: Iterable[FeatureIds], samples: int, unit: int) -> list[FeatureIds]:
    """Group every `unit` samples into one; the last group may be smaller."""
    if unit == 1:
        return list(features)
    bounds = np.append(np.arange(0, samples, unit), samples)
    return [FeatureIds(one.table, one.ids, bounds if one.offsets is None else one.offsets[bounds]) for one in features]


def _of_feature(feature: LookupFeature, ids: Ids, bag: Bag, rows: int, samples: int) -> FeatureIds | None:
    """Return the ids of one feature by sample; `rows` is the output's first dimension, not always the batch."""
    values = _at(*ids)
    _, bags, _, address, closed, _ = bag
    if address:
        if bags != samples:
            return None
        begins = _at(address, bags + closed, 1)
        offsets: Keys | None = begins if closed else np.append(begins, len(values))
    elif samples and rows == samples:
        each = len(values) // samples
        offsets = None if each == 1 else np.arange(samples + 1, dtype=np.int64) * each
    else:
        return None
    if feature.padding is not None and not feature.pull_padding:
        return _without(feature.table.spec.id, values, offsets, feature.padding)
    return FeatureIds(feature.table.spec.id, values, offsets)


def _without(table: int, values: Keys, offsets: Keys | None, padding: int) -> FeatureIds:
    wanted = values != padding
    if wanted.all():
        return FeatureIds(table, values, offsets)
    before = np.concatenate([[0], np.cumsum(wanted)])
    ends = np.arange(len(values) + 1) if offsets is None else offsets
    return FeatureIds(table, values[wanted], before[ends])


def _at(address: int, count: int, stride: int) -> Keys:
    if not count:
        return np.empty(0, dtype=np.int64)
    cells = (ctypes.c_int64 * ((count - 1) * stride + 1)).from_address(address)
    lying = np.frombuffer(memoryview(cells), dtype=np.int64)
    return lying[::stride].copy() if stride else np.repeat(lying, count)
