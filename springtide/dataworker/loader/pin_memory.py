"""Page-locked memory for a batch, so that it goes to a GPU while the program runs on.

In: a batch that the loop is about to get (loader.py, `pin_memory=True`). Out: the same tree, tensors pinned. Without a
GPU there is nothing to gain, and the batch stays as it is.
"""

from collections.abc import Mapping
from typing import Any

import torch


def pinned(batch: Any) -> Any:
    """The batch with its tensors in page-locked memory, where a GPU is there to read it."""
    return _pin(batch) if torch.cuda.is_available() else batch


def _pin(item: Any) -> Any:
    if hasattr(item, "pin_memory"):  # tensors, and what its author gave such a method
        return item.pin_memory()
    if isinstance(item, Mapping):
        return type(item)({key: _pin(value) for key, value in item.items()})  # type: ignore[call-arg]
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(_pin(part) for part in item))
    if isinstance(item, list | tuple):
        return type(item)(_pin(part) for part in item)
    return item
