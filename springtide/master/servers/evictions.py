"""Roles that are about to be taken away by their host: the state machine hears of it, and they hear when they may go.

In: `messages.Leaving`, again and again until its answer says `free`. Out: `job.scaling.evictions` decides what is done
meanwhile.
"""

from springtide.job.core import events
from springtide.job.scaling import evictions
from springtide.master.core.context import Doors
from springtide.master.servers.migration import Rollout
from springtide.rpc.messages import messages


def answer(doors: Doors, moving: Rollout, request: messages.Leaving) -> messages.Farewell:
    """Take note of it; whether it may go now."""
    state = doors.record.state
    empty = request.role.rank not in set(doors.record.owners) and moving.informed
    event = events.Leaving(request.role, request.incarnation, request.why, empty=empty)
    if evictions.matters(state, event):
        doors.happen(event)
    return messages.Farewell(evictions.free(state, event))
