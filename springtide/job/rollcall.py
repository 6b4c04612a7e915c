"""Pure. Finds the owner of every slot after a server is lost: all living servers stop handing slots over, and then
report their slots.

If no living server has a slot, the slot was lost with the dead server. In the master's record, such a slot may belong
to a living server, if the slot was being transferred. Next: `master.servers.migration`. Design:
docs/design/migration.md.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

TERM = 2**32  # size of the number range that each master uses for its roll calls; the next master uses a higher range


class ServerAnswer(msgspec.Struct, frozen=True):
    """Slots of one server after all servers have stopped handing slots over."""

    owned: frozenset[int]
    doubts: Mapping[int, int]
    """Slots that the server closed for a transfer, each with its receiver. The receiver has not confirmed the
    transfer.
    """


@dataclass(slots=True)
class RollCall:
    """Roll calls of one master, one at a time. Servers must answer to the call with this `number`."""

    number: int
    open: bool = False
    """True if a server was lost and not all servers have answered yet."""
    _all_still: bool = False
    _still: set[int] = field(default_factory=set)
    _said: dict[int, ServerAnswer] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a roll call after a server is lost, because earlier answers may be outdated."""
        self.number += 1
        self.open, self._all_still = True, False
        self._still, self._said = set(), {}

    def answer(self, rank: int, number: int, reply: ServerAnswer, living: Collection[int]) -> bool:
        """Record a living server's answer to `number`. Return True if the answer changes what the master must tell the
        other servers.

        The server has stopped handing slots over since it received the number of the call. The server's report
        counts only once the server knows that all servers have stopped. Until then, a slot may still be on its way
        to this server.
        """
        if not self.open or number < self.number:
            return False
        if self._all_still:
            self._said[rank] = reply
            return self.complete(living)
        self._still.add(rank)
        return self._go_on(living)

    def complete(self, living: Collection[int]) -> bool:
        self._go_on(living)
        return not self.open or (self._all_still and self._said.keys() >= set(living))

    def _go_on(self, living: Collection[int]) -> bool:
        if self.open and not self._all_still and self._still >= set(living):
            self._all_still = True
            self.number += 1
            return True
        return False

    def changes(self, owners: Sequence[int], living: Collection[int], heir: int) -> dict[int, int]:
        """Return the slots whose reported owner differs from the record. Slots without an owner go to `heir`, a lost
        server.
        """
        found: dict[int, int] = {}
        has = {slot: rank for rank in sorted(living) for slot in self._said[rank].owned}
        closed = {
            slot: (rank, at)
            for rank in sorted(living)
            for slot, at in self._said[rank].doubts.items()
            # if the record has a later owner, the transfer completed, and this copy of the slot is outdated
            if owners[slot] == rank
        }
        for slot, owner in enumerate(owners):
            if slot in has:
                now = has[slot]
            # if the source and the target both live, they settle who owns the slot; if the target is lost, the target
            # may have trained the slot
            elif slot in closed:
                source, target = closed[slot]
                now = source if target in living else target
            else:
                now = heir if owner in living else owner
            if now != owner:
                found[slot] = now
        return found

    def close(self) -> None:
        self.open = False
