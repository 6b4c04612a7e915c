"""Streams of ids for schedulers and caches: a matrix of samples by tables, generated or read from a file.

In: a name, a number of samples, a seed; or a path. Out: `IdStream`. zipf-*: independent ids; `correlated`: users whose
ids come together; w1 to w4: the tables of Herald's four data sets, with users in sessions. None is real data.
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
"""Rows of 26 tables, 1.06 million in all: few large ones and many small, as a display advertising log has them."""
MOVIES = (162_500, 59_000)
"""Users and films."""
MOBILE = (
    *(300_000, 150_000, 8_500, 8_200, 7_700, 4_700, 2_600, 560, 435, 240, 172),
    *(68, 60, 36, 26, 9, 8, 7, 7, 5, 4, 4),
)
"""22 tables of a mobile click log: addresses, devices, applications, sites, and many small ones."""
SEARCH = (
    *(300_000, 150_000, 100_000, 50_000, 8_000, 5_000, 2_000, 1_500, 600),
    *(300, 120, 60, 30, 20, 12, 6, 4),
)
"""17 tables of a sponsored search log: users, products, titles, audiences, brands, categories."""

ZIPF = 1.05  # the exponent that facts about click logs are usually given for
USERS, LOYALTY = 20_000, 0.8
"""Of `correlated`: latent users, and how often a field has the user's own id."""
ACTIVE, EVENTS = 4_000, 25
"""Of sessions: users at the same time, and how many events one has before another takes the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdStream:
    """Ids of many samples in the order in which they come."""

    name: str
    ids: Ids
    """[samples, tables]; one id a sample and table."""
    rows: tuple[int, ...]
    """Rows of each table."""
    said: str
    """What it is, for people."""

    @property
    def total_rows(self) -> int:
        return sum(self.rows)

    def batches(self, size: int) -> list[Ids]:
        """Whole batches of so many samples; what is left at the end is not there."""
        return [self.ids[at : at + size] for at in range(0, len(self.ids) - size + 1, size)]


def features(batch: Ids) -> list[FeatureIds]:
    """A batch as a scheduler takes it: a table for each column."""
    return [FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(batch.T)]


def make(name: str, *, samples: int, seed: int = 0) -> IdStream:
    if name not in STREAMS:
        raise errors.UnknownName("id stream", name, STREAMS)
    draw, rows, said = STREAMS[name]
    return IdStream(name=name, ids=draw(np.random.default_rng([seed, 40]), rows, samples), rows=rows, said=said)


def read(path: str | pathlib.Path, *, samples: int | None = None) -> IdStream:
    """An id matrix from `.npy` (samples by tables) or Parquet (every whole-number column is a table)."""
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
    """A power law over the ids of each table; frequent ids lie anywhere in a table."""

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
    """Independent ids of shape [batches, tables, batch]; each table has its own order of popularity."""
    drawn = Popularity(np.random.default_rng(seed), [rows] * tables, ZIPF).draw(batches * batch)
    return np.ascontiguousarray(drawn.reshape(batches, batch, tables).transpose(0, 2, 1))


def independent(exponent: float) -> "Draw":
    return lambda random, rows, samples: Popularity(random, rows, exponent).draw(samples)


def correlated(random: np.random.Generator, rows: Sequence[int], samples: int) -> Ids:
    """Users, each with an id of its own in every table: that one comes most of the time, else any."""
    popular = Popularity(random, rows, ZIPF)
    own = popular.draw(USERS)
    return _loyal(random, popular, own[random.integers(0, USERS, samples)])


def sessions(random: np.random.Generator, rows: Sequence[int], samples: int) -> Ids:
    """The same, but a user comes a number of times in a row, among others who are there too; then another comes.

    The first table is the user, a new one with every session.
    """
    popular = Popularity(random, rows, ZIPF)
    place = random.integers(0, ACTIVE, samples)  # which of the users who are there
    order = np.argsort(place, kind="stable")
    turn = np.empty(samples, dtype=np.int64)  # how often that place had its turn before
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    turn[order] = np.arange(samples) - np.repeat(starts, np.diff(starts, append=samples))
    offset = random.integers(0, EVENTS, ACTIVE)  # not all leave at the same time
    _, who = np.unique(place * samples + (turn + offset[place]) // EVENTS, return_inverse=True)
    own = popular.draw(int(who.max()) + 1)
    own[:, 0] = random.permutation(len(own)) % rows[0]
    drawn = _loyal(random, popular, own[who])
    drawn[:, 0] = own[who, 0]
    return drawn


def _loyal(random: np.random.Generator, popular: Popularity, own: Ids) -> Ids:
    return np.where(random.random(own.shape) < LOYALTY, own, popular.draw(len(own)))


def ratings(random: np.random.Generator, rows: Sequence[int], samples: int) -> Ids:
    """Users who rate some films in a row, in the order of the file: user after user."""
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
    "correlated": (correlated, CLICK_LOG, f"{USERS} users, {LOYALTY:.0%} of ids their own"),
    "w1": (sessions, CLICK_LOG, "26 tables, 1.06 M rows, users in sessions, generated"),
    "w2": (ratings, MOVIES, "2 tables, 221,500 rows, a user's ratings in a row, generated"),
    "w3": (sessions, MOBILE, "22 tables, 483,000 rows, users in sessions, generated"),
    "w4": (sessions, SEARCH, "17 tables, 617,000 rows, users in sessions, generated"),
}
