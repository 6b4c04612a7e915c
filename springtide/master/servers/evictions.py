"""Roles that are about to be taken away by their host: the state machine hears of it, and they hear when they may go.

In: `messages.Leaving`, again and again until its answer says `free`. Out: `job.scaling.evictions` decides what is done
meanwhile.
"""

from springtide.job.core import events
from springtide.job.scaling import evictions
from springtide.master.core.context import MasterContext
from springtide.master.servers.migration import SlotMigration
from springtide.rpc.messages import messages


def answer(context: MasterContext, moving: SlotMigration, request: messages.EvictionNotice) -> messages.EvictionReply:
    """Take note of it; whether it may go now."""
    state = context.record.state
    empty = request.role.rank not in set(context.record.owners) and moving.informed
    event = events.EvictionNoticed(request.role, request.incarnation, request.why, empty=empty)
    if evictions.changes_anything(state, event):
        context.apply(event)
    return messages.EvictionReply(evictions.may_go(state, event))
