"""Count the transmissions of Herald's scheduler and of ours on the same streams of ids, from the plans of every step.

In: generated streams or `--ids FILE`; 8 workers of 128 samples each, and caches of 10% of all rows. Out: for each
system, the numbers of rows that are pulled, pushed and sent between workers; for tiny batches, our allocation against
the best possible one. Nothing is timed.
"""

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from springtide import errors
from springtide.embedding.schedule import scheduler as schedulers
from springtide_lab.bench import Options
from springtide_lab.bench.cache import id_streams, plan_traffic
from springtide_lab.bench.core import harness, report


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One system to compare: a policy that allocates samples to workers, and the kinds of exchange that it may use."""

    name: str
    policy: str
    on_demand: bool = True
    p2p: str = "off"

    def settings(self, *, workers: int, capacity_rows: int) -> schedulers.ScheduleSettings:
        return schedulers.ScheduleSettings(
            workers=workers, capacity_rows=capacity_rows, policy=self.policy, on_demand=self.on_demand, p2p=self.p2p
        )


VANILLA = Way(name="vanilla", policy="random", on_demand=False)
LAIA = Way(name="LAIA", policy="laia", on_demand=False)
LAIA_PLAN = Way(name="LAIA + plan", policy="laia")
LAIA_PLAN_P2P = Way(name="LAIA + plan, P2P", policy="laia", p2p="rows")
OURS_SERVERS = Way(name="ours, no P2P", policy="anneal")
OURS_ROWS = Way(name="ours, P2P of rows", policy="anneal", p2p="rows")
OURS = Way(name="ours", policy="anneal", p2p="gradients")
"""Our system with every kind of exchange allowed: rows, values and gradients between workers."""

WAYS = (VANILLA, LAIA, LAIA_PLAN, LAIA_PLAN_P2P, OURS_SERVERS, OURS_ROWS, OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRows:
    """Rows per worker and step, as means over the steps after the warm-up."""

    pull: float
    push: float
    p2p: float = 0.0
    largest_pull: float
    """Rows that the worker with the most pulls from servers and workers; an iteration waits for this worker."""
    largest_push: float
    largest: float = math.nan
    """Cost as in Herald's Appendix A: the largest push of a step plus the largest pull of the next step."""

    @property
    def total(self) -> float:
        """Number of transmissions; a row sent between workers counts once."""
        return self.pull + self.push + self.p2p


