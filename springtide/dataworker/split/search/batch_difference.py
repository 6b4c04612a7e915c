"""Compare a batch from a data worker with the same samples read in the trainer.

Used by: worker/split/controller.py, for a random share of batches.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from springtide.dataworker.split.program.payload import LeftTensor
from springtide.dataworker.split.recorder import bit_compare


def first(mine: Any, theirs: Any, path: str = "batch") -> str:
    """Return the path of the first part that differs in any bit; empty if all are equal. Parts that were not sent are
    skipped.
    """
    if isinstance(theirs, LeftTensor):
        return ""
    if isinstance(mine, torch.Tensor):
        return "" if isinstance(theirs, torch.Tensor) and bit_compare.same(mine, theirs) else path
    if isinstance(mine, np.ndarray):
        same = isinstance(theirs, np.ndarray) and mine.dtype == theirs.dtype and mine.shape == theirs.shape
        return "" if same and mine.tobytes() == theirs.tobytes() else path
    if isinstance(mine, Mapping):
        if not isinstance(theirs, Mapping) or list(mine) != list(theirs):
            return path
        return _any((first(one, theirs[key], f"{path}[{key!r}]") for key, one in mine.items()))
    if isinstance(mine, tuple | list):
        if not isinstance(theirs, tuple | list) or len(mine) != len(theirs):
            return path
        return _any((first(one, theirs[at], f"{path}[{at}]") for at, one in enumerate(mine)))
    if dataclasses.is_dataclass(mine) and not isinstance(mine, type):
        names = [field.name for field in dataclasses.fields(mine)]
        return _any(first(getattr(mine, one), getattr(theirs, one, None), f"{path}.{one}") for one in names)
    equal = mine == theirs or (mine != mine and theirs != theirs)
    return "" if type(mine) is type(theirs) and bool(equal) else path


def _any(found: Any) -> str:
    return next((one for one in found if one), "")
