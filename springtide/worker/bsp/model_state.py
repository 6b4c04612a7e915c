"""Send the dense parameters, buffers and optimizer states to a rank that joins a bsp group.

In: group.py calls it on every rank when a group forms. Out: the leader's state on the joining ranks. Tensors travel
over gloo, and their structure travels as msgpack, so nothing is unpickled. Checkpoints store the same state as bytes
(checkpoint/format/group_model.py).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch

from springtide import errors
from springtide.checkpoint.format import group_model
from springtide.checkpoint.format.group_model import DTYPES, FORMAT, GroupPosition, SavedGroup, flat, shaped
from springtide.domain.core.validation import plain
from springtide.worker.bsp import allreduce

TENSOR, TUPLE = "springtide: tensor", "springtide: tuple"
PLAIN = (bool, int, float, str, type(None))


class HeldModel(Protocol):
    """Model state that group.py holds."""

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]: ...

    def tensors(self) -> list[torch.Tensor]: ...


def share(gloo: Any, leader: int, model: HeldModel, *, give: bool, take: bool) -> None:
    """Broadcast the leader's state. Every rank takes part, but only joining ranks apply it."""
    for tensor in model.tensors():
        held = tensor.detach().clone().contiguous()
        allreduce.broadcast(gloo, held, leader)
        if take:
            with torch.no_grad():
                tensor.copy_(held)
    tensors: list[torch.Tensor] = []
    plan = msgspec.msgpack.encode([_pack(one.state_dict(), tensors) for one in model.optimizers]) if give else b""
    plan = _broadcast_bytes(gloo, plan, leader)
    shapes = _broadcast_bytes(gloo, msgspec.msgpack.encode([(str(t.dtype), list(t.shape)) for t in tensors]), leader)
    if not give:
        tensors = [torch.zeros(shape, dtype=DTYPES[dtype]) for dtype, shape in msgspec.msgpack.decode(shapes)]
    for tensor in tensors:
        allreduce.broadcast(gloo, tensor, leader)
    if take:
        for one, packed in zip(model.optimizers, msgspec.msgpack.decode(plan, strict=False), strict=True):
            one.load_state_dict(_unpack(packed, tensors))


def to_bytes(model: HeldModel, place: GroupPosition) -> bytes:
    tensors: list[torch.Tensor] = []
    plan = [_pack(one.state_dict(), tensors) for one in model.optimizers]
    saved = SavedGroup(FORMAT, place, [flat(one) for one in model.tensors()], plan, [flat(one) for one in tensors])
    return msgspec.msgpack.encode(saved)


def from_bytes(model: HeldModel, body: bytes) -> GroupPosition:
    """Restore the model from these bytes and return its position; `BadInput` if they belong to another model."""
    saved = group_model.decode(body)
    own = model.tensors()
    there, here = [shape for _, shape, _ in saved.dense], [list(one.shape) for one in own]
    if there != here or len(saved.plan) != len(model.optimizers):
        raise errors.BadInput(
            f"the checkpoint is of a model with {len(there)} dense tensors and {len(saved.plan)} optimizers, shapes "
            f"{there[:3]}...; this one has {len(here)} and {len(model.optimizers)}, shapes {here[:3]}...: go on with "
            "the script that made it"
        )
    with torch.no_grad():
        for tensor, there_is in zip(own, saved.dense, strict=True):
            tensor.copy_(shaped(*there_is))
    tensors = [shaped(*one) for one in saved.tensors]
    for one, packed in zip(model.optimizers, saved.plan, strict=True):
        one.load_state_dict(_unpack(packed, tensors))
    return saved.place


def _broadcast_bytes(gloo: Any, data: bytes, leader: int) -> bytes:
    size = torch.tensor([len(data)])
    allreduce.broadcast(gloo, size, leader)
    held = torch.zeros(int(size), dtype=torch.uint8)
    if len(data) == int(size):
        held.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8)) if data else None
    if int(size):
        allreduce.broadcast(gloo, held, leader)
    return held.numpy().tobytes()


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().clone().contiguous())
        return {TENSOR: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _pack(each, tensors) for key, each in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_pack(each, tensors) for each in value]}
    if isinstance(value, list):
        return [_pack(each, tensors) for each in value]
    if isinstance(number := plain(value), PLAIN):
        return number
    raise errors.BadInput(
        f"an optimizer keeps a {type(value).__name__} in its state, which cannot be given to a worker that joins the "
        "bsp group: wanted numbers, text, tensors, and lists and dicts of them"
    )


def _unpack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if TUPLE in value:
            return tuple(_unpack(each, tensors) for each in value[TUPLE])
        return {key: _unpack(each, tensors) for key, each in value.items()}
    return [_unpack(each, tensors) for each in value] if isinstance(value, list) else value
