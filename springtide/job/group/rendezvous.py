"""Pure. Decides when a bsp group can form, its members, and the leader whose model it continues with.

In: `master.servers.bsp_group`, with the workers that wait. Out: a `GroupFormation`, or None to keep waiting. Next:
`worker.bsp.group`.

All workers form the first group. In the middle of a step, the same ranks as before must form the group, because each
rank has its part of the step. Between two steps, the group has as many ranks as the job should have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from springtide.domain.data.leases import LeaseHolder


class GroupArrival(NamedTuple):
    """A worker that waits for a group."""

    fresh: bool = True
    """True if the worker has no share in the model yet: it is a new process."""
    idle: bool = True
    """True if the worker has no step in progress."""
    resting: bool = False
    """True if the worker's script has ended, and it stays only to pass its model on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFormation:
    """Members and leader of a new group."""

    members: tuple[LeaseHolder, ...]
    leader: LeaseHolder
    """Lowest rank whose model is trained."""
    known: bool
    """True if some rank has a trained model. Otherwise all ranks begin with the leader's untrained model."""
    resting: tuple[int, ...] = ()
    at_rest: bool = False
    """True if no rank has a step in progress, or no rank has trained yet. Slots may then move before the group
    continues."""
    over: bool = False
    """True if no rank continues: all scripts have ended, or a step cannot complete and the job is stopping anyway."""


def form(
    arrived: Mapping[LeaseHolder, GroupArrival], *, ranks: Sequence[int], active: Sequence[LeaseHolder], workers: int
) -> GroupFormation | None:
    """Return the new group, or None to keep waiting. `ranks` are the ranks of the previous group. `active` is the
    present incarnation of every worker of the job, by rank.
    """
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
