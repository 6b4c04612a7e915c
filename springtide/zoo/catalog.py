"""Models by name, with example batches for tests and benchmarks.

In: a name. Out: `model(name)` returns a module, `example_batch(name)` a batch to train it on. Each model has a separate
file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from springtide import errors
from springtide.domain.core.validation import takes_numbers
from springtide.zoo.layers import Batch, ClickBatch, HistoryBatch, PairBatch, RankBatch
from springtide.zoo.models import DCN, DIN, DLRM, NCF, DCNv2, DeepFM, MMoE, WideDeep, XDeepFM

DENSE = 13
HISTORY = 20
SMALL_TABLE = 1000


class Example(NamedTuple):
    """A batch and its labels."""

    x: Batch
    y: Tensor


class _Draws:
    """Generator of seeded ids, counters and labels."""

    def __init__(self, batch: int, seed: int) -> None:
        self.batch = batch
        self.random = np.random.default_rng(seed)

    def ids(self, tables: Sequence[int]) -> Tensor:
        """Draw one column per table. Low ids are frequent, as in real logs."""
        share = self.random.random((self.batch, len(tables))) ** 3
        return torch.from_numpy((share * np.asarray(tables)).astype(np.int64))

    def floats(self, columns: int) -> Tensor:
        return torch.from_numpy(self.random.standard_normal((self.batch, columns)).astype(np.float32))

    def labels(self) -> Tensor:
        return torch.from_numpy((self.random.random(self.batch) < 0.3).astype(np.float32))


def _click(draws: _Draws, tables: Sequence[int]) -> Example:
    return Example(ClickBatch(dense=draws.floats(DENSE), sparse=draws.ids(tables)), draws.labels())


def _rank(draws: _Draws, tables: Sequence[int]) -> Example:
    click = draws.labels()
    return Example(RankBatch(sparse=draws.ids(tables)), torch.stack([click, click * draws.labels()], dim=1))


def _pair(draws: _Draws, tables: Sequence[int]) -> Example:
    ids = draws.ids(tables)
    return Example(PairBatch(user=ids[:, 0].contiguous(), item=ids[:, 1].contiguous()), draws.labels())


def _history(draws: _Draws, tables: Sequence[int]) -> Example:
    users, items, categories = tables
    taken = draws.ids([items - 1] * (1 + HISTORY)) + 1
    length = torch.from_numpy(draws.random.integers(0, HISTORY + 1, size=(draws.batch, 1)))
    items_seen = torch.where(torch.arange(1 + HISTORY) <= length, taken, 0)
    of_item = torch.from_numpy(draws.random.integers(1, categories, size=items))
    of_item[0] = 0
    user = draws.ids([users])[:, 0].contiguous()
    return Example(HistoryBatch(user=user, items=items_seen, categories=of_item[items_seen]), draws.labels())


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """A model of the zoo."""

    build: Callable[..., nn.Module]
    """Class of the model, whose first argument has the row counts of the tables."""
    tables: tuple[int, ...]
    """Default row counts, small enough for tests."""
    draw: Callable[[_Draws, Sequence[int]], Example]
    """Function that draws a batch for the model."""


_CLICK_TABLES = (SMALL_TABLE,) * 26

MODELS: dict[str, ZooModel] = {
    "widedeep": ZooModel(build=WideDeep, tables=_CLICK_TABLES, draw=_click),
    "deepfm": ZooModel(build=DeepFM, tables=_CLICK_TABLES, draw=_click),
    "xdeepfm": ZooModel(build=XDeepFM, tables=_CLICK_TABLES, draw=_click),
    "dcn": ZooModel(build=DCN, tables=_CLICK_TABLES, draw=_click),
    "dcnv2": ZooModel(build=DCNv2, tables=_CLICK_TABLES, draw=_click),
    "dlrm": ZooModel(build=DLRM, tables=_CLICK_TABLES, draw=_click),
    "ncf": ZooModel(build=NCF, tables=(SMALL_TABLE, SMALL_TABLE), draw=_pair),
    "din": ZooModel(build=DIN, tables=(SMALL_TABLE, SMALL_TABLE, 100), draw=_history),
    "mmoe": ZooModel(build=MMoE, tables=(SMALL_TABLE,) * 37, draw=_rank),
}
"""Models by name: `widedeep`, `deepfm`, `xdeepfm`, `dcn`, `dcnv2`, `dlrm`, `ncf`, `din` and `mmoe`."""


def entry(name: str) -> ZooModel:
    """Return the model of this name; case and dashes do not matter."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if plain not in MODELS:
        raise errors.UnknownName("model in the zoo", plain, MODELS)
    return MODELS[plain]


@takes_numbers()
def model(name: str, tables: Sequence[int] | None = None, **settings: Any) -> nn.Module:
    """Build a model: `zoo.model("dlrm", tables=[100_000] * 26, dim=16, sparse=True)`."""
    found = entry(name)
    return found.build(found.tables if tables is None else tables, **settings)


@takes_numbers()
def example_batch(name: str, batch: int = 64, seed: int = 0, tables: Sequence[int] | None = None) -> Example:
    """Return a seeded batch with labels for the model of this name. The ids are within `tables`."""
    if batch < 1:
        raise errors.BadInput(f"a batch has at least one sample, got batch={batch}")
    found = entry(name)
    return found.draw(_Draws(batch, seed), found.tables if tables is None else tuple(tables))
