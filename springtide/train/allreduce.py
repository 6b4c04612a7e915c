"""Dense gradients of a bsp group: one flat bucket a data type, summed over gloo, the same on every rank.

In: step.py, once a step. Out: the group's gradient in every `p.grad`. The user's own optimizer then runs on each rank.
"""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

from springtide import errors

TIMEOUT = datetime.timedelta(minutes=5)  # a rank that is later than this has died: its step takes a fraction of it


def form_group(store: Any, *, rank: int, workers: int, host: str) -> Any:
    """Connect all ranks over `store`. It is no default group: the user's own torch.distributed stays untouched."""
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = TIMEOUT
    return distributed.ProcessGroupGloo(store, rank, workers, options)


class Reducer:
    """Averages gradients over the group by each rank's share of the batch."""

    def __init__(self, params: Sequence[nn.Parameter], group: Any) -> None:
        self.params = list(params)
        self.group = group
        by_dtype: dict[torch.dtype, list[int]] = {torch.float32: []}
        for index, param in enumerate(self.params):
            if not param.is_floating_point():
                raise errors.BadInput(f"a parameter of dtype {param.dtype} cannot be trained: wanted a float")
            by_dtype.setdefault(param.dtype, []).append(index)
        self._members = list(by_dtype.values())
        self._buckets = [self._bucket(dtype, members) for dtype, members in by_dtype.items()]

    def reduce(self, *, share: float, skip: bool) -> bool:
        """Replace each `p.grad` by the group's. Returns whether any rank wants this step skipped.

        A parameter that has a gradient on no rank has none afterwards either; on some, the others count as zero.
        """
        if self.group is None:
            return skip
        grads = [param.grad for param in self.params]
        for members, bucket in zip(self._members, self._buckets, strict=True):
            bucket.flat.zero_()
            for index, view in zip(members, bucket.views, strict=True):
                grad = grads[index]
                if grad is not None:
                    view.copy_(grad.to_dense() if grad.is_sparse else grad)
            bucket.flat.mul_(share)
            bucket.flags.copy_(torch.tensor([skip, *(grads[index] is not None for index in members)]))
            self.group.allreduce([bucket.flat]).wait()
        if self._buckets[0].flags[0]:
            return True
        for members, bucket in zip(self._members, self._buckets, strict=True):
            present = bucket.flags[1:].tolist()
            for index, view, ranks in zip(members, bucket.views, present, strict=True):
                if ranks:
                    self.params[index].grad = view.clone()  # a copy: the bucket is used again
        return False

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank rank 0's values."""
        if self.group is not None:
            for tensor in tensors:
                with torch.no_grad():
                    held = tensor.detach().clone().contiguous()
                    self.group.broadcast(held, 0).wait()
                    tensor.copy_(held)

    def _bucket(self, dtype: torch.dtype, members: list[int]) -> "Bucket":
        sizes = [self.params[index].numel() for index in members]
        flat = torch.zeros(sum(sizes) + 1 + len(members), dtype=dtype)
        *parts, flags = torch.split(flat, [*sizes, 1 + len(members)])
        shapes = (self.params[index].shape for index in members)
        return Bucket(flat, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)], flags)


class Bucket(NamedTuple):
    """Gradients of one data type, one after the other; then the flags."""

    flat: torch.Tensor
    views: list[torch.Tensor]
    flags: torch.Tensor
    """How many ranks want to skip; then, per parameter, how many have a gradient for it."""
