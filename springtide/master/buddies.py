"""Who keeps copies of whose files: servers say where they take them, and an order names the buddy.

In: servers' requests for orders, which carry that address, so that a new master knows it at once. Out: orders for
`embedding.saving`. Without a mirror nothing of this happens.
"""

from collections.abc import Mapping

import msgspec

from springtide.domain.checkpoints import Buddy, CheckpointRules, buddy_of
from springtide.domain.cluster import Role
from springtide.rpc import messages


class Buddies:
    """The servers that take copies, by life: an earlier life of one listens no more."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._on = rules.mirror
        self._addresses: dict[str, str] = {}

    def listens(self, role: Role, incarnation: int, address: str) -> None:
        """A server has said where."""
        if address:
            self._addresses[f"{role}.{incarnation}"] = address

    def known(self, lives: Mapping[int, str]) -> bool:
        """Whether all of these have said where; a checkpoint should not begin before."""
        return not self._on or all(life in self._addresses for life in lives.values())

    def named(self, order: messages.Save, role: Role, lives: Mapping[int, str]) -> messages.Save:
        """The order for one server: it names the next of the others."""
        if not self._on:
            return order
        known = {rank: life for rank, life in lives.items() if life in self._addresses}
        rank = buddy_of(role.rank, known)
        if rank is None:
            return order
        buddy = Buddy(known[rank].rpartition(".")[0], self._addresses[known[rank]])
        return msgspec.structs.replace(order, buddy=buddy)
