"""All-reduce the dense gradients of a bsp group over gloo, in one flat bucket per data type.

In: worker/step/bsp_step.py, once per step. Out: the group's gradient in every `p.grad`. Each rank then runs the user's
own optimizer.
"""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

from springtide import errors

MEETING = datetime.timedelta(seconds=60)  # a rank that does not connect within this time counts as dead
TIMEOUT = datetime.timedelta(minutes=5)  # a rank that is later counts as dead; a step takes a fraction of this time


def form_group(store: Any, *, rank: int, workers: int, host: str) -> Any:
    """Connect all ranks over `store`, without touching the user's default torch.distributed group.

    Return None for a group of one. `GroupChanged` if other ranks cannot be reached.
    """
    if workers == 1:
        return None
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = MEETING
    try:
        group = distributed.ProcessGroupGloo(store, rank, workers, options)
        group._set_default_timeout(TIMEOUT)
    except RuntimeError as error:
        raise errors.GroupChanged(f"the group could not meet: {said(error)}") from None
    return group


def said(error: RuntimeError) -> str:
    return (str(error).partition("] ")[2] or str(error)).partition(". This")[0]


def broadcast(group: Any, tensor: torch.Tensor, root: int) -> None:
    """Send the root's values to every rank; `GroupChanged` if a rank is lost."""
    if group is not None and tensor.numel():
        try:
            group.broadcast(tensor, root).wait()
        except RuntimeError as error:
            raise errors.GroupChanged(f"a member of the group is lost: {said(error)}") from None


class Reducer:
    """Averages gradients over the group, weighted by each rank's share of the batch."""

    def __init__(self, params: Sequence[nn.Parameter], group: Any, *, words: int = 0) -> None:
        """Create the buckets. `words` is the number of header numbers that travel with the gradients."""
        self.params = list(params)
        self.group = group
        self.elder: int | None = None
        """Rank whose hyperparameters all ranks use. The schedules of a rank that joined late have not advanced as
        far.
        """
        by_dtype: dict[torch.dtype, list[int]] = {torch.float32: []}
        for index, param in enumerate(self.params):
            if not param.is_floating_point():
                raise errors.BadInput(f"a parameter of dtype {param.dtype} cannot be trained: wanted a float")
            by_dtype.setdefault(param.dtype, []).append(index)
        self.words = [0.0] * words
        """This rank's header numbers, as they are when `reduce` is called."""
        self.sums: list[float] = list(self.words)
        """Sums of the header numbers over all ranks after a `reduce`, in float32 precision."""
        self._skip = False
        self._members = list(by_dtype.values())
        self._buckets = [self._bucket(dtype, members) for dtype, members in by_dtype.items()]

    def load(self, *, share: float, skip: bool) -> None:
        """Copy this rank's current gradients, so that `reduce` can be repeated with another group."""
        self._skip = skip
        grads = [param.grad for param in self.params]
        for members, bucket in zip(self._members, self._buckets, strict=True):
            bucket.flat.zero_()
            for index, view in zip(members, bucket.views, strict=True):
                grad = grads[index]
                if grad is not None:
                    view.copy_(grad.to_dense() if grad.is_sparse else grad)
            bucket.flat.mul_(share)
            words = self.words if bucket is self._buckets[0] else ()
            bucket.flags.copy_(torch.tensor([skip, *words, *(grads[index] is not None for index in members)]))
            bucket.own.copy_(bucket.flat)

    def reduce(self) -> bool:
        """Replace each `p.grad` by the group's gradient; return True if any rank wants to skip the step.

        A parameter without a gradient on all ranks stays without one. If some ranks have a gradient, the other ranks
        count as zero. `GroupChanged` if a member is lost.
        """
        if self.group is None:
            self.sums = list(self.words)
            return self._skip
        for bucket in self._buckets:
            bucket.flat.copy_(bucket.own)
            if bucket is self._buckets[0] and self.words:
                bucket.flags[1 : 1 + len(self.words)] = torch.tensor(self.words)
            try:
                self.group.allreduce([bucket.flat]).wait()
            except RuntimeError as error:
                raise errors.GroupChanged(f"a member of the group is lost: {said(error)}") from None
        self.sums = self._buckets[0].flags[1 : 1 + len(self.words)].tolist()
        if self._buckets[0].flags[0]:
            return True
        self.deal()
        return False

    def deal(self) -> None:
        """Copy the group's gradients from the buckets into every `p.grad`."""
        for members, bucket in zip(self._members, self._buckets, strict=True):
            present = bucket.flags[-len(members) :].tolist() if members else []
            for index, view, ranks in zip(members, bucket.views, present, strict=True):
                if ranks:
                    self.params[index].grad = view.clone()  # a copy, because the next step reuses the bucket

    def follow(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """After a rank has joined late, use the elder's learning rates and weight decays, as its schedules set them."""
        if self.group is None or self.elder is None:
            return
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        known = [(group, name) for group in groups for name in ("lr", "weight_decay") if name in group]
        numbers = torch.tensor([float(group[name]) for group, name in known], dtype=torch.float64)
        broadcast(self.group, numbers, self.elder)
        for (group, name), number in zip(known, numbers.tolist(), strict=True):
            if isinstance(group[name], torch.Tensor):
                group[name].fill_(number)
            elif group[name] != number:
                group[name] = number

    def _bucket(self, dtype: torch.dtype, members: list[int]) -> "Bucket":
        sizes = [self.params[index].numel() for index in members]
        said = 1 + len(members) + (len(self.words) if dtype is torch.float32 else 0)
        flat = torch.zeros(sum(sizes) + said, dtype=dtype)
        *parts, flags = torch.split(flat, [*sizes, said])
        shapes = (self.params[index].shape for index in members)
        return Bucket(
            flat, torch.zeros_like(flat), [part.view(shape) for part, shape in zip(parts, shapes, strict=True)], flags
        )


class Bucket(NamedTuple):
    """Gradients of one data type in one flat tensor, followed by the flags."""

    flat: torch.Tensor
    own: torch.Tensor
    """Copy of this rank's contribution."""
    views: list[torch.Tensor]
    flags: torch.Tensor
    """Number of ranks that want to skip, then the header numbers (first bucket only), then the number of ranks with a
    gradient for each parameter.
    """
