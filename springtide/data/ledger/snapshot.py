"""Pure. A book of passes as plain data: what a checkpoint notes of it, and what a master that takes over needs.

In: data/ledger/pass_registry.py. Next: checkpoints keep a `BookNote` in their manifest, snapshots of the journal a
`BookState`.
"""

from dataclasses import dataclass, field

from springtide.data.ledger.async_ledger import LedgerState
from springtide.data.ledger.bsp_ledger import LockstepState
from springtide.data.ledger.stream_ledger import FlowState


@dataclass(frozen=True, slots=True, kw_only=True)
class BookNote:
    """How far the job was when a checkpoint began: every batch before that is in every slot of the checkpoint."""

    ledgers: tuple[LedgerState, ...] = ()
    locksteps: tuple[LockstepState, ...] = ()
    """Of a bsp group: exactly so far, at one step."""
    flows: tuple[FlowState, ...] = ()

    @property
    def samples(self) -> int:
        """Samples that were trained."""
        shards = sum(one.samples_done for one in self.ledgers)
        groups = sum(one.first - (one.stream.void if one.stream is not None else 0) for one in self.locksteps)
        return shards + groups + sum(one.samples_done - one.void for one in self.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookState:
    """A book as plain data."""

    workers: int
    lease_s: float
    max_failures: int
    closed: bool
    ledgers: tuple[LedgerState, ...]
    locksteps: tuple[LockstepState, ...]
    shown: dict[int, int]
    living: dict[int, int]
    fenced: dict[int, int]
    halvings: dict[int, int]
    trained: dict[int, int]
    saves: bool = False
    era: int = 0
    kept: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    halted: bool = False
    flows: tuple[FlowState, ...] = ()
    keeps: int = 2
    stumbles: dict[int, int] = field(default_factory=dict)
