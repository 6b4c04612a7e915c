"""Pure. Converts past jobs to database rows and back. An unreadable row becomes None, never an exception.

In: `PastJob`s, and rows that `brain.store.store` fetched and other programs may have written. Out: rows or objects. NaN
and infinity are left out, because SQL and JSON cannot represent them.
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
    """Return the row of a past job; raise if no database can store it."""
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
    """Return the past job of a row; None if the row is unreadable."""
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
    """Return all readable past jobs and the number of unreadable rows."""
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
    """Decode JSON into a checked type; None stays None."""
    return None if text is None else msgspec.json.decode(text, type=kind)


def storable(text: str) -> str:
    """Return text that every database accepts: PostgreSQL rejects NUL characters, UTF-8 rejects lone surrogates."""
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
