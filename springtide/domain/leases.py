"""Pure. What master and workers tell each other about shards that are held: who holds, how far, where to end.

In: `train` reports progress on heartbeats. Next: `rpc.messages` carries it, `data.ledger` books it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """One life of a worker: a relaunched one keeps its rank and holds nothing of what the life before held."""

    rank: int
    incarnation: int = 0

    def __str__(self) -> str:
        return f"worker-{self.rank}" + (f" (incarnation {self.incarnation})" if self.incarnation else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Samples up to `offset` of a shard are trained, every server having acknowledged their pushes."""

    shard: int
    offset: int
    """Counted from the shard's own begin; a multiple of the batch size, or the end of what was leased."""
    done: bool = False
    """That was the last of the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """End a lease early: train up to `end`, counted from the shard's own begin; the rest goes to others."""

    shard: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoned:
    """A shard that no worker could read or train, with the last error. The job cannot have trained it."""

    shard: int
    failures: int
    error: str
