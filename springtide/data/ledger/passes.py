"""Pure. All passes of a job over its data, and questions about them. Nothing here changes a pass.

A pass is an `AsyncLedger` (shards, each worker at its own pace), a `StreamLedger` (partitions of a stream) or a
`BspLedger` (a bsp group). In: data/ledger/job_ledger.py opens passes and changes them. A checkpoint's manifest keeps a
`JobProgress`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from springtide.data.ledger.async_ledger import AsyncLedger, AsyncLedgerState, ShardLease
from springtide.data.ledger.bsp_ledger import BspLedger, BspLedgerState
from springtide.data.ledger.bsp_stream_ledger import BspStreamLedger
from springtide.data.ledger.stream_ledger import StreamLedger, StreamLedgerState
from springtide.domain.data.leases import Grant, LeaseKey, Poisoned, Totals
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut

PassLedger = AsyncLedger | StreamLedger | BspLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far the job was when a checkpoint began. Every slot of the checkpoint has every batch before that."""

    ledgers: tuple[AsyncLedgerState, ...] = ()
    locksteps: tuple[BspLedgerState, ...] = ()
    """Passes of a bsp group, at exactly one step."""
    flows: tuple[StreamLedgerState, ...] = ()
    """Passes over streams."""

    @property
    def samples(self) -> int:
        """Samples that were trained."""
        shards = sum(ledger.samples_done for ledger in self.ledgers)
        groups = sum(group.first - (group.stream.void if group.stream else 0) for group in self.locksteps)
        return shards + groups + sum(stream.samples_done - stream.void for stream in self.flows)


class Passes:
    """All passes so far, in the order in which they were opened."""

    __slots__ = ()
    passes: list[PassLedger]

    def totals(self) -> Totals:
        return sum((ledger.totals() for ledger in self.passes), Totals())

    def poisoned(self) -> tuple[Poisoned, ...]:
        """Ranges that were given up, with their errors."""
        return tuple(poisoned for ledger in self.shared() for poisoned in ledger.poisoned)

    def leases(self) -> tuple[tuple[DatasetCard, LeaseKey, ShardLease], ...]:
        """All live leases of shards, each with its data set."""
        return tuple((ledger.card, key, lease) for ledger in self.ledgers() for key, lease in ledger.leases.items())

    @property
    def samples_done(self) -> int:
        """Trained samples of all passes, and stream offsets that held nothing to train."""
        return sum(ledger.samples_done for ledger in self.passes)

    @property
    def samples_trained(self) -> int:
        return self.samples_done - sum(ledger.void for ledger in self.passes if not isinstance(ledger, AsyncLedger))

    @property
    def todo_samples(self) -> int:
        """Samples of shards that nobody holds."""
        return sum(ledger.todo.samples for ledger in self.ledgers())

    def flows(self) -> list[StreamLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, StreamLedger)]

    def bsp_stream(self, card: DatasetCard) -> BspStreamLedger | None:
        """The bsp group's pass over the stream of this card."""
        for ledger in reversed(self.passes):
            if isinstance(ledger, BspStreamLedger) and ledger.card == card:
                return ledger
        return None

    def cuts_of(self, grants: Sequence[Grant]) -> tuple[BatchCut, ...]:
        """Cuts within these leases, where they are of a stream."""
        ledger = self.of_shard(grants[0].shard) if grants else None
        return ledger.cuts_of(grants) if isinstance(ledger, StreamLedger) else ()

    @property
    def on_stream(self) -> bool:
        return any(ledger.card.stream is not None for ledger in self.passes)

    @property
    def in_step(self) -> bool:
        """True if the workers go through the data together."""
        return any(ledger.card.in_step for ledger in self.passes)

    @property
    def epochs(self) -> int:
        return sum(ledger.card.epochs for ledger in self.passes)

    def ledgers(self) -> list[AsyncLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, AsyncLedger)]

    def shared(self) -> list[AsyncLedger | StreamLedger]:
        """Passes in which one worker can take over from another."""
        return [ledger for ledger in self.passes if not isinstance(ledger, BspLedger)]

    def locksteps(self) -> list[BspLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, BspLedger)]

    def of_shard(self, shard: int) -> PassLedger | None:
        """The pass that has this shard number."""
        for ledger in reversed(self.passes):
            if ledger.base <= shard < ledger.base + ledger.numbers:
                return ledger
        return None
