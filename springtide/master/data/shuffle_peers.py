"""Lists the addresses at which workers accept stream batches from each other.

In: heartbeats (`master.dispatcher`), which carry each worker's address. Out: the list, for workers that have a
different list. Nothing is journaled: a master that takes over has the list after one heartbeat of each worker.
"""

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.job.state import JobState
from springtide.rpc.messages import shuffling
from springtide.rpc.messages.shuffling import Shuffler, Shufflers


class ShufflerList:
    """Workers that accept batches. Every lookup checks that a worker still belongs to the job."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._addresses: dict[LeaseHolder, str] = {}
        self._listed = shuffling.listed(())

    def heard(self, holder: LeaseHolder, address: str, known: int) -> Shufflers | None:
        """Record a worker's address. Return the current list if the worker knows another list.

        Workers without an address do not take part and get no list.
        """
        if not address:
            return None
        now = {each: where for each, where in self._addresses.items() if each.rank != holder.rank} | {holder: address}
        now = {each: where for each, where in now.items() if each == holder or self._belongs(each)}
        if now != self._addresses:
            self._addresses = now
            self._listed = shuffling.listed(Shuffler(str(each), where) for each, where in now.items())
        return None if known == self._listed.digest else self._listed

    def _belongs(self, holder: LeaseHolder) -> bool:
        role = Role(RoleKind.WORKER, holder.rank)
        return str(role) in self._state.nodes and not self._state.fenced(role, holder.incarnation)
