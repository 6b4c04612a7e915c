"""Pure. What a model is made of, as its servers hold it: which table is which module, which chunks are which tensor.

In: `worker.setup` writes it once a job. Out: kept with every checkpoint, so that `springtide.export` can give the model
back to plain PyTorch, long after the script is gone.
"""

from dataclasses import dataclass

SHARED_KEY = "springtide: outline of the model"
"""Under which a worker shares it with the master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutline:
    """One embedding table."""

    name: str
    paths: tuple[str, ...]
    """Modules of the model that look rows up in it."""
    rows: int
    """Ids lie in [0, rows); 0: open-ended."""
    dim: int = 0
    """Floats of a row; 0: not told, by an earlier version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseOutline:
    """One dense tensor: `chunks` rows of a table, from key `first` on, the last one padded."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    table: int
    first: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The whole model."""

    tables: tuple[TableOutline, ...] = ()
    dense: tuple[DenseOutline, ...] = ()
    group: tuple[str, ...] = ()
    """Tensors of a bsp group's model, in the order in which it is kept with a checkpoint; "" for one that is no part of
    the model's state dict."""
    in_workers: tuple[str, ...] = ()
    """Tensors of the model's state that no server holds as trained: in async buffers, which are each worker's own."""
