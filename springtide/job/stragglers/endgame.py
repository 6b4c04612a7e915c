"""Pure. Shortens leases of slow workers near the end of the data, so that all workers finish at about the same time.

In: live leases, and paces of all workers, including idle workers. Out: requests to end leases sooner, each with its
reason. Next: `master.data.stragglers` enters the requests in the ledger. Holders answer with the real end of the lease,
and other workers get the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from springtide.domain.data.leases import ShrinkRequest

MARGIN_S = 1.5  # a request takes a heartbeat to arrive, and its answer half of one, so smaller savings are not worth it
SLOWEST = 0.001  # assumed pace of a worker without progress, as a share of the median, so that its leases still end


@dataclass(frozen=True, slots=True)
class LeaseLoad:
    """Remaining work of one live lease. A holder trains its leases in the given order."""

    rank: int
    shard: int
    first: int
    offset: int
    end: int
    """End of the lease, or the earlier end that was requested."""
    batch: int
    """Samples in a batch. Leases end between batches."""

    @property
    def left(self) -> int:
        """Return the untrained samples."""
        return max(0, self.end - self.offset)


class LeaseCut(NamedTuple):
    """A request to end a lease sooner."""

    rank: int
    wish: ShrinkRequest
    why: str


def level(
    holdings: Sequence[LeaseLoad], paces: Mapping[int, float], alive: Sequence[int], *, margin_s: float = MARGIN_S
) -> tuple[LeaseCut, ...]:
    """Choose the leases to shorten. Call it when no data is left to lease: before that, fast workers just take more.

    If workers shared the remaining samples by pace, all would finish at the same time. A worker that needs longer than
    that, by more than the margin, keeps only what it can train in that time. Its last leases are cut first.
    """
    known = {rank: pace for rank, pace in paces.items() if rank in alive and pace > 0}
    if len(alive) < 2 or not holdings or not known:
        return ()
    usual = median(known.values())
    rates = {rank: max(paces.get(rank, usual), usual * SLOWEST) for rank in alive}
    left: dict[int, int] = {}
    for holding in holdings:
        left[holding.rank] = left.get(holding.rank, 0) + holding.left
    fair_s = sum(left.values()) / sum(rates.values())
    cuts: list[LeaseCut] = []
    for rank, samples in sorted(left.items()):
        if rank not in rates:
            continue
        needs_s = samples / rates[rank]
        if needs_s > fair_s + margin_s:
            why = (
                f"worker-{rank} would need {needs_s:.1f} s for what it holds, all together {fair_s:.1f} s: "
                "others take the rest"
            )
            mine = [holding for holding in holdings if holding.rank == rank]
            cuts += [LeaseCut(rank, wish, why) for wish in keep(mine, round(rates[rank] * fair_s))]
    return tuple(cuts)


def keep(holdings: Sequence[LeaseLoad], samples: int) -> list[ShrinkRequest]:
    """Return the requests that leave a holder its first `samples` samples, rounded up to whole batches."""
    wishes = []
    for holding in holdings:
        stays = min(holding.left, -(-samples // holding.batch) * holding.batch)
        samples = max(0, samples - stays)
        if stays < holding.left:
            wishes.append(ShrinkRequest(holding.shard, holding.first, holding.offset + stays))
    return wishes
