"""Transmissions of Herald's scheduler and of ours, on the same streams of ids, counted from the plans of every step.

In: generated streams (independent ids of two exponents, correlated users, users in sessions) or `--ids FILE`; 8 workers
of 128 samples, a cache of 10% of all rows each. Out: rows pulled, pushed and sent from worker to worker, for training
without a scheduler, LAIA, LAIA with on-demand plans, and ours without P2P, with P2P of rows, and with all; and how near
ours is to the best allocation of tiny batches (`allocate_quality`). Counts: the machine does not matter to them.
"""

from collections.abc import Sequence

from springtide import errors
from springtide_lab.bench import Options
from springtide_lab.bench.cache import allocate_quality, allocation_schemes, id_streams
from springtide_lab.bench.cache.allocation_schemes import (
    LAIA_PLAN,
    LAIA_PLAN_P2P,
    OURS,
    OURS_ROWS,
    OURS_SERVERS,
    WAYS,
    Sent,
)
from springtide_lab.bench.core import progress, report

WORKERS, BATCH, SHARE = 8, 128, 0.1
STREAMS = ("zipf-1.05", "zipf-1.2", "correlated", "w1")
STEPS, WARMUP = 100, 100
"""Users of the correlated stream come back every 20 steps: after 100 the caches know them."""
SWEEPS = (1, 2, 4, 8, 16, 32, 64)
"""Efforts whose time and transmissions are told; 8 is the default."""
LIKE_FOR_LIKE = ((OURS_SERVERS, LAIA_PLAN), (OURS_ROWS, LAIA_PLAN_P2P), (OURS, LAIA_PLAN_P2P), (OURS, LAIA_PLAN))
QUALITY_WORKERS = (2, 4, 6, 8)
QUALITY_STEPS, QUALITY_WARMUP, QUALITY_LONG = 90, 10, 2000


def bench(options: Options) -> report.Result:
    """All ways on all streams, then the quality on tiny batches."""
    steps, warmup = (4, 4) if options.quick else (STEPS, WARMUP)
    streams = given(options, samples=(steps + warmup) * WORKERS * BATCH)
    found: dict[str, dict[str, Sent]] = {}
    with progress.bar("allocate", total=len(streams) * len(WAYS)) as done:
        for stream in streams:
            found[stream.name] = {}
            for way in WAYS:
                found[stream.name][way.name] = run(stream, way, warmup=warmup)
                done()
    main = next((one for one in streams if one.name == "correlated"), streams[0])
    efforts = {
        sweeps: run(main, OURS, warmup=warmup, effort=sweeps) for sweeps in (SWEEPS[:2] if options.quick else SWEEPS)
    }
    quality = qualities(options, streams)
    after_long = None if options.quick else long_quality(main)
    return report.Result(
        goals=goals(found, quality, main.name),
        rounds=steps,
        columns=("a worker a step", "pull", "push", "P2P", "all", "/ LAIA + plan", "largest", "ms"),
        rows=tuple(rows(found)),
        notes=notes(found[main.name], efforts, quality, after_long),
        details={
            "streams": {name: {way: vars_of(sent) for way, sent in ways.items()} for name, ways in found.items()},
            "efforts": {str(sweeps): vars_of(sent) for sweeps, sent in efforts.items()},
            "quality": [{slot: getattr(one, slot) for slot in one.__slots__} for one in quality],
            "without_p2p_correlated": ratio(found[main.name], OURS_SERVERS, LAIA_PLAN),
            "workers": WORKERS,
            "batch": BATCH,
            "cache_share": SHARE,
        },
    )


def given(options: Options, *, samples: int) -> list[id_streams.IdStream]:
    """The file that was given, or the generated streams."""
    if options.ids is None:
        return [id_streams.make(name, samples=samples) for name in STREAMS]
    stream = id_streams.read(options.ids, samples=samples)
    fewest = 2 * WORKERS * BATCH
    if len(stream.ids) < fewest:
        raise errors.BadInput(f"--ids {options.ids}: has {len(stream.ids)} samples, wanted {fewest} at least")
    return [stream]


