"""Pure. Where a worker's script is in its epochs: what its next life, or a run that is resumed, begins with.

In: worker/epochs/epochs.py tells it to the master whenever a script begins an epoch or a loop over `batches`. Out: the
master keeps it with the states of the script's objects, and a worker that joins is given both. Design:
docs/design/epochs.md.
"""

from typing import NamedTuple


class EpochPlace(NamedTuple):
    """A point in a script."""

    epoch: int
    """The epoch that the script is in, from 0."""
    first: int
    """Loops over `batches` that the script had begun before this epoch."""
    begun: int
    """Loops begun by now; equal to `first` until the epoch's own loop begins."""
    loop: str = ""
    """The `for` statement around the loops over `batches`, as worker/epochs/user_loops.py names it; empty: there is not
    one that all of them are in.
    """

    def is_before(self, other: "EpochPlace") -> bool:
        return self[:3] < other[:3]

    @property
    def boundary(self) -> bool:
        """Whether the epoch has begun, but none of its loops."""
        return self.begun == self.first
