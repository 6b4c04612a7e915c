"""Handles eviction notices: informs the state machine, and tells the role when it may leave.

In: `messages.EvictionNotice`, repeated until the reply says `free`. Next: `job.scaling.evictions` decides what happens
in the meantime.
"""

from springtide.job.core import events
from springtide.job.scaling import evictions
from springtide.master.core.context import MasterContext
from springtide.master.servers.migration import SlotMigration
from springtide.rpc.messages import messages


def answer(context: MasterContext, moving: SlotMigration, request: messages.EvictionNotice) -> messages.EvictionReply:
    """Record the notice, and reply whether the role may exit now."""
    state = context.record.state
    empty = request.role.rank not in set(context.record.owners) and moving.informed
    event = events.EvictionNoticed(request.role, request.incarnation, request.why, empty=empty)
    if evictions.changes_anything(state, event):
        context.apply(event)
    return messages.EvictionReply(evictions.may_go(state, event))
