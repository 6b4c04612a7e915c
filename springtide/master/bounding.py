"""Bounds that a job's user changes while it runs.

In: `messages.Rebound`, from `launch.pod_asks`. Out: events: the new bounds, then what brings the job into them. Next:
`job.bounding` keeps them, with the journal; `master.autoscale` and `master.online` go by them.
"""

from springtide import errors
from springtide.job import bounding, events
from springtide.master.doors import Doors
from springtide.rpc import messages


def answer(doors: Doors, request: messages.Rebound) -> messages.Ok:
    """Go by them from now on; BadInput for a job that has the numbers it was given."""
    state = doors.record.state
    if not (state.spec.planning.on or state.spec.online.on):
        raise errors.BadInput(
            f"job {state.spec.name} has the numbers of workers and servers that it was given: nobody plans it within "
            "bounds; `springtide scale` changes them"
        )
    doors.happen(events.Rebound(request.workers, request.servers, request.why))
    for move in bounding.moves(state, request.why):
        if isinstance(move, events.Scaled):
            doors.record.book.check_group(move.workers)
        doors.happen(move)
    return messages.Ok()
