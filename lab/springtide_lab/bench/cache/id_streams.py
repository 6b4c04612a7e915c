"""Generate or read streams of ids for schedulers and caches: a matrix of samples by tables.

In: a name, a number of samples and a seed; or a path. Out: an `IdStream`. zipf-*: independent ids; `correlated`:
each user has favourite ids; w1 to w4: the tables of Herald's four data sets, with users in sessions or in a row. All
streams are generated data.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from springtide import errors
from springtide.embedding.schedule.scheduler import FeatureIds

Ids = NDArray[np.int64]

CLICK_LOG = (131_000,) * 7 + (
    *(93_000, 15_000, 12_500, 5_700, 5_700, 3_200, 2_200, 1_460, 630, 580, 305, 105),
    *(27, 24, 18, 15, 10, 4, 3),
)
"""Rows of 26 tables, 1.06 million in total: few large and many small tables, as in a display advertising log."""
MOVIES = (162_500, 59_000)
"""Rows of 2 tables: users and films."""
MOBILE = (
    *(300_000, 150_000, 8_500, 8_200, 7_700, 4_700, 2_600, 560, 435, 240, 172),
    *(68, 60, 36, 26, 9, 8, 7, 7, 5, 4, 4),
)
"""Rows of 22 tables of a mobile click log: addresses, devices, applications, sites, and many small tables."""
SEARCH = (
    *(300_000, 150_000, 100_000, 50_000, 8_000, 5_000, 2_000, 1_500, 600),
    *(300, 120, 60, 30, 20, 12, 6, 4),
)
"""Rows of 17 tables of a sponsored search log: users, products, titles, audiences, brands, categories."""

ZIPF = 1.05  # the exponent that is usually reported for click logs
USERS, LOYALTY = 20_000, 0.8
"""Number of latent users of `correlated`, and the probability that a field has the user's own id."""
ACTIVE, EVENTS = 4_000, 25
"""Number of users with an open session, and the number of events of one session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdStream:
    """Ids of many samples, in the order of training."""

    name: str
    ids: Ids
    """Ids of shape [samples, tables]: one for each sample and table."""
    rows: tuple[int, ...]
    """Rows of each table."""
    said: str
    """Description of the stream for people."""

    @property
    def total_rows(self) -> int:
        return sum(self.rows)

    def batches(self, size: int) -> list[Ids]:
        """Return batches of `size` samples; an incomplete last batch is dropped."""
        return [self.ids[at : at + size] for at in range(0, len(self.ids) - size + 1, size)]


def features(batch: Ids) -> list[FeatureIds]:
    """Return a batch as input of a scheduler: one table for each column."""
    return [FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(batch.T)]


def make(name: str, *, samples: int, seed: int = 0) -> IdStream:
    if name not in STREAMS:
        raise errors.UnknownName("id stream", name, STREAMS)
    draw, rows, said = STREAMS[name]
    return IdStream(name=name, ids=draw(np.random.default_rng([seed, 40]), rows, samples), rows=rows, said=said)


def read(path: str | pathlib.Path, *, samples: int | None = None) -> IdStream:
    """Read an id matrix from `.npy` (samples by tables) or Parquet (every integer column is a table)."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise errors.MissingFile(f"--ids {file}: there is no such file")
    readers: Mapping[str, Callable[[pathlib.Path], NDArray[Any]]] = {".npy": _npy, ".parquet": _parquet}
    if file.suffix.lower() not in readers:
        raise errors.BadInput(f"--ids {file}: the name of the file must end in .npy or .parquet")
    found = readers[file.suffix.lower()](file)[:samples]
    if found.ndim != 2 or found.shape[1] < 1 or not len(found) or found.dtype.kind not in "iu":
        raise errors.BadInput(
            f"--ids {file}: {found.dtype} of shape {found.shape}; expected whole numbers, samples by tables"
        )
    columns = [np.unique(column, return_inverse=True) for column in found.T]
    dense = np.stack([place for _, place in columns], axis=1).astype(np.int64)
    rows = tuple(len(values) for values, _ in columns)
    return IdStream(name=file.name, ids=np.ascontiguousarray(dense), rows=rows, said=f"{file.name}, in its own order")


