"""Embedding tables of a click model, one per field.

In: `sparse` int64 [B, fields]. Out: a list of [B, dim] tensors, one per field. Lookups use column views of the batch
tensor, without any computation on ids.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide import errors


class FieldTables(nn.Module):
    """One table per field; `dims` is one int for all fields, or one per field."""

    def __init__(
        self,
        tables: Sequence[int],
        dims: int | Sequence[int],
        *,
        sparse: bool = False,
        open_ended: bool = False,
        init_std: float = 0.01,
    ) -> None:
        super().__init__()
        each = [dims] * len(tables) if isinstance(dims, int) else list(dims)
        if len(each) != len(tables):
            raise errors.BadInput(f"got {len(tables)} tables and {len(each)} dims; give one dim for all or one each")
        if not tables or min(tables) < 1:
            raise errors.BadInput(f"tables must be a list of row counts of at least 1 each, got {list(tables)}")
        self.bags = nn.ModuleList(
            bag(rows, dim, sparse=sparse, open_ended=open_ended, init_std=init_std)
            for rows, dim in zip(tables, each, strict=True)
        )

    def forward(self, sparse: Tensor) -> list[Tensor]:
        """Look up each column in its table."""
        if sparse.shape[1] != len(self.bags):
            raise errors.BadInput(f"sparse has {sparse.shape[1]} columns but the model has {len(self.bags)} tables")
        return [bag(sparse[:, i : i + 1]) for i, bag in enumerate(self.bags)]


def bag(rows: int, dim: int, *, sparse: bool, open_ended: bool, init_std: float) -> nn.Module:
    """Return a summing table of `rows` rows; an open-ended table has no row count and takes any 64-bit id."""
    if open_ended:
        import springtide

        module: nn.Module = springtide.EmbeddingBag(dim, init=("normal", 0.0, init_std))
        return module
    plain = nn.EmbeddingBag(rows, dim, mode="sum", sparse=sparse)
    with torch.no_grad():
        plain.weight.normal_(std=init_std)
    return plain


def lookup_table(
    rows: int, dim: int, *, sparse: bool, open_ended: bool, init_std: float, padding_idx: int | None = None
) -> nn.Module:
    """Return a table of single rows with small random weights; the padding row stays zero."""
    if open_ended:
        import springtide

        module: nn.Module = springtide.Embedding(dim, padding_idx=padding_idx, init=("normal", 0.0, init_std))
        return module
    plain = nn.Embedding(rows, dim, sparse=sparse, padding_idx=padding_idx)
    with torch.no_grad():
        plain.weight.normal_(std=init_std)
        if padding_idx is not None:
            plain.weight[padding_idx] = 0
    return plain
