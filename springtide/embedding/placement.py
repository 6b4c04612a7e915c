"""Pure. Which server owns which slot.

In: how many slots and servers. Out: a `Placement` for the servers and for every worker's router. Next: `rpc.messages`.
"""

from springtide import errors
from springtide.domain.cluster import Placement


def even(slots: int, servers: int) -> Placement:
    """The first placement of a job: runs of neighbouring slots, equal to within one, epoch 1.

    Neighbours share a lock stripe of a store, so a server should own whole runs.
    """
    if not 1 <= servers <= slots:
        raise errors.BadInput(f"cannot lay {slots} slots over {servers} servers: wanted 1 to {slots} servers")
    return Placement(epoch=1, servers=servers, server_of_slot=tuple(slot * servers // slots for slot in range(slots)))
