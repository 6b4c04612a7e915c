"""Readers of public data sets in text files: Criteo, Avazu and MovieLens.

In: a file, a folder, a pattern, or a list of files, folders and patterns. Out: a `ColumnDataset`
(data/files/dataset.py), whose batches are `ClickBatch` or `PairBatch` with labels. A hash turns categories into 64-bit
ids, and a missing category gets id 0.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from springtide import errors
from springtide.data.files import id_hash, row_groups
from springtide.data.files.columns import DECIMALS, INTEGERS, TEXTS, Names, batch_columns
from springtide.data.files.dataset import ColumnDataset
from springtide.zoo.layers import ClickBatch, PairBatch

Tables = int | Sequence[int] | None
"""Numbers of rows into which ids are folded: one number for all fields, or one for each field. None keeps 64-bit
ids.
"""

CRITEO_NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
AVAZU_CATEGORIES = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{number}" for number in range(14, 22)),
)
MOVIELENS_FORMATS = {
    # a reader that splits at each `:` finds an empty cell in every `::`
    ".dat": (":", ("user", "_1", "movie", "_2", "rating", "_3", "timestamp")),
    ".data": ("\t", ("user", "movie", "rating", "timestamp")),
}


def read_criteo(paths: row_groups.Paths, *, tables: Tables = None) -> ColumnDataset:
    """Read Criteo's click logs (`train.txt`, `day_0`): 13 numbers on a logarithmic scale, 26 categories, and the click.

    `tables` has the row counts into which ids are folded (26, or one for all). None keeps 64-bit ids.
    """
    kinds = {"label": DECIMALS, **dict.fromkeys(CRITEO_NUMBERS, DECIMALS), **dict.fromkeys(CRITEO_CATEGORIES, TEXTS)}
    return _read(
        paths,
        row_groups.CsvFormat(separator="\t", names=tuple(kinds), missing=("",)),
        kinds,
        _clicks,
        label="label",
        floats={"dense": CRITEO_NUMBERS},
        ids={"sparse": CRITEO_CATEGORIES},
        buckets=_buckets(CRITEO_CATEGORIES, tables),
    )


def read_avazu(paths: row_groups.Paths, *, tables: Tables = None) -> ColumnDataset:
    """Read Avazu's click log (`train.csv`): the hour as a point on a circle, 22 categories of which the first is the
    hour, and the click.

    `tables` has the row counts into which ids are folded (22, or one for all). None keeps 64-bit ids.
    """
    buckets = _buckets(("hour", *AVAZU_CATEGORIES), tables)
    return _read(
        paths,
        row_groups.CsvFormat(separator=",", names=None, missing=("",)),
        {"click": DECIMALS, "hour": INTEGERS, **dict.fromkeys(AVAZU_CATEGORIES, TEXTS)},
        functools.partial(_clicks_by_hour, hours=None if buckets is None else buckets.pop("hour")),
        label="click",
        floats={},
        ids={"hour": "hour", "sparse": AVAZU_CATEGORIES},
        buckets=buckets,
    )


def read_movielens(paths: row_groups.Paths, *, liked: float | None = 4.0) -> ColumnDataset:
    """Read MovieLens' ratings (`ratings.csv`, `ratings.dat`, `u.data`) as users and movies.

    The label is 1 from `liked` stars on. With `liked=None`, the label is the number of stars.
    """
    if liked is not None and not isinstance(liked, int | float):
        raise errors.BadInput(f"liked={liked!r}: expected the stars from which a label is 1, or None for stars")
    suffix = row_groups.files_of(paths, (".csv", *MOVIELENS_FORMATS))[0].suffix
    separator, names = MOVIELENS_FORMATS.get(suffix, (",", None))
    user, movie = ("userId", "movieId") if names is None else ("user", "movie")
    return _read(
        paths,
        row_groups.CsvFormat(separator=separator, names=names, missing=("",)),
        {user: INTEGERS, movie: INTEGERS, "rating": DECIMALS},
        functools.partial(_ratings, liked=liked),
        label=None,
        floats={"rating": "rating"},
        ids={"user": user, "item": movie},
        buckets=None,
    )


def _read(
    paths: row_groups.Paths,
    written: row_groups.CsvFormat,
    kinds: Mapping[str, str],
    make: Callable[..., Any],
    *,
    label: str | None,
    floats: Names,
    ids: Names,
    buckets: Mapping[str, int] | None,
) -> ColumnDataset:
    """Read text files with columns of known kinds. The kinds then do not depend on the first records."""
    columns = batch_columns(label=label, floats=floats, ids=ids, buckets=buckets, lists={}, kinds=kinds)
    groups: list[row_groups.Group] = []
    for file in row_groups.files_of(paths, (".csv", ".txt", *MOVIELENS_FORMATS)):
        names = written.header(file)[0]
        if missing := [name for name in columns if name not in names]:
            line = written.separator.join(names)[:200]
            raise errors.BadInput(f"{file} has no column {missing[0]!r}; its first line is {line!r}")
        groups += row_groups.csv_groups(file, written, dict(kinds))
    return ColumnDataset(paths, groups, columns, make=make, shuffle_groups=4)


def _buckets(fields: Sequence[str], tables: Tables) -> dict[str, int] | None:
    if tables is None:
        return None
    counts = list(tables) if isinstance(tables, Sequence) else [tables] * len(fields)
    if len(counts) != len(fields):
        raise errors.BadInput(f"tables has {len(counts)} row counts; expected {len(fields)}, or one for all")
    return {name: id_hash.checked_buckets(count, "tables") for name, count in zip(fields, counts, strict=True)}


def _clicks(dense: Tensor, sparse: Tensor) -> ClickBatch:
    known = dense.nan_to_num(0.0)
    return ClickBatch(dense=known.sign() * known.abs().log1p(), sparse=sparse)


def _clicks_by_hour(hour: Tensor, sparse: Tensor, *, hours: int | None) -> ClickBatch:
    """Return a batch with the hour of the day, which the column has as YYMMDDHH."""
    hour = hour % 100
    ids = hour + 1 if hours is None else torch.from_numpy(id_hash.fold((hour + 1).numpy(), hours))
    angle = hour * (2 * torch.pi / 24)
    return ClickBatch(
        dense=torch.stack([angle.sin(), angle.cos()], dim=1), sparse=torch.cat([ids[:, None], sparse], dim=1)
    )


def _ratings(user: Tensor, item: Tensor, rating: Tensor, *, liked: float | None) -> tuple[PairBatch, Tensor]:
    return PairBatch(user=user, item=item), rating if liked is None else (rating >= liked).float()
