"""The generated click log, as a map-style data set for each family of models, and as a stream.

In: a `LogSpec` and a number of samples. Out: `ClickLog` with `log[i]`, `log.batch(indices)` (fast), `split` and
`best_auc`; samples are made in advance into arrays (in memory, or in shared files), or on demand. `Clicks` makes
fixed-width records for `data.stream.producer`, and `decoder()` decodes them.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from springtide import errors
from springtide.data.stream.decode import Field, Fixed
from springtide.data.stream.records import Bytes
from springtide.domain.core.validation import takes_numbers
from springtide.zoo import array_files, metrics
from springtide.zoo.clicklog import generator as click_generator
from springtide.zoo.clicklog import population
from springtide.zoo.clicklog.generator import ClickRows, Generator
from springtide.zoo.clicklog.population import RANK_FIELDS, LogSpec
from springtide.zoo.layers import Batch, BatchDataset, ClickBatch, HistoryBatch, PairBatch, RankBatch, checked_indices

Columns = dict[str, NDArray[Any]]

_AHEAD_BLOCK = 1 << 16
_BEST_AUC_SAMPLES = 200_000  # number of samples from which the best AUC follows within about 0.001


class _Shaper:
    """Converts rows of the log to the columns of a kind of model."""

    def __init__(self, generator: Generator, kind: str) -> None:
        self.generator = generator
        self.kind = kind
        if kind == "history":
            self._histories = population.histories(generator.world)
            self._categories = population.categories(generator.world)

    def columns(self, rows: ClickRows) -> Columns:
        """Return inputs by name, labels as "y" and the true click probability as "probability"."""
        made = _KINDS[self.kind](self, rows)
        return {**made, "probability": rows.probability}

    def click(self, rows: ClickRows) -> Columns:
        return {"dense": rows.dense, "sparse": rows.sparse, "y": rows.click}

    def rank(self, rows: ClickRows) -> Columns:
        return {"sparse": rows.sparse, "y": np.stack([rows.click, rows.conversion], axis=1)}

    def pair(self, rows: ClickRows) -> Columns:
        return {"user": rows.sparse[:, 0].copy(), "item": rows.sparse[:, 1].copy(), "y": rows.click}

    def rating(self, rows: ClickRows) -> Columns:
        return {**self.pair(rows), "y": rows.rating.astype(np.float32)}

    def history(self, rows: ClickRows) -> Columns:
        items = np.concatenate([rows.sparse[:, 1:2] + 1, self._histories[rows.users]], axis=1)
        user = rows.sparse[:, 0].copy()
        return {"user": user, "items": items, "categories": self._categories[items], "y": rows.click}


_KINDS: dict[str, Callable[[_Shaper, ClickRows], Columns]] = {
    "click": _Shaper.click,
    "rank": _Shaper.rank,
    "pair": _Shaper.pair,
    "rating": _Shaper.rating,
    "history": _Shaper.history,
}
_BATCHES: dict[str, Callable[..., Batch]] = {
    "click": ClickBatch,
    "rank": RankBatch,
    "pair": PairBatch,
    "rating": PairBatch,
    "history": HistoryBatch,
}


class ClickLog(BatchDataset):
    """A seeded click log of `samples` samples with a known best AUC.

    `kind` selects the models: "click" (`ClickBatch`), "rank" (`RankBatch`, labels click and conversion), "pair"
    (`PairBatch`), "rating" (`PairBatch`, labels 1 to 5), "history" (`HistoryBatch`).
    """

    @takes_numbers("self")
    def __init__(
        self,
        samples: int,
        *,
        kind: str = "click",
        spec: LogSpec | None = None,
        ahead: bool = True,
        folder: str | Path | None = None,
    ) -> None:
        if samples < 1:
            raise errors.BadInput(f"a click log has at least one sample, got samples={samples}")
        if kind not in _KINDS:
            raise errors.UnknownName("kind of click log", kind, _KINDS)
        self.spec = spec or (LogSpec(cardinalities=RANK_FIELDS) if kind == "rank" else LogSpec())
        self.kind = kind
        self.first = 0
        self.samples = samples
        self.generator = Generator(self.spec)
        self._shaper = _Shaper(self.generator, kind)
        self._columns: Columns | None = None
        if ahead or folder is not None:
            self._columns = self._made_ahead(None if folder is None else Path(folder))

    def __len__(self) -> int:
        return self.samples

    def batch(self, indices: NDArray[np.int64]) -> tuple[Batch, Tensor]:
        columns = self._taken(checked_indices(indices, self.samples, "a click log"))
        y = torch.from_numpy(columns.pop("y"))
        del columns["probability"]
        return _BATCHES[self.kind](**{name: torch.from_numpy(column) for name, column in columns.items()}), y

    def split(self, test_share: float = 0.1) -> tuple["ClickLog", "ClickLog"]:
        """Split into a training part and a test part by event time; the test part is later."""
        test = round(self.samples * test_share)
        if not 0 < test < self.samples:
            raise errors.BadInput(f"test_share={test_share} of {self.samples} samples leaves one part empty")
        return self.part(0, self.samples - test), self.part(self.samples - test, self.samples)

    def part(self, start: int, stop: int) -> "ClickLog":
        """Return samples start .. stop - 1 as a data set that shares the arrays."""
        if not 0 <= start < stop <= self.samples:
            raise errors.BadInput(f"part({start}, {stop}) is not within the {self.samples} samples of this log")
        piece = object.__new__(ClickLog)
        piece.__dict__.update(self.__dict__)
        piece.first, piece.samples = self.first + start, stop - start
        if self._columns is not None:
            piece._columns = {name: column[start:stop] for name, column in self._columns.items()}
        return piece

    @property
    def tables(self) -> tuple[int, ...]:
        """Row counts of the tables that a model needs for these samples."""
        users, items, category = self.spec.cardinalities[:3]
        by_kind = {"pair": (users, items), "rating": (users, items), "history": (users, items + 1, category + 1)}
        return by_kind.get(self.kind, self.spec.cardinalities)

    def truth(self, limit: int = _BEST_AUC_SAMPLES) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return click labels and true click probabilities of up to `limit` samples, evenly spread."""
        step = -(-self.samples // limit)
        index = np.arange(0, self.samples, step, dtype=np.int64)
        rows = self.generator.rows(self.first + index)
        return rows.click, rows.probability

    def best_auc(self) -> float:
        """Return the expected AUC of the true probabilities on this part, which no model can beat."""
        _, probability = self.truth()
        return click_generator.expected_auc(probability, probability)

    def drawn_auc(self) -> float:
        """Return the AUC of the true probabilities on the drawn labels, which differs from `best_auc` only by
        chance."""
        labels, probability = self.truth()
        return metrics.auc(labels, probability)

    def _taken(self, index: NDArray[np.int64]) -> Columns:
        if self._columns is None:
            return self._shaper.columns(self.generator.rows(self.first + index))
        return {name: column.take(index, axis=0) for name, column in self._columns.items()}

    def _made_ahead(self, folder: Path | None) -> Columns:
        blocks = (
            self._shaper.columns(self.generator.between(start, min(start + _AHEAD_BLOCK, self.samples)))
            for start in range(0, self.samples, _AHEAD_BLOCK)
        )
        if folder is not None:
            content = f"{self.kind} {self.samples} {self.spec}"
            name = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
            return array_files.cached_arrays(folder, name, content, blocks)
        return array_files.joined(self.samples, blocks)


def fields(spec: LogSpec | None = None) -> dict[str, Field]:
    """Return the fields of a record: counters, ids and the click."""
    spec = spec or LogSpec()
    return {"dense": ("f4", spec.dense), "sparse": ("i8", len(spec.cardinalities)), "click": "f4"}


def decoder(spec: LogSpec | None = None) -> Fixed:
    """Return the decoder for `springtide.stream(url, decode=...)`: batches of (ClickBatch, labels)."""
    return Fixed(fields(spec), to=lambda found: (ClickBatch(found["dense"], found["sparse"]), found["click"]))


class Clicks:
    """Records of the log; record i is sample i. The true probabilities drift with the log's own time, not with the wall
    clock."""

    def __init__(self, spec: LogSpec | None = None, *, seed: int = 0) -> None:
        self._generator = Generator(dataclasses.replace(spec or LogSpec(), seed=seed))
        self._type = Fixed(fields(self._generator.spec)).dtype

    def take(self, first: int, count: int) -> Bytes:
        made = self._generator.between(first, first + count)
        rows = np.empty(count, self._type)
        rows["dense"], rows["sparse"], rows["click"] = made.dense, made.sparse, made.click
        return rows.view(np.uint8).reshape(count, self._type.itemsize)
