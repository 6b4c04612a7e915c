"""Gathers values of all workers and reduces them: `job.gather`, `job.reduce`, `job.divide`.

In: a value of each worker, and the position of its script. Out: the same values on every worker, from the master. A
restarted worker repeats the calls of its current epoch and gets the results that the other workers got. Next:
master/data/shared_values.py collects the values.
"""

import functools
import logging
import numbers
import operator
from typing import Any

import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import GatherRequest, Regroup
from springtide.worker.epochs.epochs import EpochTracker
from springtide.worker.input.batches import Batches
from springtide.worker.link.master_link import MasterLink
from springtide.worker.setup import Wired

log = logging.getLogger(__name__)
OPERATIONS = ("sum", "mean", "max", "min")
_TENSORS: dict[str, Any] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
_NUMBERS: dict[str, Any] = {"sum": sum, "max": max, "min": min}


class WorkerValues:
    """Values that the workers of a job gather."""

    def __init__(self, to_master: MasterLink, tracker: EpochTracker) -> None:
        self._link, self._tracker = to_master, tracker
        self._batches: Batches | None = None
        self._wired: Wired | None = None
        self._position, self._number = tracker.position, 0

    def attach(self, batches: Batches, wired: Wired) -> None:
        self._batches, self._wired = batches, wired

    def gather(self, value: Any, name: str) -> dict[int, Any]:
        """Return the values of all workers by rank."""
        if self._batches is not None and self._batches._in_loop():
            raise errors.BadInput(
                f"job.{name} in the middle of a loop over batches: workers have different numbers of batches, so they "
                "would wait for each other for ever. Call it after the loop"
            )
        if self._position != self._tracker.position:
            self._position, self._number = self._tracker.position, 0
        request = GatherRequest(self._position, self._number, state_image.encode_state(value))
        self._number += 1
        reply = None
        while not self._link.draining and isinstance(reply := self._link.shared.gather(request), Regroup):
            self._form_group()
        if reply is None or isinstance(reply, messages.DataEnd | Regroup):
            self._link.dismiss()
            log.warning("this worker was asked to leave, so its script ends in job.%s", name)
            raise SystemExit(0)
        values = {rank: state_image.decode_state(given) for rank, given in sorted(reply.values.items())}
        return {rank: placed(given, value) for rank, given in values.items()}

    def _form_group(self) -> None:
        """Form the bsp group again, because a lost member needs the model of another member before it can continue."""
        assert self._wired is not None and self._wired.group is not None
        self._wired.step.regroup(self._wired.group.place.generation)


def reduce(values: dict[int, Any], how: str, weights: dict[int, float]) -> Any:
    """Reduce numbers, tensors, or dicts of them, in the order of ranks."""
    first, *others = values.values()
    if isinstance(first, dict):
        if any(not isinstance(other, dict) or other.keys() != first.keys() for other in others):
            raise errors.BadInput(
                f"job.reduce: the workers gave different values: {describe(values)}; give the same names"
            )
        return {name: reduce({rank: value[name] for rank, value in values.items()}, how, weights) for name in first}
    if any(kind_of(other) != kind_of(first) for other in others):
        raise errors.BadInput(f"job.reduce: the workers gave different values: {describe(values)}; give the same kind")
    if how == "mean":
        total = sum(weights.values())
        # a worker without samples may give NaN
        return functools.reduce(
            operator.add, (values[rank] * (weights[rank] / total) for rank in values if weights[rank])
        )
    if any(isinstance(value, torch.Tensor) for value in values.values()):
        device = next(value.device for value in values.values() if isinstance(value, torch.Tensor))
        return _TENSORS[how](torch.stack([torch.as_tensor(value, device=device) for value in values.values()]), dim=0)
    return _NUMBERS[how](values.values())


def kind_of(value: Any) -> Any:
    """Return what must be equal for values that are reduced."""
    if isinstance(value, torch.Tensor) and value.ndim:
        return tuple(value.shape)
    if isinstance(value, numbers.Number | torch.Tensor):
        return "number"
    raise errors.BadInput(f"job.reduce got a {type(value).__name__}, expected a number, a tensor, or a dict of them")


def placed(value: Any, like: Any) -> Any:
    """Return a received value with its tensors on the devices of this worker's own value."""
    if isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor):
        return value.to(like.device)
    if isinstance(value, dict) and isinstance(like, dict):
        return {name: placed(part, like.get(name)) for name, part in value.items()}
    if isinstance(value, tuple) and isinstance(like, tuple):
        return tuple(map(placed, value, like))
    return value


def describe(values: dict[int, Any]) -> str:
    kinds = {rank: sorted(value) if isinstance(value, dict) else kind_of(value) for rank, value in values.items()}
    return ", ".join(f"{kind} by worker {rank}" for rank, kind in list(kinds.items())[:4])
