"""Pure. Converts live jobs to database rows and back, so that a restarted brain knows the held resources.

In: live jobs. Out: rows for `brain.store.store`; live jobs from readable rows. Masters send new views when they ask
again. Until then the rows say which job holds which resources, so that a new brain does not treat a full cluster as
empty.
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

MOST_EPOCH = 2**63 - 1  # largest value of a BIGINT column
_views = msgspec.msgpack.Decoder(JobView)
_pledges = msgspec.msgpack.Decoder(Pledge)


def row_of(live: LiveJobView) -> dict[str, Any]:
    """Return the row of one live job; raise if no database can store it."""
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
    if row["name"] != rows.storable(view.name) or not math.isfinite(row["seen_at"]):
        raise ValueError("a row that belongs to nobody")
    return LiveJobView(
        view=view,
        epoch=int(row["epoch"]),
        seen_at=float(row["seen_at"]),
        administrator=Administrator(view.name, period_s=period_s),
        pledge=None if row["pledge"] is None else _pledges.decode(row["pledge"]),
    )
