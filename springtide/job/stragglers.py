"""Pure. Measures how fast workers train (their pace), finds stragglers, and shortens their leases.

A straggler gets leases of half the size, then a quarter (`judge`). Near the end of the data, a straggler gives up
part of its leases (`level_leases`). In a job that reads a stream, a straggler is marked as slow and keeps one
partition (`update_marks`, `slow_workers`).
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import msgspec

from springtide.domain.data.leases import ShrinkRequest
from springtide.domain.spec.job_spec import StragglerRules

MOST_HALVINGS = 2  # from 256 batches per lease to 128 and then 64
# above this number of workers, one median serves for all, because leaving each worker out of its own median would
# change almost nothing
CROWD = 32
NORMAL = 1.4826  # converts a median absolute deviation to a standard deviation, for normally distributed paces


class LeaseResize(NamedTuple):
    """New lease size of a rank: the full size, halved `halvings` times."""

    rank: int
    halvings: int
    why: str


class PaceJudgement(NamedTuple):
    """Lease sizes to change, and the reason for the judgement. The reason is set even if no size changes."""

    resizes: tuple[LeaseResize, ...]
    why: str


def judge(paces: Mapping[int, float], halvings: Mapping[int, int], rules: StragglerRules) -> PaceJudgement:
    """Compare each worker with its peers, by median and median absolute deviation, because outliers hardly affect these
    measures.
    """
    if len(paces) < 2:
        return PaceJudgement((), f"{len(paces)} workers have trained long enough, and a comparison needs 2")
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
    """Median pace of a worker's peers, and the limit below which the worker is slow."""

    middle: float
    limit: float


def standard_of(peers: list[float], rules: StragglerRules) -> PaceStandard:
    middle = median(peers)
    deviation = max(NORMAL * median(abs(peer - middle) for peer in peers), rules.floor * middle)
    return PaceStandard(middle, middle - rules.deviations * deviation)


class PaceComparison(NamedTuple):
    """Result of comparing one worker with its peers."""

    slow: bool
    recovered: bool
    why: str


def compare(pace: float, standard: PaceStandard, rules: StragglerRules) -> PaceComparison:
    middle, limit = standard
    share = pace / middle if middle else 1.0
    comparison = (
        f"{pace:.0f} samples/s, {share:.0%} of its peers' median {middle:.0f} (slow below {max(0.0, limit):.0f})"
    )
    return PaceComparison(middle > 0 and pace < limit, pace >= rules.recovered * middle, comparison)


LEAST_S = 3.0  # seconds; a pace measured over less time is mostly noise, because heartbeats come once a second


class WorkerPaces(msgspec.Struct):
    """Paces of the workers over a sliding window, by rank. A rank that has no work keeps its last pace."""

    window_s: float = 20.0
    """Length of the window in seconds. A shorter window detects a straggler sooner, and a longer window is less
    sensitive to a pause."""
    looks: dict[int, deque[tuple[float, int]]] = msgspec.field(default_factory=dict)
    last: dict[int, float] = msgspec.field(default_factory=dict)

    def observe(self, trained: Mapping[int, int], busy: Iterable[int], at: float) -> None:
        """Record the progress of all ranks. Time without a lease does not make a worker slow."""
        working = set(busy)
        for rank in [rank for rank in self.looks if rank not in working]:
            del self.looks[rank]
        for rank in working:
            looks = self.looks.setdefault(rank, deque())
            looks.append((at, trained.get(rank, 0)))
            while len(looks) > 2 and looks[1][0] <= at - self.window_s:
                looks.popleft()
            (began, before), (now, samples) = looks[0], looks[-1]
            if now - began >= LEAST_S:
                self.last[rank] = (samples - before) / (now - began)

    def forget(self, rank: int) -> None:
        """Forget the pace of a rank, because its new incarnation may be on another machine."""
        self.looks.pop(rank, None)
        self.last.pop(rank, None)

    def comparable(self) -> dict[int, float]:
        """Return the paces of ranks that worked for at least half a window, which is enough for a comparison."""
        return {
            rank: self.last[rank]
            for rank, looks in self.looks.items()
            if rank in self.last and looks[-1][0] - looks[0][0] >= self.window_s / 2
        }

    def known(self) -> dict[int, float]:
        return dict(self.last)


