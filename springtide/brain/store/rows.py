"""Pure. Converts past and live jobs to database rows and back.

The rows of live jobs record the resources of each job, so that a restarted brain knows which cores are in use.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from springtide import errors
from springtide.brain.decide.cluster_state import ClusterState, LiveJobView, Pledge
from springtide.brain.decide.triggers import Administrator
from springtide.domain.plan.view import JobView, PastJob

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
MOST_EPOCH = 2**63 - 1  # largest value of a BIGINT column
Row = Mapping[str, Any]
_pasts = msgspec.json.Decoder(PastJob)
_views = msgspec.msgpack.Decoder(JobView)
_pledges = msgspec.msgpack.Decoder(Pledge)


def row_of(past: PastJob) -> dict[str, Any]:
    if not past.name or not math.isfinite(past.ended_at):
        raise errors.BadInput(
            f"past job {past.name!r}, ended at {past.ended_at}: expected a name, and a time in seconds since 1970"
        )
    kept = replace(
        past,
        name=storable(past.name),
        user=storable(past.user),
        features={
            storable(name): storable(value) if isinstance(value, str) else float(value)
            for name, value in past.features.items()
            if isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))
        },
    )
    try:
        return {"name": kept.name, "ended_at": kept.ended_at, "job": msgspec.json.encode(kept).decode()}
    except (OverflowError, ValueError, TypeError) as error:
        raise errors.BadInput(f"job {past.name!r} cannot be kept: {error}") from error


def past_of(row: Row) -> PastJob | None:
    try:
        past = _pasts.decode(row["job"])
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
        return None
    return past if past.name and math.isfinite(past.ended_at) else None


def pasts_of(rows: Sequence[Row]) -> tuple[tuple[PastJob, ...], int]:
    pasts = tuple(past for row in rows if (past := past_of(row)) is not None)
    return pasts, len(rows) - len(pasts)


def storable(text: str) -> str:
    """Return the text without characters that a database rejects: PostgreSQL rejects NUL characters, and UTF-8 rejects
    lone surrogates."""
    return text.replace("\0", UNREADABLE).encode("utf-8", "replace").decode()


def live_row(live: LiveJobView) -> dict[str, Any]:
    name = live.view.name
    if not 0 <= live.epoch <= MOST_EPOCH:
        raise errors.BadInput(f"job {name!r}: epoch {live.epoch}; expected a number from 0 to 2^63 - 1")
    try:
        view = msgspec.msgpack.encode(live.view)
        pledge = None if live.pledge is None else msgspec.msgpack.encode(live.pledge)
    except OverflowError as error:
        raise errors.BadInput(f"job {name!r}: a number in its view does not fit into 64 bits") from error
    return {"name": storable(name), "seen_at": live.seen_at, "epoch": live.epoch, "pledge": pledge, "view": view}


def restore_live(council: ClusterState, found: Iterable[Mapping[str, Any]], *, at: float) -> int:
    """Restore the jobs that reported recently; return the number of unreadable rows."""
    bad = 0
    for row in found:
        try:
            live = _live_of(row, council.rules.period_s)
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
            bad += 1
            continue
        if at - live.seen_at <= council.rules.forget_s:
            council.jobs.setdefault(live.view.name, live)
    return bad


def _live_of(row: Mapping[str, Any], period_s: float) -> LiveJobView:
    view = _views.decode(row["view"])
    if row["name"] != storable(view.name) or not math.isfinite(row["seen_at"]):
        raise ValueError("a row without a job")
    return LiveJobView(
        view=view,
        epoch=int(row["epoch"]),
        seen_at=float(row["seen_at"]),
        administrator=Administrator(period_s=period_s),
        pledge=None if row["pledge"] is None else _pledges.decode(row["pledge"]),
    )
