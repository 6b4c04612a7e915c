"""Where workers take batches of a stream from each other: their addresses, as each tells with its heartbeat.

In: heartbeats (`master.dispatcher`). Out: the list, for workers that know another one. Nothing of it is kept: a master
that takes over has it again as soon as everyone has called.
"""

from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import LeaseHolder
from springtide.job.state import JobState
from springtide.rpc.messages import shuffling
from springtide.rpc.messages.shuffling import Shuffler, Shufflers


class ShufflerList:
    """Workers that can be called. Whether one still belongs to the job is asked every time."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._addresses: dict[LeaseHolder, str] = {}
        self._listed = shuffling.listed(())

    def heard(self, holder: LeaseHolder, address: str, known: int) -> Shufflers | None:
        """A worker says where it can be called and which list it knows; the list, where that is another one.

        Workers without an address take no part, and are told nothing.
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
