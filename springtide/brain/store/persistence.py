"""Pure. A council as rows of the database, and back: what a brain that is started again must know at once.

In: live jobs. Out: rows for `brain.store.store`; jobs of rows that make sense. Views come again by themselves as
masters ask; until then the rows say who holds what, so that a new brain does not take a full cluster for an empty one.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from springtide import errors
from springtide.brain.decide.cluster_state import ClusterState, LiveJobView, Pledge
from springtide.brain.decide.triggers import Administrator
from springtide.brain.store import rows
from springtide.domain.plan.view import JobView

MOST_EPOCH = 2**63 - 1  # the largest number of a column
_views = msgspec.msgpack.Decoder(JobView)
_pledges = msgspec.msgpack.Decoder(Pledge)


def row_of(live: LiveJobView) -> dict[str, Any]:
    """One live job; one that no database could hold is refused."""
    name = live.view.name
    if not 0 <= live.epoch <= MOST_EPOCH:
        raise errors.BadInput(f"job {name!r}: epoch {live.epoch}; wanted a number from 0 to 2^63 - 1")
    try:
        view = msgspec.msgpack.encode(live.view)
        pledge = None if live.pledge is None else msgspec.msgpack.encode(live.pledge)
    except OverflowError as error:
        raise errors.BadInput(f"job {name!r}: a number in its view does not fit into 64 bits") from error
    return {
        "name": rows.storable(name),
        "seen_at": live.seen_at,
        "epoch": live.epoch,
        "stage": str(live.view.stage),
        "shape": rows.encoded(live.view.shape, name),
        "pledge": pledge,
        "view": view,
    }


def restore(council: ClusterState, found: Iterable[Mapping[str, Any]], *, at: float) -> int:
    """Take back the jobs that were heard of lately; how many rows made no sense."""
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
    if row["name"] != rows.storable(view.name) or not math.isfinite(row["seen_at"]):
        raise ValueError("a row that belongs to nobody")
    return LiveJobView(
        view=view,
        epoch=int(row["epoch"]),
        seen_at=float(row["seen_at"]),
        administrator=Administrator(view.name, period_s=period_s),
        pledge=None if row["pledge"] is None else _pledges.decode(row["pledge"]),
    )
