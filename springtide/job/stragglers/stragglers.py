"""Pure. Detects stragglers, and chooses the lease size of each worker.

In: paces from `job.stragglers.speed`. Out: resizes with their reasons. Next: `master.data.stragglers` applies them to
the ledger. Every worker begins with leases of full size. A straggler gets half of that, then a quarter. A worker that
has caught up gets its size back in the same steps. With smaller leases, other workers wait less at the end and redo
less after a crash.
"""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from springtide.domain.spec.job_spec import StragglerRules

MOST_HALVINGS = 2  # 256 -> 128 -> 64 batches
CROWD = 32  # with more workers, excluding a worker from its own comparison changes nothing and costs a median each
NORMAL = 1.4826  # converts a median absolute deviation to a standard deviation, for normally distributed paces


class LeaseResize(NamedTuple):
    """New lease size of a rank: the full size, halved `halvings` times."""

    rank: int
    halvings: int
    why: str


class PaceJudgement(NamedTuple):
    """Resizes and the reason. The reason is present even without resizes."""

    resizes: tuple[LeaseResize, ...]
    why: str


def judge(paces: Mapping[int, float], halvings: Mapping[int, int], rules: StragglerRules) -> PaceJudgement:
    """Compare each worker with its peers, by median and median absolute deviation, which resist outliers."""
    if len(paces) < 2:
        return PaceJudgement((), f"{len(paces)} workers were at work long enough: nobody to compare with")
    resizes = []
    everyone = standard_of(list(paces.values()), rules)
    for rank in sorted(paces):
        standard = everyone
        if len(paces) <= CROWD:
            standard = standard_of([pace for other, pace in paces.items() if other != rank], rules)
        now = halvings.get(rank, 0)
        verdict = compare(paces[rank], standard, rules)
        if verdict.slow and now < MOST_HALVINGS:
            resizes.append(LeaseResize(rank, now + 1, f"worker-{rank} trains {verdict.why}: its leases are halved"))
        elif verdict.recovered and now > 0:
            resizes.append(LeaseResize(rank, now - 1, f"worker-{rank} trains {verdict.why}: its leases are doubled"))
    if resizes:
        return PaceJudgement(tuple(resizes), "; ".join(resize.why for resize in resizes))
    spread = f"{min(paces.values()):.0f} to {max(paces.values()):.0f} samples/s"
    return PaceJudgement((), f"{len(paces)} workers at {spread}: no lease needs another size")


class PaceStandard(NamedTuple):
    """Median pace and limit against which a worker is compared."""

    middle: float
    limit: float
    """Pace below which a worker is slow."""


def standard_of(peers: list[float], rules: StragglerRules) -> PaceStandard:
    """Return the median of some paces, and the limit below which a pace is slow."""
    middle = median(peers)
    deviation = max(NORMAL * median(abs(peer - middle) for peer in peers), rules.floor * middle)
    return PaceStandard(middle, middle - rules.deviations * deviation)


class PaceComparison(NamedTuple):
    """Result of comparing one worker with its peers."""

    slow: bool
    recovered: bool
    why: str


def compare(pace: float, standard: PaceStandard, rules: StragglerRules) -> PaceComparison:
    """Return whether a pace is significantly below its peers, and whether it has recovered."""
    middle, limit = standard
    share = pace / middle if middle else 1.0
    said = f"{pace:.0f} samples/s, {share:.0%} of its peers' median {middle:.0f} (slow below {max(0.0, limit):.0f})"
    return PaceComparison(middle > 0 and pace < limit, pace >= rules.recovered * middle, said)
