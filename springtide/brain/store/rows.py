"""Pure. Nouns as rows of the database, and back. A row that makes no sense is None, never an exception.

In: `PastJob`s and what `brain.store.store` has fetched, which others may have written. Out: rows, or nouns. Numbers
that are none (NaN, infinity) are left out: SQL and JSON do not have them, and they tell nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.domain.core.shape import NO_NEED, MemoryNeed, Shape
from springtide.domain.plan.profile import ModelFacts
from springtide.domain.plan.view import Feature, PastJob

FINISHED, FAILED = "finished", "failed"
UNREADABLE = "\N{REPLACEMENT CHARACTER}"

T = TypeVar("T")
Row = Mapping[str, Any]


def row_of(past: PastJob) -> dict[str, Any]:
    """A past job as a row; one that no database could hold is refused."""
    if not past.name or not math.isfinite(past.ended_at):
        raise errors.BadInput(
            f"past job {past.name!r}, ended at {past.ended_at}: wanted a name, and a time in seconds since 1970"
        )
    features = {storable(name): _plain(value) for name, value in past.features.items() if _says_something(value)}
    throughput = past.throughput
    return {
        "name": storable(past.name),
        "owner": storable(past.user),
        "outcome": FINISHED if past.finished else FAILED,
        "ended_at": past.ended_at,
        "throughput": throughput if throughput is not None and math.isfinite(throughput) else None,
        "features": encoded(features, past.name),
        "initial": encoded(past.initial, past.name),
        "shape": encoded(past.shape, past.name),
        "need": encoded(past.need, past.name),
        "facts": encoded(past.facts, past.name),
    }


def past_of(row: Row) -> PastJob | None:
    """The past job of a row; None: the row makes no sense."""
    try:
        throughput = row["throughput"]
        outcome = row["outcome"]
        if outcome not in (FINISHED, FAILED):
            return None
        return PastJob(
            name=_text(row["name"]),
            user=_text(row["owner"], empty=True),
            features=decoded(row["features"], dict[str, Feature]) or {},
            initial=decoded(row["initial"], Shape | None),
            shape=decoded(row["shape"], Shape | None),
            finished=outcome == FINISHED,
            ended_at=_number(row["ended_at"]),
            throughput=None if throughput is None else _number(throughput),
            need=decoded(row["need"], MemoryNeed | None) or NO_NEED,
            facts=decoded(row["facts"], ModelFacts | None),
        )
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
        return None


def pasts_of(rows: Sequence[Row]) -> tuple[tuple[PastJob, ...], int]:
    """All past jobs that make sense, and how many do not."""
    found = tuple(past for row in rows if (past := past_of(row)) is not None)
    return found, len(rows) - len(found)


def encoded(noun: Any, name: str) -> str | None:
    if noun is None:
        return None
    try:
        return msgspec.json.encode(noun).decode()
    except (OverflowError, ValueError, TypeError) as error:
        raise errors.BadInput(f"job {name!r}: {noun} cannot be kept: {error}") from error


def decoded(text: Any, kind: Any) -> Any:
    """The noun of some JSON, its types checked; None stays None."""
    return None if text is None else msgspec.json.decode(text, type=kind)


def storable(text: str) -> str:
    """Text that every database takes: PostgreSQL has no zero character, UTF-8 no half of a pair."""
    return text.replace("\0", UNREADABLE).encode("utf-8", "replace").decode()


def _plain(value: Feature) -> Feature:
    return storable(value) if isinstance(value, str) else float(value)


def _says_something(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))


def _text(value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise ValueError("no text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)
