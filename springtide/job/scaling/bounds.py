"""Pure. Other bounds for a job that runs: between how many workers and servers plans choose from now on.

In: `events.Rebound`, when the user has changed min or max. Out: what was decided, and the moves that bring a number
which is outside back in. Next: `job.scaling.plan_state.bounds_of` for plans, `master.autoscale.online_loop` for jobs
that follow a stream.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from springtide import errors
from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.job.core import events

if TYPE_CHECKING:
    from springtide.job.state import JobState

NUMBERS = ("workers", "servers")
Limits = dict[str, tuple[int, int]]
"""From and to, of `NUMBERS` that were changed."""


def take(state: "JobState", event: events.BoundsChanged) -> tuple[str, str]:
    """Keep to them. A number that was set by hand before is open again; a plan under way was made for other bounds."""
    given = {name: limits for name in NUMBERS if (limits := getattr(event, name)) is not None}
    for name, (least, most) in given.items():
        if not 1 <= least <= most:
            raise errors.BadInput(f"bounds: {name} from {least} to {most}; wanted 1 or more, the least not above")
    planned = state.planned
    planned.limits = planned.limits | given
    planned.pinned = tuple(name for name in planned.pinned if name not in given)
    for name in given:
        setattr(state.short, name, 0)  # what had no room was asked for within other bounds
    planned.epoch += 1
    planned.drop()
    return "plan with " + ", ".join(f"{least} to {most} {name}" for name, (least, most) in given.items()), event.why


def moves(state: "JobState", why: str) -> list[events.Event]:
    """What brings the job into them, if it is outside; the servers of a bsp group stay."""
    found: list[events.Event] = []
    extra, limits = state.planned.extra, state.planned.limits
    now = {"servers": state.servers_wanted, "workers": state.workers - extra}
    wanted = {name: max(limits[name][0], min(now[name], limits[name][1])) for name in now if name in limits}
    if wanted.get("servers", now["servers"]) != now["servers"] and not state.in_step:
        found.append(events.ServersScaled(wanted["servers"], why))
    if wanted.get("workers", now["workers"]) != now["workers"]:
        found.append(events.WorkersScaled(wanted["workers"] + extra, why, extra=extra))
    return found


def within(bounds: ShapeBounds, limits: Limits) -> tuple[Shape, Shape]:
    """Least and most of the bounds, with the numbers that were changed."""
    least, most = ({name: pair[end] for name, pair in limits.items()} for end in (0, 1))
    return replace(bounds.least, **least), replace(bounds.most, **most)
