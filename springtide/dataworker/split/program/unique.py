"""Run torch.unique of integers natively in data workers: bit-identical, in a fraction of the time.

In: a recorded call of unique. dataworker/split/program/moved_program.py replaces it by a function of this module.
Models often deduplicate sparse features. torch sorts by comparison; cpp/batch/distinct.cpp counts, or uses a radix
sort. All other cases go to torch.
"""

from collections.abc import Callable
from typing import Any

import torch

from springtide import _native

FEWEST, MOST = 1024, 1 << 31  # below this number of elements torch is as fast
Found = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_torchs = torch.ops.aten._unique2.default


def unique(
    input: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return the result of torch.unique."""
    if dim is not None or not sorted:
        return torch.unique(input, sorted, return_inverse, return_counts, dim)
    found = unique2(input, sorted, return_inverse, return_counts)
    wanted = (True, return_inverse, return_counts)
    given = tuple(one for one, asked in zip(found, wanted, strict=True) if asked)
    return given if len(given) > 1 else given[0]


QUICKER: dict[str, Callable[..., Any]] = {"torch.unique": unique, "Tensor.unique": unique}
"""Replacement functions on data workers, by name of the torch function."""


def unique2(
    given: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Found:
    """Return distinct values, the inverse indices and the counts. A result that the caller does not want is empty."""
    if given.dtype not in (torch.int64, torch.int32) or not given.is_cpu or not FEWEST <= given.numel() < MOST:
        found: Found = _torchs(given, sorted, return_inverse, return_counts)
        return found
    flat = given.to(torch.int64).contiguous().view(-1)
    values = torch.empty_like(flat)
    inverse = torch.empty(given.shape if return_inverse else 0, dtype=torch.int64)
    counts = torch.empty_like(flat) if return_counts else torch.empty(0, dtype=torch.int64)
    many = _native.distinct(flat.numpy(), values.numpy(), inverse.view(-1).numpy(), counts.numpy())
    if return_counts:
        counts.resize_(many)
    return values.resize_(many).to(given.dtype), inverse, counts