def _npy(file: pathlib.Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except ValueError as error:
        raise errors.BadInput(f"--ids {file}: cannot be read: {error}") from None


def _parquet(file: pathlib.Path) -> NDArray[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise errors.MissingExtra("reading Parquet", "parquet") from error
    try:
        table = parquet.read_table(file)
    except pyarrow.ArrowInvalid as error:
        raise errors.BadInput(f"--ids {file}: cannot be read: {error}") from None
    whole = [
        name
        for name, field in zip(table.column_names, table.schema, strict=True)
        if pyarrow.types.is_integer(field.type)
    ]
    if not whole:
        raise errors.BadInput(f"--ids {file}: none of its columns holds whole numbers: {', '.join(table.column_names)}")
    return np.stack([table.column(name).fill_null(0).to_numpy().astype(np.int64) for name in whole], axis=1)


class Popularity:
    """Draw ids of each table by a power law; frequent ids are spread randomly over the table."""

    def __init__(self, random: np.random.Generator, rows: Sequence[int], exponent: float) -> None:
        self._random = random
        self._laws = [np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -exponent) for size in rows]
        self._names = [random.permutation(size).astype(np.int64) for size in rows]

    def draw(self, count: int) -> Ids:
        out = np.empty((count, len(self._laws)), dtype=np.int64)
        for table, (law, names) in enumerate(zip(self._laws, self._names, strict=True)):
            out[:, table] = names[np.searchsorted(law, self._random.random(count) * law[-1])]
        return out


def zipf_batches(seed: int, *, batches: int, tables: int, rows: int, batch: int) -> Ids:
    """Return independent ids of shape [batches, tables, batch]; each table has its own order of popularity."""
    drawn = Popularity(np.random.default_rng(seed), [rows] * tables, ZIPF).draw(batches * batch)
    return np.ascontiguousarray(drawn.reshape(batches, batch, tables).transpose(0, 2, 1))


def independent(exponent: float) -> "Draw":
    return lambda random, rows, samples: Popularity(random, rows, exponent).draw(samples)


def correlated(random: np.random.Generator, rows: Sequence[int], samples: int) -> Ids:
    """Draw the samples of random users. In every table, each user has one favourite id, which most of the user's
    samples have.
    """
    popular = Popularity(random, rows, ZIPF)
    own = popular.draw(USERS)
    return _loyal(random, popular, own[random.integers(0, USERS, samples)])


def sessions(random: np.random.Generator, rows: Sequence[int], samples: int) -> Ids:
    """Draw samples of users in sessions: many sessions are open at a time, and each has a fixed number of events.

    Each user has favourite ids, as in `correlated`. The first table holds the users; every session has a new user.
    """
    popular = Popularity(random, rows, ZIPF)
    place = random.integers(0, ACTIVE, samples)  # the open session of each sample
    order = np.argsort(place, kind="stable")
    turn = np.empty(samples, dtype=np.int64)  # number of earlier samples of the same place
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    turn[order] = np.arange(samples) - np.repeat(starts, np.diff(starts, append=samples))
    offset = random.integers(0, EVENTS, ACTIVE)  # so that sessions do not all end at the same time
    _, who = np.unique(place * samples + (turn + offset[place]) // EVENTS, return_inverse=True)
    own = popular.draw(int(who.max()) + 1)
    own[:, 0] = random.permutation(len(own)) % rows[0]
    drawn = _loyal(random, popular, own[who])
    drawn[:, 0] = own[who, 0]
    return drawn


def _loyal(random: np.random.Generator, popular: Popularity, own: Ids) -> Ids:
    return np.where(random.random(own.shape) < LOYALTY, own, popular.draw(len(own)))


def ratings(random: np.random.Generator, rows: Sequence[int], samples: int) -> Ids:
    """Draw ratings in file order: user after user, each with some films in a row."""
    popular = Popularity(random, rows, ZIPF)
    lengths = np.maximum(1, random.lognormal(4.3, 1.1, samples // 20 + 1000).astype(np.int64))  # mean about 135
    who = np.repeat(np.arange(len(lengths)), lengths)[:samples]
    drawn = popular.draw(samples)
    drawn[:, 0] = random.permutation(rows[0])[who % rows[0]]
    return drawn


Draw = Callable[[np.random.Generator, Sequence[int], int], Ids]
STREAMS: dict[str, tuple[Draw, tuple[int, ...], str]] = {
    "zipf-1.05": (independent(ZIPF), CLICK_LOG, "independent ids, exponent 1.05"),
    "zipf-1.2": (independent(1.2), CLICK_LOG, "independent ids, exponent 1.2"),
    "correlated": (correlated, CLICK_LOG, f"{USERS} users; a share of {LOYALTY:.0%} of their ids is their own"),
    "w1": (sessions, CLICK_LOG, "26 tables, 1.06 M rows, users in sessions, generated"),
    "w2": (ratings, MOVIES, "2 tables, 221,500 rows, a user's ratings in a row, generated"),
    "w3": (sessions, MOBILE, "22 tables, 483,000 rows, users in sessions, generated"),
    "w4": (sessions, SEARCH, "17 tables, 617,000 rows, users in sessions, generated"),
}
