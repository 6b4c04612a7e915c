"""Dense parameters, buffers and optimizer states of a bsp group: sent to a rank that joins, stored for checkpoints.

In: group.py, when a group forms or a checkpoint is due. Out: the leader's state on joining ranks over gloo, or as rows
of a reserved table on the servers (checkpoint/format/group_model.py). Nothing is unpickled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from springtide import errors
from springtide.checkpoint.format import group_model
from springtide.checkpoint.format.group_model import DTYPES, FORMAT, TABLE, GroupPosition, SavedGroup, flat, shaped
from springtide.domain.core.validation import plain
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.bsp import allreduce

TENSOR, TUPLE = "springtide: tensor", "springtide: tuple"
PLAIN = (bool, int, float, str, type(None))


@dataclass(slots=True)
class GroupModel:
    """State beside the tables that must be equal on all ranks."""

    module: nn.Module
    optimizers: list[torch.optim.Optimizer]
    tensors: Callable[[], list[torch.Tensor]]
    assign_tables: Callable[[], None]
    """Function that assigns the tables' initial weights; the leader of the first group calls it once."""


def share(gloo: Any, leader: int, model: GroupModel, *, give: bool, take: bool) -> None:
    """Broadcast the leader's state. Every rank takes part, but only joining ranks apply it."""
    for tensor in model.tensors():
        held = tensor.detach().to("cpu", copy=True).contiguous()
        allreduce.broadcast(gloo, held, leader)
        if take:
            with torch.no_grad():
                tensor.copy_(held)
    tensors: list[torch.Tensor] = []
    plan = msgspec.msgpack.encode([_pack(one.state_dict(), tensors) for one in model.optimizers]) if give else b""
    plan = _broadcast_bytes(gloo, plan, leader)
    shapes = _broadcast_bytes(gloo, msgspec.msgpack.encode([(str(t.dtype), list(t.shape)) for t in tensors]), leader)
    if not give:
        tensors = [
            torch.zeros(shape, dtype=DTYPES[dtype], device="cpu") for dtype, shape in msgspec.msgpack.decode(shapes)
        ]
    for tensor in tensors:
        allreduce.broadcast(gloo, tensor, leader)
    if take:
        for one, packed in zip(model.optimizers, msgspec.msgpack.decode(plan, strict=False), strict=True):
            one.load_state_dict(_unpack(packed, tensors))


def to_bytes(model: GroupModel, place: GroupPosition) -> bytes:
    tensors: list[torch.Tensor] = []
    plan = [_pack(one.state_dict(), tensors) for one in model.optimizers]
    saved = SavedGroup(FORMAT, place, [flat(one) for one in model.tensors()], plan, [flat(one) for one in tensors])
    return msgspec.msgpack.encode(saved)


def from_bytes(model: GroupModel, body: bytes) -> GroupPosition:
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
    size = torch.tensor([len(data)], device="cpu")
    allreduce.broadcast(gloo, size, leader)
    held = torch.zeros(int(size), dtype=torch.uint8, device="cpu")
    if len(data) == int(size):
        held.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8)) if data else None
    if int(size):
        allreduce.broadcast(gloo, held, leader)
    return held.numpy().tobytes()


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().to("cpu", copy=True).contiguous())
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
        "bsp group: expected numbers, text, tensors, and lists and dicts of them"
    )


def _unpack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if TUPLE in value:
            return tuple(_unpack(each, tensors) for each in value[TUPLE])
        return {key: _unpack(each, tensors) for key, each in value.items()}
    return [_unpack(each, tensors) for each in value] if isinstance(value, list) else value


def declare(client: TableClient) -> None:
    number = max((spec.id for spec in client.specs), default=-1) + 1
    client.declare([TableSpec(id=number, name=TABLE, dim=group_model.ROW)])


def put(client: TableClient, body: bytes) -> None:
    rows = group_model.rows_of(body)
    client.assign(TABLE, np.arange(len(rows)), rows)


def get(client: TableClient) -> bytes:
    """Return the bytes of the last `put`; `JobFailed` if they are missing or incomplete."""
    count = group_model.rows_after(client.read(TABLE, np.arange(1)))
    if count is None:
        raise errors.JobFailed(
            "the servers do not have the dense parameters of a bsp group: the checkpoint that this job goes on from "
            'was not made with sync="bsp"'
        )
    try:
        return group_model.body_of(client.read(TABLE, np.arange(1 + count)))
    except errors.BadInput as error:
        raise errors.JobFailed(f"{error}, as the servers have them") from None
