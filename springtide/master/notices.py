"""Roles that are about to be taken away by their host: the state machine hears of it, and they hear when they may go.

In: `messages.Leaving`, again and again until its answer says `free`. Out: `job.notices` decides what is done meanwhile.
"""

from springtide.job import events, notices
from springtide.master.doors import Doors
from springtide.master.rollout import Rollout
from springtide.rpc import messages


def answer(doors: Doors, moving: Rollout, request: messages.Leaving) -> messages.Farewell:
    """Take note of it; whether it may go now."""
    state = doors.record.state
    empty = request.role.rank not in set(doors.record.owners) and moving.informed
    event = events.Leaving(request.role, request.incarnation, request.why, empty=empty)
    if notices.matters(state, event):
        doors.happen(event)
    return messages.Farewell(notices.free(state, event))
