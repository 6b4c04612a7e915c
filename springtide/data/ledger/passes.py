"""Pure. Hold all passes of a job over its data, and answer queries about them. This module changes no pass.

A pass is an `AsyncLedger` (shards, each worker at its own pace), a `StreamLedger` (partitions of a stream) or a
`BspLedger` (a bsp group). In: data/ledger/job_ledger.py opens and changes passes. A checkpoint's manifest stores a
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
    """Progress of a job when a checkpoint began. Every slot of the checkpoint contains all batches of this progress."""

    ledgers: tuple[AsyncLedgerState, ...] = ()
    locksteps: tuple[BspLedgerState, ...] = ()
    """Passes of a bsp group, all at the same step."""
    flows: tuple[StreamLedgerState, ...] = ()
    """Passes over streams."""

    @property
    def samples(self) -> int:
        """Number of trained samples."""
        shards = sum(ledger.samples_done for ledger in self.ledgers)
        groups = sum(group.first - (group.stream.void if group.stream else 0) for group in self.locksteps)
        return shards + groups + sum(stream.samples_done - stream.void for stream in self.flows)


class Passes:
    """All passes so far, in the order of opening."""

    __slots__ = ()
    passes: list[PassLedger]

    def totals(self) -> Totals:
        return sum((ledger.totals() for ledger in self.passes), Totals())

    def poisoned(self) -> tuple[Poisoned, ...]:
        """Return the ranges that were given up, with their errors."""
        return tuple(poisoned for ledger in self.shared() for poisoned in ledger.poisoned)

    def leases(self) -> tuple[tuple[DatasetCard, LeaseKey, ShardLease], ...]:
        """Return all live leases of shards, each with its data set."""
        return tuple((ledger.card, key, lease) for ledger in self.ledgers() for key, lease in ledger.leases.items())

    @property
    def samples_done(self) -> int:
        """Trained samples of all passes, plus stream offsets without a record to train."""
        return sum(ledger.samples_done for ledger in self.passes)

    @property
    def samples_trained(self) -> int:
        return self.samples_done - sum(ledger.void for ledger in self.passes if not isinstance(ledger, AsyncLedger))

    @property
    def todo_samples(self) -> int:
        """Samples of shards that no worker holds."""
        return sum(ledger.todo.samples for ledger in self.ledgers())

    def flows(self) -> list[StreamLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, StreamLedger)]

    def bsp_stream(self, card: DatasetCard) -> BspStreamLedger | None:
        """Return the bsp group's pass over the stream of this card."""
        for ledger in reversed(self.passes):
            if isinstance(ledger, BspStreamLedger) and ledger.card == card:
                return ledger
        return None

    def cuts_of(self, grants: Sequence[Grant]) -> tuple[BatchCut, ...]:
        """Return the cuts within these leases, for leases of a stream."""
        ledger = self.of_shard(grants[0].shard) if grants else None
        return ledger.cuts_of(grants) if isinstance(ledger, StreamLedger) else ()

    @property
    def on_stream(self) -> bool:
        return any(ledger.card.stream is not None for ledger in self.passes)

    @property
    def in_step(self) -> bool:
        """True if the workers train in lockstep (bsp)."""
        return any(ledger.card.in_step for ledger in self.passes)

    @property
    def epochs(self) -> int:
        return sum(ledger.card.epochs for ledger in self.passes)

    def ledgers(self) -> list[AsyncLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, AsyncLedger)]

    def shared(self) -> list[AsyncLedger | StreamLedger]:
        """Return the passes in which a worker can take over another worker's samples."""
        return [ledger for ledger in self.passes if not isinstance(ledger, BspLedger)]

    def locksteps(self) -> list[BspLedger]:
        return [ledger for ledger in self.passes if isinstance(ledger, BspLedger)]

    def of_shard(self, shard: int) -> PassLedger | None:
        """Return the pass with this shard number."""
        for ledger in reversed(self.passes):
            if ledger.base <= shard < ledger.base + ledger.numbers:
                return ledger
        return None