def run_scheme(
    settings: schedulers.ScheduleSettings,
    batches: Sequence[id_streams.Ids],
    *,
    warmup: int,
    effort: int = 0,
    scored: Collection[int] = (),
) -> SentRows:
    """Schedule all batches; count the traffic of the batches after `warmup`."""
    scheduler = plan_traffic.ComparingScheduler(settings)
    traffic: list[plan_traffic.PlanTraffic] = []
    for batch in batches:
        done = scheduler.schedule(id_streams.features(batch), len(batch), scored=scored, effort=effort)
        traffic.append(plan_traffic.traffic(done.plans))
    counted = traffic[warmup:]
    before = [None, *traffic][warmup : len(traffic)]

    def mean(rows: Iterable[Sequence[int]]) -> float:
        return statistics.fmean(map(sum, rows)) / settings.workers

    def largest(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
        return statistics.fmean(max(map(sum, zip(*pair, strict=True))) for pair in pairs)

    return SentRows(
        pull=mean(step.pulls for step in counted),
        push=mean(step.pushes for step in counted),
        p2p=mean(step.sent for step in counted),
        largest=statistics.fmean(now.reward(then) for then, now in zip(before, counted, strict=True)),
        largest_pull=largest((step.pulls, step.received) for step in counted),
        largest_push=largest((step.pushes, step.sent) for step in counted),
    )


PAPER = "0.45 to 0.57"
"""Quality of Herald's allocation on the data sets of its paper (Fig. 20)."""
COMPARED_SHARE = 0.1
"""Share of all rows that each worker caches."""


def quality(stream: id_streams.IdStream, *, workers: int, p2p: str, steps: int, warmup: int) -> float:
    """Return the transmissions of the best allocation divided by ours, as a mean after `warmup`; 1 is optimal."""
    settings = schedulers.ScheduleSettings(
        workers=workers, capacity_rows=int(COMPARED_SHARE * stream.total_rows), policy="anneal", p2p=p2p
    )
    scheduler = plan_traffic.ComparingScheduler(settings)
    ratios = []
    for number, batch in enumerate(stream.batches(workers)[: warmup + steps]):
        features = id_streams.features(batch)
        if number >= warmup:
            best = fewest_transmissions(scheduler, features)
            ours = scheduler.consider(features, workers, "anneal").transmissions
            ratios.append(best / ours if ours else 1.0)
        scheduler.schedule(features, workers)
    return statistics.fmean(ratios)


def fewest_transmissions(scheduler: plan_traffic.ComparingScheduler, features: Sequence[schedulers.FeatureIds]) -> int:
    """Return the transmissions of the best allocation of one sample to each worker.

    With one sample per worker, the number of workers that train a key does not depend on the allocation. An allocation
    only decides whether the key's owner is one of these workers, so the best allocation is the solution of a linear
    assignment problem. Each feature has its own table.
    """
    settings = scheduler.settings
    saved = np.zeros((settings.workers, settings.workers), dtype=np.int64)  # by sample and worker
    cached = [scheduler.cached(worker) for worker in range(settings.workers)]
    total = 0
    for feature in features:
        keys, place, trainers = np.unique(feature.ids, return_inverse=True, return_counts=True)
        owner, dirty = np.full(len(keys), -1), np.zeros(len(keys), dtype=bool)
        for worker, (tables, rows, only) in enumerate(cached):
            here = tables == feature.table
            _, at, found = np.intersect1d(keys, rows[here], assume_unique=True, return_indices=True)
            owner[at], dirty[at] = worker, only[here][found]
        alone = np.where(dirty & (settings.p2p == "off"), 2, 1)
        exchanged = (settings.p2p == "gradients") & (trainers <= settings.p2p_trainers)
        shared = 2 * trainers + np.where(exchanged, -1, dirty)
        total += int(np.where(trainers == 1, alone, shared).sum())
        owned = np.flatnonzero(owner[place] >= 0)
        saved[owned, owner[place][owned]] += np.where(trainers == 1, alone, 1)[place][owned]
    return total - int(saved[optimize.linear_sum_assignment(saved, maximize=True)].sum())


WORKERS, BATCH, SHARE = 8, 128, 0.1
STREAMS = ("zipf-1.05", "zipf-1.2", "correlated", "w1")
STEPS, WARMUP = 100, 100
"""Users of the correlated stream return about every 20 steps, so the caches are warm after 100 steps."""
LIKE_FOR_LIKE = ((OURS_SERVERS, LAIA_PLAN), (OURS_ROWS, LAIA_PLAN_P2P), (OURS, LAIA_PLAN_P2P), (OURS, LAIA_PLAN))
QUALITY_WORKERS = (2, 4, 6, 8)
QUALITY_STEPS, QUALITY_WARMUP = 90, 10


def bench(options: Options) -> report.Result:
    steps, warmup = (4, 4) if options.quick else (STEPS, WARMUP)
    streams = given(options, samples=(steps + warmup) * WORKERS * BATCH)
    found: dict[str, dict[str, SentRows]] = {stream.name: {} for stream in streams}
    for stream, way in harness.track("allocate", list(itertools.product(streams, WAYS))):
        found[stream.name][way.name] = run(stream, way, warmup=warmup)
    main = "correlated" if "correlated" in found else streams[0].name
    least = least_quality(options, streams)
    return report.Result(
        goals=goals(found, least, main),
        rounds=steps,
        columns=("a worker a step", "pull", "push", "P2P", "all", "/ LAIA + plan", "largest"),
        rows=tuple(rows(found)),
        notes=(
            "`ours` against `LAIA + plan` also counts rows between workers; largest: Herald's Appendix A",
            f"quality: one sample for each worker, minimum over all streams; Herald's paper has {PAPER} on its data",
        ),
    )


def given(options: Options, *, samples: int) -> list[id_streams.IdStream]:
    if options.ids is None:
        return [id_streams.make(name, samples=samples) for name in STREAMS]
    stream = id_streams.read(options.ids, samples=samples)
    fewest = 2 * WORKERS * BATCH
    if len(stream.ids) < fewest:
        raise errors.BadInput(f"--ids {options.ids}: has {len(stream.ids)} samples; at least {fewest} are needed")
    return [stream]


def run(stream: id_streams.IdStream, way: Way, *, warmup: int) -> SentRows:
    """Run one system on one id stream. If the stream is too short for `warmup`, its second half counts."""
    batches = stream.batches(WORKERS * BATCH)
    settings = way.settings(workers=WORKERS, capacity_rows=int(SHARE * stream.total_rows))
    return run_scheme(settings, batches, warmup=min(warmup, len(batches) // 2))


def least_quality(options: Options, streams: Sequence[id_streams.IdStream]) -> float:
    """Return the lowest quality over tiny batches of all streams, with and without P2P."""
    steps, sizes = (5, (2, 4)) if options.quick else (QUALITY_STEPS, QUALITY_WORKERS)
    return min(
        quality(stream, workers=workers, p2p=p2p, steps=steps, warmup=QUALITY_WARMUP)
        for stream, workers, p2p in itertools.product(streams, sizes, ("off", "gradients"))
    )


def ratio(ways: dict[str, SentRows], ours: Way, theirs: Way) -> float:
    return ways[ours.name].total / ways[theirs.name].total


def goals(found: dict[str, dict[str, SentRows]], least_quality: float, main: str) -> tuple[report.Goal, ...]:
    """Return the goals: ratios on stream `main`, the worst ratio over all streams, and the quality."""
    worst = max(ratio(ways, ours, theirs) for ways in found.values() for ours, theirs in LIKE_FOR_LIKE)
    ways = found[main]
    return (
        report.goal("vs_laia_plan_correlated", ratio(ways, OURS, LAIA_PLAN), target=0.70, better="lower"),
        report.goal("vs_laia_plan_p2p_correlated", ratio(ways, OURS, LAIA_PLAN_P2P), target=0.85, better="lower"),
        report.goal("vs_laia_plan_worst", worst, target=1.0, better="lower"),
        report.goal("quality_vs_brute_force", least_quality, target=0.9),
    )


def rows(found: dict[str, dict[str, SentRows]]) -> list[report.Cells]:
    lines: list[report.Cells] = []
    for name, ways in found.items():
        lines.append((name, *(None,) * 6))
        lines += [
            (
                f"  {way}",
                sent.pull,
                sent.push,
                sent.p2p,
                sent.total,
                sent.total / ways[LAIA_PLAN.name].total,
                sent.largest,
            )
            for way, sent in ways.items()
        ]
    return lines