# seconds that a cut must save; a smaller saving is lost, because a request takes one heartbeat interval to arrive, and
# its answer takes half an interval
MARGIN_S = 1.5
SLOWEST = 0.001  # pace of a worker without progress, as a share of the median pace, so that its leases still end


class LeaseLoad(msgspec.Struct, frozen=True):
    """Remaining work of one live lease. The holder trains its leases in the given order."""

    rank: int
    shard: int
    first: int
    offset: int
    end: int
    batch: int

    @property
    def left(self) -> int:
        return max(0, self.end - self.offset)


class LeaseCut(NamedTuple):
    """A request to end a lease sooner."""

    rank: int
    wish: ShrinkRequest
    why: str


def level_leases(
    holdings: Sequence[LeaseLoad], paces: Mapping[int, float], alive: Sequence[int]
) -> tuple[LeaseCut, ...]:
    """Choose the leases to shorten. Call this function only when no data is left to lease. While data is left, fast
    workers simply lease more data.

    If workers shared the remaining samples in proportion to their pace, all would finish at the same time. A worker
    that would finish later than this common end, by more than the margin, keeps only the samples that it can train by
    the common end. The worker's last leases are cut first.
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
        if needs_s > fair_s + MARGIN_S:
            why = (
                f"worker-{rank} needs {needs_s:.1f} s for its leases; all workers together need "
                f"{fair_s:.1f} s for all leases, so other workers take the rest"
            )
            mine = [holding for holding in holdings if holding.rank == rank]
            cuts += [LeaseCut(rank, wish, why) for wish in keep_first(mine, round(rates[rank] * fair_s))]
    return tuple(cuts)


def keep_first(holdings: Sequence[LeaseLoad], samples: int) -> list[ShrinkRequest]:
    """Return the requests that leave a holder only its first `samples` samples, rounded up to whole batches."""
    wishes = []
    for holding in holdings:
        stays = min(holding.left, -(-samples // holding.batch) * holding.batch)
        samples = max(0, samples - stays)
        if stays < holding.left:
            wishes.append(ShrinkRequest(holding.shard, holding.first, holding.offset + stays))
    return wishes


MOST_SHARE = 0.5  # largest share of workers that can count as slow; if more are slow, the workers are not the cause
# number of consecutive windows until a worker is marked as slow, or until its mark is removed: 40 s and 60 s, unless
# the stream runs faster than the clock
SLOW_AFTER, FAST_AFTER = 2, 3
SILENT_AFTER = 30  # number of consecutive windows without information after which a mark is removed: 10 minutes


@dataclass(frozen=True, slots=True)
class SlowMark:
    """Evidence about the pace of one worker."""

    slow: bool = False
    against: int = 0
    silent: int = 0
    """Number of consecutive windows without information."""
    why: str = ""


def update_marks(
    before: Mapping[int, SlowMark],
    paces: Mapping[int, float],
    alive: Collection[int],
    rules: StragglerRules,
    sure: Collection[int] | None = None,
) -> dict[int, SlowMark]:
    """Return the marks of all workers after one more window.

    `paces` has the pace of each worker that had enough work. `sure` has the ranks whose pace shows their full speed, or
    None for all ranks. A rank outside `sure` may be able to train faster, so the window does not show its speed.
    """
    marks = {}
    for rank in sorted(alive):
        mark, pace = before.get(rank, SlowMark()), paces.get(rank)
        peers = [other for peer, other in paces.items() if peer != rank]
        if pace is None or not peers or (sure is not None and rank not in sure):
            silent = mark.silent + 1
            marks[rank] = replace(mark, silent=silent) if silent < SILENT_AFTER else SlowMark()
            continue
        standard = standard_of(peers, rules)
        verdict = compare(pace, standard, rules)
        opposite = verdict.recovered if mark.slow else verdict.slow
        against = mark.against + 1 if opposite else 0
        turned = against >= (FAST_AFTER if mark.slow else SLOW_AFTER)
        marks[rank] = SlowMark(
            slow=mark.slow != turned,
            against=0 if turned else against,
            why=f"worker-{rank} trains {verdict.why}",
        )
    return marks


def slow_workers(marks: Mapping[int, SlowMark]) -> tuple[int, ...]:
    """Return the ranks that are marked as slow. Return no ranks if so many ranks are marked that the workers cannot be
    the cause.
    """
    slow = tuple(rank for rank, mark in sorted(marks.items()) if mark.slow)
    return slow if len(slow) <= MOST_SHARE * len(marks) else ()
