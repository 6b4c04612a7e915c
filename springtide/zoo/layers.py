"""Inputs and layers of the models: batches as named tuples, embedding tables, MLPs, dot products.

Models look up tables directly on views of the batch (`sparse[:, i:i + 1]`, `items`), without any computation on ids.
A trainer can therefore prefetch rows when it sees the batch.
"""

import abc
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from springtide import errors

_OTHER_ARGUMENTS = ("self", "__class__", "dropout", "sparse", "open_ended", "structure")


def check_sizes(arguments: dict[str, Any], *, filled: Sequence[str] = ()) -> None:
    """Check the arguments of a model, given as `locals()` in its constructor, before its layers are built.

    Every size is an integer of at least 1, or a list of such integers. The lists `filled` and `tables` may not be
    empty.
    """
    model, dropout = type(arguments["self"]).__name__, arguments["dropout"]
    for name, value in arguments.items():
        if name in _OTHER_ARGUMENTS or (name == "rank" and value is None):
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value and name in ("tables", *filled):
                raise errors.BadInput(f"{model}: {name} is empty; expected at least one size")
            sizes = [size for group in value for size in group] if name == "groups" else value
            bad = [size for size in sizes if not _is_size(size)]
            if bad:
                raise errors.BadInput(f"{model}: {name} has {bad[0]!r}; expected integers of at least 1: [64, 32]")
        elif isinstance(value, numbers.Integral) and name in ("tables", *filled):
            raise errors.BadInput(f"{model}: {name} is {value!r}; expected a list of integers, as in [{value!r}]")
        elif not _is_size(value):
            raise errors.BadInput(f"{model}: {name} is {value!r}; expected an integer of at least 1")
    if not isinstance(dropout, numbers.Real) or not 0 <= float(dropout) < 1:
        raise errors.BadInput(f"{model}: dropout is {dropout!r}; expected a share of at least 0 and below 1")


def _is_size(value: Any) -> bool:
    """Return True for an integer of at least 1; the bool True does not count."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= 1


class ClickBatch(NamedTuple):
    """Input of click-through models: counters, and one id per field."""

    dense: Tensor
    """Counters, float32 of shape [B, dense features]; 13 in Criteo's layout."""
    sparse: Tensor
    """Ids, int64 of shape [B, fields]; 26 in Criteo's layout."""


class RankBatch(NamedTuple):
    """Input of the multi-task ranker: ids only."""

    sparse: Tensor
    """Ids, int64 of shape [B, fields]; 37 in the ranker of the zoo."""


class PairBatch(NamedTuple):
    """Input of collaborative filtering: users and items."""

    user: Tensor
    """User ids, int64 of shape [B]."""
    item: Tensor
    """Item ids, int64 of shape [B]."""


class HistoryBatch(NamedTuple):
    """Input of attention over a user's history. Column 0 is the candidate, and the history follows, padded with id
    0."""

    user: Tensor
    """User ids, int64 of shape [B]."""
    items: Tensor
    """Item ids, int64 of shape [B, 1 + history]."""
    categories: Tensor
    """Category ids of `items`, int64 of shape [B, 1 + history]."""


Batch = ClickBatch | RankBatch | PairBatch | HistoryBatch


class BatchDataset(Dataset[tuple[Batch, Tensor]], abc.ABC):
    """A map-style data set that reads samples by `batch(indices)`."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def batch(self, indices: NDArray[np.int64]) -> tuple[Batch, Tensor]:
        """Return the samples with these indices as one batch with labels."""

    def __getitem__(self, index: int) -> tuple[Batch, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Batch, Tensor]]:
        x, y = self.batch(np.asarray(indices, dtype=np.int64))
        return [(type(x)(*(leaf[i] for leaf in x)), y[i]) for i in range(len(y))]


def checked_indices(indices: Any, samples: int, name: str) -> NDArray[np.int64]:
    """Return the indices if all are valid for this many samples; otherwise raise BadInput."""
    given = np.asarray(indices)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise errors.BadInput(f"{name}: indices are {given.dtype} of shape {given.shape}; expected whole numbers, 1-D")
    if len(given) and not (given.min() >= 0 and given.max() < samples):
        raise errors.BadInput(f"{name}: indices from {given.min()} to {given.max()}; expected 0 to {samples - 1}")
    return given.astype(np.int64)


def mlp(
    inputs: int,
    widths: Sequence[int],
    *,
    outputs: int | None = None,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return a linear layer with activation (and dropout) for each width. If `outputs` is given, add a plain linear
    layer."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), activation()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        inputs = width
    if outputs is not None:
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


class FieldTables(nn.Module):
    """One table per field. `dims` is one int for all fields, or a list of one int per field."""

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
        sizes = [dims] * len(tables) if isinstance(dims, int) else list(dims)
        if len(sizes) != len(tables):
            raise errors.BadInput(f"got {len(tables)} tables and {len(sizes)} dims; give one dim for all or one each")
        if not tables or min(tables) < 1:
            raise errors.BadInput(f"tables must be a list of row counts of at least 1 each, got {list(tables)}")
        self.bags = nn.ModuleList(
            bag(rows, dim, sparse=sparse, open_ended=open_ended, init_std=init_std)
            for rows, dim in zip(tables, sizes, strict=True)
        )

    def forward(self, sparse: Tensor) -> list[Tensor]:
        """Look up each column in the table of its field."""
        if sparse.shape[1] != len(self.bags):
            raise errors.BadInput(f"sparse has {sparse.shape[1]} columns but the model has {len(self.bags)} tables")
        return [bag(sparse[:, i : i + 1]) for i, bag in enumerate(self.bags)]


def bag(rows: int, dim: int, *, sparse: bool, open_ended: bool, init_std: float) -> nn.Module:
    """Return a table of `rows` rows that sums the rows of a bag. An open-ended table has no row count and takes any
    64-bit id."""
    if open_ended:
        import springtide

        module: nn.Module = springtide.EmbeddingBag(dim, init=("normal", 0.0, init_std))
        return module
    plain = nn.EmbeddingBag(rows, dim, mode="sum", sparse=sparse)
    with torch.no_grad():
        plain.weight.normal_(std=init_std)
    return plain


def lookup_table(
    rows: int, *, dim: int, sparse: bool, open_ended: bool, init_std: float = 0.1, padding_idx: int | None = None
) -> nn.Module:
    """Return a table for single rows, with small random weights. The padding row stays zero."""
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


class Dots(torch.autograd.Function):
    """Compute V Vᵀ for each sample, with the gradient (G + Gᵀ) V; from [B, N, D] to [B, N, N].

    `torch.bmm(v, v.transpose(1, 2))` gives the same result, but can be slow. On 64-bit ARM, a transposed operand makes
    that product a hundred times slower, because oneDNN has no fast kernel for it (290 ms instead of 3 ms at 512 x 27 x
    16). The forward and the backward product of this function have dense operands. The matrix of products is symmetric,
    so the gradient needs one product instead of two.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2).contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        # under autocast, the dot products have a smaller type than the vectors
        gradient = gradients[0].to(vectors.dtype)
        return torch.bmm((gradient + gradient.transpose(1, 2)).contiguous(), vectors)


def dots_of_all_pairs(vectors: Tensor) -> Tensor:
    """Return the dot products of all pairs of vectors of each sample."""
    dots: Tensor = Dots.apply(vectors)  # type: ignore[no-untyped-call]
    return dots
