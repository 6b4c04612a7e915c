"""Pure. When a server gives back what it was granted beyond the others: it has not needed it for a good while.

In: its limit, what servers of the job have otherwise, the most it used while it was watched
(`master.servers.grant_release`). Out: a lower limit, or None. Where limits are raised: `planning.guards.hot_servers` (a
hot server's CPU), `job.recovery.recovery` (memory, after a kill for the want of it).
"""

from dataclasses import dataclass

CALM_S = 300.0
"""So long nothing may have come near the limit: a raise that is taken back at once would only be asked for again."""
ROOM = 1.5
"""Above the most that it used."""
WORTH = 0.8
"""Of the limit that it has: for less than a fifth nothing is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGrant:
    """What one server may use of one thing, CPUs or bytes."""

    limit: float
    usual: float
    """What servers of the job have that were granted nothing."""
    most: float
    """That it used at any moment while it was watched."""
    watched_s: float


def eased(extra: ServerGrant) -> float | None:
    if extra.limit <= extra.usual or extra.watched_s < CALM_S:
        return None
    enough = max(extra.usual, ROOM * extra.most)
    return enough if enough <= WORTH * extra.limit else None
