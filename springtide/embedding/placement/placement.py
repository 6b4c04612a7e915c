"""Pure. Place slots on servers, and plan the moves when servers or loads change.

In: slots, server capacities, and the load of each slot as servers measured it. Out: a `Placement`, or a `SlotMove` for
each slot that moves. Next: `master.servers.migration` publishes the moves as the goal, `server.migration` carries them
out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from springtide import errors
from springtide.domain.core.roles import Placement, SlotMove
from springtide.embedding.placement import fewest_moves, heuristic

TOLERANCE = 0.1
"""Deviation from its share within which a server counts as balanced. Moves cost time, and loads always fluctuate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoad:
    """Load of one slot, as its server measured it."""

    bytes: float = 0.0
    requests: float = 0.0
    """Keys pulled or pushed, in any unit that all slots share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapacity:
    """Capacity of a server, in any unit that all servers share. Requests cost CPU, bytes take memory."""

    cpu: float = 1.0
    memory: float = 1.0


def even(slots: int, servers: int) -> Placement:
    """Return the first placement of a job: contiguous runs of slots with equal sizes (plus or minus one), epoch 1.

    Neighbouring slots share a lock stripe of a store, so a server should own whole runs.
    """
    if not 1 <= servers <= slots:
        raise errors.BadInput(f"cannot lay {slots} slots over {servers} servers: wanted 1 to {slots} servers")
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot * servers // slots for slot in range(slots)))


def moves(
    old: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad], *, tolerance: float = TOLERANCE
) -> tuple[SlotMove, ...]:
    """Return the slot moves that bring every server within `tolerance` of its share.

    `old` names the server of each slot; a server that is not in `servers` leaves and keeps no slots. CPU determines a
    server's share of requests, and memory determines its share of bytes. Without measurements all slots count alike.

    The moves are the fewest possible if they match the bound of `fewest`, or if `fewest_moves.fewer` finishes.
    Otherwise they are only slightly more. If slots are too coarse for a balanced layout, the result is as close as
    single moves and exchanges allow.
    """
    if not servers:
        raise errors.BadInput("slots cannot be laid over no servers: one must stay")
    if len(load) != len(old):
        raise errors.BadInput(f"loads of {len(load)} slots for {len(old)} slots")
    problem, ranks = _problem(old, servers, load, tolerance), sorted(servers)
    now = _chosen(problem)
    changed = np.flatnonzero(now != problem.before)
    return tuple(SlotMove(slot=slot, source=old[slot], target=ranks[int(now[slot])]) for slot in changed.tolist())


def _chosen(problem: heuristic.PlacementProblem) -> heuristic.Ints:
    least = fewest_moves.at_least(problem)
    quick = heuristic.settled(problem, least=least)
    if problem.balanced(quick) and problem.moves(quick) <= least:
        return quick
    return fewest_moves.fewer(problem, quick)


def balance(owners: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad]) -> dict[int, float]:
    """Return each server's deviation from its share, the larger of bytes and requests; 0.1 is 10% over or under."""
    problem = _problem(owners, servers, load, 0.0)
    held = problem.held(problem.before)
    return {rank: float(np.abs(held[i] - 1.0).max()) for i, rank in enumerate(sorted(servers))}


def fewest(
    old: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad], *, tolerance: float = TOLERANCE
) -> int:
    """Return a lower bound on the moves of any layout within the tolerance; see `embedding.placement.fewest_moves`."""
    return fewest_moves.at_least(_problem(old, servers, load, tolerance))


def _problem(
    old: Sequence[int], servers: Mapping[int, ServerCapacity], load: Sequence[SlotLoad], tolerance: float
) -> heuristic.PlacementProblem:
    ranks = sorted(servers)
    place = {rank: i for i, rank in enumerate(ranks)}
    shares = [_shares([servers[rank].memory for rank in ranks]), _shares([servers[rank].cpu for rank in ranks])]
    parts = [_parts([each.bytes for each in load]), _parts([each.requests for each in load])]
    return heuristic.PlacementProblem(
        before=np.array([place.get(server, -1) for server in old], dtype=np.int64),
        part=np.array(parts).T,
        share=np.array(shares).T,
        tolerance=tolerance,
    )


def _shares(amounts: Sequence[float]) -> heuristic.Floats:
    given = np.array(amounts, dtype=np.float64)
    if not (given > 0).all():
        raise errors.BadInput(f"a server's capacity must be more than nothing, got {amounts}")
    shares: heuristic.Floats = given / given.sum()
    return shares


def _parts(loads: Sequence[float]) -> heuristic.Floats:
    given = np.maximum(np.array(loads, dtype=np.float64), 0.0)
    total = given.sum()
    parts: heuristic.Floats = given / total if total > 0 else np.full(len(given), 1.0 / len(given))
    return parts
