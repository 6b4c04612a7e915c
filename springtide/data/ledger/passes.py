"""Pure. The passes of a job, and what there is to know of them together. Nothing here changes anything.

In: data/ledger/pass_registry.py, which opens passes and is their one door. A pass is a `Ledger` (shards, workers each
at their own pace), a `Flow` (the partitions of a stream) or a `Lockstep` (a bsp group).
"""

from collections.abc import Sequence

from springtide.data.ledger.async_ledger import Lease, Ledger
from springtide.data.ledger.bsp_ledger import Lockstep
from springtide.data.ledger.bsp_stream_ledger import Convoy
from springtide.data.ledger.stream_ledger import Flow
from springtide.domain.data.leases import Grant, LeaseKey, Poisoned, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut

Pass = Ledger | Flow | Lockstep


class Passes:
    """All passes so far, in the order in which they were opened."""

    __slots__ = ()
    passes: list[Pass]

    def totals(self) -> Totals:
        """Shards of all passes so far, by state."""
        return sum((ledger.totals() for ledger in self.passes), Totals())

    def poisoned(self) -> tuple[Poisoned, ...]:
        """What was given up, with the errors."""
        return tuple(each for ledger in self.shared() for each in ledger.poisoned)

    def leases(self) -> tuple[tuple[DatasetCard, LeaseKey, Lease], ...]:
        """All live leases of shards with the data set they are of: what the balance at the tail is decided by."""
        return tuple((ledger.card, key, lease) for ledger in self.ledgers() for key, lease in ledger.leases.items())

    @property
    def samples_done(self) -> int:
        """Samples that are trained, of all passes so far, and offsets of streams that held nothing to train."""
        return sum(ledger.samples_done for ledger in self.passes)

    @property
    def samples_trained(self) -> int:
        """Samples that are trained, and nothing else."""
        return self.samples_done - sum(one.void for one in self.passes if not isinstance(one, Ledger))

    @property
    def todo_samples(self) -> int:
        """Samples that nobody holds."""
        return sum(ledger.todo.samples for ledger in self.ledgers())

    def flows(self) -> list[Flow]:
        """Passes over streams."""
        return [one for one in self.passes if isinstance(one, Flow)]

    def convoy(self, card: DatasetCard) -> Convoy | None:
        """The bsp group's pass over the stream of this card."""
        return next((one for one in reversed(self.passes) if isinstance(one, Convoy) and one.card == card), None)

    def cuts_of(self, grants: Sequence[Grant]) -> tuple[BatchCut, ...]:
        """What the holder of these leases must know of them, where they are of a stream."""
        ledger = self.of_shard(grants[0].shard) if grants else None
        return ledger.cuts_of(grants) if isinstance(ledger, Flow) else ()

    @property
    def on_stream(self) -> bool:
        """Whether a pass is over a stream."""
        return any(one.card.stream is not None for one in self.passes)

    @property
    def in_step(self) -> bool:
        """Whether the workers go through the data together."""
        return any(ledger.card.in_step for ledger in self.passes)

    @property
    def epochs(self) -> int:
        """Epochs of all passes so far."""
        return sum(ledger.card.epochs for ledger in self.passes)

    def ledgers(self) -> list[Ledger]:
        """Passes over shards, at each worker's own pace."""
        return [ledger for ledger in self.passes if isinstance(ledger, Ledger)]

    def shared(self) -> list[Ledger | Flow]:
        """Passes in which one worker can take over from another."""
        return [one for one in self.passes if not isinstance(one, Lockstep)]

    def locksteps(self) -> list[Lockstep]:
        """Passes of a bsp group."""
        return [ledger for ledger in self.passes if isinstance(ledger, Lockstep)]

    def of_shard(self, shard: int) -> Pass | None:
        """The pass that the number of a shard is of."""
        for ledger in reversed(self.passes):
            if ledger.base <= shard < ledger.base + ledger.numbers:
                return ledger
        return None