def run(stream: id_streams.IdStream, way: allocation_schemes.Way, *, warmup: int, effort: int = 0) -> Sent:
    """One way on one stream; of a short file, the second half counts."""
    batches = stream.batches(WORKERS * BATCH)
    capacity = int(SHARE * stream.total_rows)
    first = min(warmup, len(batches) // 2)
    return allocation_schemes.run(way, batches, workers=WORKERS, capacity_rows=capacity, warmup=first, effort=effort)


def qualities(options: Options, streams: Sequence[id_streams.IdStream]) -> list[allocate_quality.Quality]:
    """Tiny batches of every stream, with and without P2P."""
    return [
        allocate_quality.measure(
            stream,
            workers=workers,
            p2p=p2p,
            steps=5 if options.quick else QUALITY_STEPS,
            warmup=QUALITY_WARMUP,
        )
        for stream in streams
        for workers in ((2, 4) if options.quick else QUALITY_WORKERS)
        for p2p in ("off", "gradients")
    ]


def long_quality(stream: id_streams.IdStream) -> allocate_quality.Quality:
    """The same with caches that have seen much: there is more to decide then."""
    return allocate_quality.measure(stream, workers=WORKERS, p2p="off", steps=QUALITY_STEPS, warmup=QUALITY_LONG)


def ratio(ways: dict[str, Sent], ours: allocation_schemes.Way, theirs: allocation_schemes.Way) -> float:
    """Transmissions of one way over those of another."""
    return ways[ours.name].total / ways[theirs.name].total


def goals(
    found: dict[str, dict[str, Sent]], quality: Sequence[allocate_quality.Quality], main: str
) -> tuple[report.Goal, ...]:
    """The correlated stream (or the file that was given), the worst of all, and the quality."""
    worst = max(ratio(ways, ours, theirs) for ways in found.values() for ours, theirs in LIKE_FOR_LIKE)
    least = allocate_quality.worst(quality)
    ways = found[main]
    return (
        report.goal("vs_laia_plan_correlated", ratio(ways, OURS, LAIA_PLAN), target=0.70, better="lower"),
        report.goal("vs_laia_plan_p2p_correlated", ratio(ways, OURS, LAIA_PLAN_P2P), target=0.85, better="lower"),
        report.goal("vs_laia_plan_worst", worst, target=1.0, better="lower"),
        report.goal("quality_vs_brute_force", least.ours, target=0.9),
    )


def rows(found: dict[str, dict[str, Sent]]) -> list[tuple[str | float | None, ...]]:
    """A line a stream and way."""
    lines: list[tuple[str | float | None, ...]] = []
    for name, ways in found.items():
        lines.append((name, *(None,) * 7))
        lines += [
            (
                f"  {way}",
                sent.pull,
                sent.push,
                sent.p2p,
                sent.total,
                sent.total / ways[LAIA_PLAN.name].total,
                sent.largest,
                sent.allocate_p50_ms,
            )
            for way, sent in ways.items()
        ]
    return lines


def notes(
    ways: dict[str, Sent],
    efforts: dict[int, Sent],
    quality: Sequence[allocate_quality.Quality],
    after_long: allocate_quality.Quality | None,
) -> tuple[str, ...]:
    """What the table does not say."""
    least = allocate_quality.worst(quality)
    said = [
        f"`ours` against `LAIA + plan` counts what goes between workers too. Without P2P on either side: "
        f"{ratio(ways, OURS_SERVERS, LAIA_PLAN):.3f}; rows only on both: {ratio(ways, OURS_ROWS, LAIA_PLAN_P2P):.3f}.",
        f"Quality, one sample a worker, least of all: {least.ours:.3f} ({least.stream}, {least.workers} workers); "
        f"LAIA's there {least.laia:.3f}; Herald's paper has {allocate_quality.PAPER} on its data.",
        "Sweeps: transmissions, ms: "
        + "; ".join(f"{sweeps}: {sent.total:,.0f}, {sent.allocate_p50_ms:.1f}" for sweeps, sent in efforts.items()),
    ]
    if after_long:
        said.append(
            f"Quality with caches {QUALITY_LONG} steps old ({after_long.stream}): {after_long.ours:.3f}, "
            f"LAIA's {after_long.laia:.3f}."
        )
    return tuple(said)


def vars_of(sent: Sent) -> dict[str, float]:
    """For the JSON line."""
    return {"total": sent.total, **{slot: getattr(sent, slot) for slot in sent.__slots__}}
