"""Pure. Messages between master and workers about shards and leases, as plain tuples for the network and the
journal.

A *shard* is a fixed range of batches in an epoch's order. A *lease* is a range of batches of one shard that one holder
trains. Next: data/ledger/async_ledger.py grants leases, worker/input/lease_prefetch.py requests them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class LeaseHolder(NamedTuple):
    """Worker incarnation that holds leases. A relaunched worker keeps its rank and gets a higher incarnation."""

    rank: int
    incarnation: int = 0

    def __str__(self) -> str:
        return f"worker-{self.rank}.{self.incarnation}"


class Grant(NamedTuple):
    """Lease that the master grants: samples `first` to `end` of a shard."""

    shard: int
    """Number of the shard, unique in the job over epochs and data sets."""
    epoch: int
    nth: int
    first: int
    end: int
    returned: bool = False
    """True if an earlier holder returned or lost this lease before its end. The worker trains such a lease first,
    because other workers wait until the lease ends.
    """


class LeaseKey(NamedTuple):
    """Key of an active lease. Two active leases never begin with the same sample."""

    shard: int
    first: int


class Progress(NamedTuple):
    """Progress of a holder on one lease. Repeated or late reports are harmless."""

    shard: int
    first: int
    offset: int
    """Sample before which all samples of the lease are trained, and acknowledged by every server."""
    end: int
    """Sample at which the holder will stop training. If this sample is before the end of the lease, the holder returns
    the rest of the lease. If the number equals `offset`, the lease is finished.
    """
    void: int = 0
    """Number of stream offsets before `offset` that have no trainable record: dead letters, expired records, gaps."""


class ShrinkRequest(NamedTuple):
    """Request to end a lease at sample `end`, or as soon after it as possible. The holder answers with the agreed end
    in `Progress`."""

    shard: int
    first: int
    end: int


class ReadFailure(NamedTuple):
    """Read error: the holder cannot read sample `offset` or the rest of the lease. The holder trains the samples before
    `offset`."""

    shard: int
    first: int
    offset: int
    error: str


class Poisoned(NamedTuple):
    """Samples that the job gave up after `failures` tries. A job with poisoned samples has not succeeded."""

    shard: int
    epoch: int
    first: int
    end: int
    failures: int
    error: str

    def __str__(self) -> str:
        return (
            f"samples {self.first} to {self.end} of shard {self.shard} (epoch {self.epoch}) "
            f"could not be read, tried {self.failures} times: {self.error}"
        )


class NoLease(Enum):
    """Reason why a worker gets no lease."""

    WAIT = "other workers still hold shards, and may return some"
    END = "all shards of the pass are done, given up, or held by this worker"
    REGROUP = "a new bsp group forms before the next shard"
    FENCED = "this incarnation was replaced by another incarnation, which has its work"


class LedgerReply(NamedTuple):
    """Reply of the ledger to a holder's report."""

    revoked: tuple[LeaseKey, ...] = ()
    """Leases that the worker named but does not hold. The worker must drop these leases."""
    wishes: tuple[ShrinkRequest, ...] = ()
    fenced: bool = False
    """True if the master has fenced this incarnation, so that the process must stop."""
    freed: bool = False
    """True if a lease ended or its tail was returned. Waiting workers should then ask for leases again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Number of shards by state, and number of samples."""

    total: int = 0
    leased: int = 0
    """Number of shards of which at least one part is leased."""
    done: int = 0
    poisoned: int = 0
    """Number of shards of which at least one part was given up."""
    samples: int = 0
    samples_done: int = 0
    void: int = 0
    """Number of stream offsets among `samples_done` that have no trainable record."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})
