"""Builds a `JobMap`: where every slot, shard and partition of a job is. The master builds a job map only for an open
dashboard.
"""

from springtide.master.core.context import MasterContext
from springtide.master.parts import MasterParts
from springtide.rpc.messages.types import JobMap, ShardMap, SlotMap

MOST_STATES = 20_000
"""Most letters for shards. With more shards, a letter stands for several."""
ORDER = "xlpd"
"""States by importance: a group of shards has the first of these states that one of its shards has."""


def map_of(context: MasterContext, parts: MasterParts) -> JobMap:
    ahead = parts.guards.ahead
    return JobMap(
        slots=slots_of(context, parts),
        shards=shards_of(context.record.book.shard_states()),
        partitions=parts.online.partitions(context.clock()),
        memory=tuple(str(forecast) for forecast in ahead),
        short_of_memory=any(forecast.crosses_at is not None for forecast in ahead),
    )


def slots_of(context: MasterContext, parts: MasterParts) -> SlotMap:
    owners, loads = context.record.slots.owners, parts.migration.loads
    return SlotMap(
        owners=owners,
        bytes=tuple(loads.bytes.get(slot, 0.0) for slot in range(len(owners))),
        requests=tuple(round(loads.requests.get(slot, 0.0), 1) for slot in range(len(owners))),
        goals=parts.migration.goals,
        epoch=context.record.slots.epoch,
    )


def shards_of(states: str) -> ShardMap:
    """Return the states of shards with at most `MOST_STATES` letters."""
    step = max(1, -(-len(states) // MOST_STATES))
    if step == 1:
        return ShardMap(states=states, total=len(states))
    groups = (set(states[first : first + step]) for first in range(0, len(states), step))
    found = "".join(next(state for state in ORDER if state in group) for group in groups)
    return ShardMap(states=found, total=len(states))
