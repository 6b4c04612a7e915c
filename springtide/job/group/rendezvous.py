"""Pure. When a bsp group can be formed, of whom, and whose model it goes on with.

In: `master.servers.bsp_group`, with the workers that wait for it. Out: a `Formation`, or None: wait on. Next:
`worker.bsp.group`.

A group is formed for the first time by all; in the middle of a step by the same ranks as before, since each has its
part of the step; between two steps, where nobody has anything in hand, by as many ranks as the job should have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from springtide.domain.data.leases import LeaseHolder


class GroupArrival(NamedTuple):
    """A worker that waits for a group."""

    fresh: bool = True
    """It has no part in the model yet: a first life, or a new one."""
    idle: bool = True
    """It has no step in hand."""
    resting: bool = False
    """Its script has ended; it stays only to hand its model on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFormation:
    """Who goes on together."""

    members: tuple[LeaseHolder, ...]
    leader: LeaseHolder
    """The lowest rank of those whose model is trained."""
    known: bool
    """Whether there is one; else all begin with the leader's as it is."""
    resting: tuple[int, ...] = ()
    at_rest: bool = False
    """Nobody has a step in hand, or nobody has trained yet: slots may move before the group goes on."""
    over: bool = False
    """Nobody goes on: all have ended, or a step cannot be completed and the job is to stop anyway."""


def form(
    arrived: Mapping[LeaseHolder, GroupArrival], *, ranks: Sequence[int], active: Sequence[LeaseHolder], workers: int
) -> GroupFormation | None:
    """`ranks` are those of the group so far; `active` the present life of every worker that the job has, by rank."""
    own = [holder for holder in active if holder.rank in ranks] or list(active)
    if not own or any(holder not in arrived for holder in own):
        return None
    known = [holder for holder in own if not arrived[holder].fresh]
    if any(not arrived[holder].idle for holder in known):
        return _formed(own, arrived, over=len(own) < len(ranks))
    if any(holder not in arrived for holder in active):
        return None
    chosen = list(active[:workers])
    if known and not set(known) & set(chosen):
        chosen[-1] = known[0]
    return _formed(sorted(chosen), arrived, over=all(arrived[holder].resting for holder in chosen))


def _formed(
    members: Sequence[LeaseHolder], arrived: Mapping[LeaseHolder, GroupArrival], *, over: bool
) -> GroupFormation:
    known = [holder for holder in members if not arrived[holder].fresh]
    return GroupFormation(
        members=tuple(members),
        leader=(known or list(members))[0],
        known=bool(known),
        at_rest=all(arrived[holder].idle for holder in known),
        resting=tuple(holder.rank for holder in members if arrived[holder].resting),
        over=over,
    )
