"""Share the model's outline with the master, so that checkpoints can be exported without the script.

In: a model with served tables, and the location of its dense parameters. Out: a `domain.model.tables.Outline`, shared
through the master.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from springtide.domain.model.tables import SHARED_KEY, DenseOutline, Outline, TableOutline
from springtide.embedding.lookup.tables import ServedTable
from springtide.worker.link import master_link
from springtide.worker.step.served_dense import DenseSlot, ServedDense


def outline(
    model: nn.Module, tables: Sequence[ServedTable], placed: Any, group: Sequence[tuple[str, torch.Tensor]] = ()
) -> Outline:
    """Return which parts of this model servers hold, and which they do not. `group` lists the tensors of a bsp group,
    in order.
    """
    held: list[DenseSlot] = []
    if isinstance(placed, ServedDense):
        held = placed.held + [one for one in placed.still.held if isinstance(one.param, nn.Parameter)]
    known = {id(one.param) for one in held} | {id(table.weight) for table in tables} | {id(one) for _, one in group}
    state = [*model.named_parameters(), *model.named_buffers()]
    fleeting = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return Outline(
        tables=tuple(
            TableOutline(name=table.name, paths=table.paths, rows=table.request.rows, dim=table.spec.dim)
            for table in tables
        ),
        dense=tuple(
            DenseOutline(
                name=one.name,
                shape=tuple(one.param.shape),
                dtype=str(one.param.dtype).removeprefix("torch."),
                table=one.table,
                first=one.first,
                chunks=one.chunks,
            )
            for one in held
        ),
        group=tuple("" if name in fleeting else name for name, _ in group),
        in_workers=tuple(name for name, tensor in state if id(tensor) not in known),
    )


def tell(to_master: master_link.MasterLink, made: Outline) -> None:
    to_master.shared.share(SHARED_KEY, msgspec.msgpack.encode(made))
