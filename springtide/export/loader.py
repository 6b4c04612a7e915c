"""Reads exports, and loads them into plain PyTorch models.

In: a URL with exports. Out: an `export.model.ExportedModel` with all deltas applied; or the user's own model with
`nn.Embedding`, `nn.EmbeddingBag` and dense parameters filled.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.export import delta, export_folder
from springtide.export.model import ExportedModel


def read(url: str, number: int | None = None) -> ExportedModel:
    """Read the export of that number, or the newest one."""
    if number is None:
        known = export_folder.numbers(url)
        if not known:
            raise errors.MissingFile(f"no exports at {url}; `springtide export JOB {url}` makes one")
        number = known[0]
    card = export_folder.read_card(url, number)
    base = read(url, card.since) if card.since is not None else None
    tables = {}
    for one in card.tables:
        part = export_folder.read_table(url, card, one)
        older = base.tables.get(one.outline.name) if base else None
        tables[one.outline.name] = delta.apply(older, part) if older else part.changed
    return ExportedModel(
        job=card.job,
        number=card.number,
        samples=card.samples,
        tables=tables,
        dense=export_folder.read_dense(url, card),
        left_out=card.left_out,
    )


def into(model: nn.Module, url: str, number: int | None = None) -> ExportedModel:
    """Fill a plain model from an export; change nothing on error.

    Rows and buffers that the export lacks keep their values.
    """
    found = read(url, number)
    weights = _weights(model, found)
    own = model.state_dict()
    unknown = sorted(set(found.dense) - set(own))
    if unknown:
        raise errors.BadInput(f"the export has dense tensors that the model lacks: {', '.join(unknown)}")
    wrong = [name for name, tensor in found.dense.items() if own[name].shape != tensor.shape]
    if wrong:
        name = wrong[0]
        raise errors.BadInput(
            f"{name!r} is {tuple(found.dense[name].shape)} in the export and {tuple(own[name].shape)} in the model"
        )
    with torch.no_grad():
        for weight, keys, rows in weights:
            weight[keys] = rows.to(weight.dtype)
    model.load_state_dict(found.dense, strict=False)
    return replace(found, tables=found.tables)


def _weights(model: nn.Module, found: ExportedModel) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    weights = []
    for name, table in found.tables.items():
        for path in table.outline.paths:
            try:
                weight = getattr(model.get_submodule(path), "weight", None)
            except AttributeError:
                weight = None
            if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
                raise errors.BadInput(f"the model has no table at {path!r}, where the export has {name!r}")
            keys, rows = torch.from_numpy(table.keys.copy()), torch.from_numpy(table.rows.copy())
            if rows.shape[1] != weight.shape[1] or (len(keys) and int(keys.max()) >= weight.shape[0]):
                largest = int(keys.max()) if len(keys) else 0
                raise errors.BadInput(
                    f"table {name!r} has dim {rows.shape[1]} and ids up to {largest}; the model's {path!r} is "
                    f"{tuple(weight.shape)}"
                )
            weights.append((weight, keys, rows))
    return weights
