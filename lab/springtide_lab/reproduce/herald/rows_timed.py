"""Compute the figures of Herald that are times: Figs. 4 (share) and 14-19 from counted rows and measured costs.

Fig. 12 (the scheduler's time) and Fig. 20 (brute force) come from published benchmarks. In: workloads, seeds,
`preset.Costs`. Out: rows that name the costs they use. Next: `reproduction`.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from springtide_lab.bench.cache.allocate import SentRows
from springtide_lab.reproduce.herald import preset, rows_counted
from springtide_lab.reproduce.herald.preset import Costs, HeraldSize, Workload
from springtide_lab.reproduce.herald.rows_counted import HERALD, OURS, PLAIN
from springtide_lab.reproduce.report import BENCHES, NOT_IN_TEXT, Row, missing, published, published_goal, row

NOT_MEASURED = "needs results of `springtide bench cache --json`; no result is published here"
SHARES = (0.0025, 0.01, 0.04, 0.1)
"""Cache sizes as shares of all rows. The paper has 4 to 10%. Our caches need less than 4%, because a cache holds only
rows that its worker alone trained last. So the size matters only below 4%.
"""
SERVERS = (1, 2, 4)
STATIC_SHARE = 0.01
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("004 Fig. 4", "embedding communication, of the time", "<= 0.63"),
    ("004 Fig. 14", "speed-up over HET", "1.09-2.11"),
    ("004 Fig. 15", "scaling factor", "0.42-0.60 to 0.52-0.90"),
    ("004 Fig. 17", "speed-up over static caching", "1.67-51.59"),
    ("004 Fig. 16", "speed-up by cache size", "1.97-2.15"),
    ("004 Fig. 18", "speed-up, 80 workers", "1.02-1.60"),
    ("004 Fig. 19", "speed-up by servers", "about 1.4"),
)
SCALING = {PLAIN: ("HET in bsp", "0.42-0.60"), HERALD: ("LAIA and plan", "0.52-0.90"), OURS: ("ours", "0.52-0.90")}
SCHEDULED = "zipf-1.05"
"""Stream for the timing of schedules. The stream has as many tables as Criteo AD, and the slowest schedules."""
STAGES: dict[str, tuple[tuple[str, ...], float | str]] = {
    "scoring": (("look_up", "score"), 0.42),
    "allocation": (("allocate",), 0.08),
    "snapshot": (("snapshot",), NOT_IN_TEXT),
    "plan": (("plan",), NOT_IN_TEXT),
}
"""Stages of the scheduler: our names of the stages, and the paper's share of the time."""
PUBLISHED = (
    ("cache", "vs_het_1gbit", "004 Fig. 14", "measured, 4 workers, 1 Gbit/s: ours over HET", "1.09-2.11"),
    ("cache", "vs_static_1gbit", "004 Fig. 17", "measured, 4 workers, 1 Gbit/s: ours over static", "1.67-51.59"),
    ("allocate", "quality_vs_brute_force", "004 Fig. 20", "brute force over ours, transmissions", "0.45-0.57"),
)
"""Published goals: benchmark, goal, figure, description, the paper's value."""


def seconds(
    load: Workload, way: str, size: HeraldSize, seed: int, cost: Costs, *, servers: int = preset.SERVERS, **changes: Any
) -> float:
    sent = rows_counted.sent(load, way, size, seed, **changes)
    workers = changes.get("workers", preset.WORKERS)
    return cost.necessary_s + preset.communication_s(sent, cost, workers=workers, servers=servers)


def faster(load: Workload, way: str, size: HeraldSize, seed: int, cost: Costs, **changes: Any) -> float:
    return seconds(load, PLAIN, size, seed, cost, **changes) / seconds(load, way, size, seed, cost, **changes)


def static(load: Workload, size: HeraldSize, seed: int, cost: Costs) -> float:
    """Return the seconds of an iteration with static caching, where all workers all-reduce the same hottest rows.

    All other rows are pulled and pushed.
    """
    stream, batches = load.batches(size, seed)
    starts = np.concatenate([[0], np.cumsum(stream.rows)[:-1]]).astype(np.int64)
    often = np.bincount((stream.ids + starts).reshape(-1), minlength=stream.total_rows)
    hot = np.zeros(stream.total_rows, dtype=bool)
    hot[np.argsort(often, kind="stable")[::-1][: max(int(STATIC_SHARE * stream.total_rows), 1)]] = True
    cold = [
        int((~hot[np.unique(part + starts)]).sum())
        for batch in batches[preset.WARM_UPS :]
        for part in np.split(batch, preset.WORKERS)
    ]
    mean, most = float(np.mean(cold)), float(np.max(cold))
    sent = SentRows(pull=mean, push=mean, largest_pull=most, largest_push=most)
    return cost.necessary_s + preset.communication_s(sent, cost, workers=preset.WORKERS, reduced=float(hot.sum()))


def timed(load: Workload, size: HeraldSize, seeds: Sequence[int], cost: Costs | None) -> list[Row]:
    """Return Figs. 4, 14, 15 and 17 of one workload."""
    if cost is None:
        return [missing(figure, f"{load.name}: {what}", paper, NOT_MEASURED) for figure, what, paper in FIGURES[:4]]
    chosen, name = load.seeds(seeds), load.name
    took = {way: [seconds(load, way, size, seed, cost) for seed in chosen] for way in (PLAIN, HERALD, OURS)}
    share = [1 - cost.necessary_s / one for one in took[PLAIN]]
    most = [one / cost.necessary_s for one in took[PLAIN]]
    found = [
        row("004 Fig. 4", f"{name}: HET in bsp, share of time for communication", "<= 0.63", share, why=cost.source)
    ]
    for way, what in ((HERALD, "LAIA and plan"), (OURS, "ours")):
        ratios = [plain / mine for plain, mine in zip(took[PLAIN], took[way], strict=True)]
        found.append(
            row("004 Fig. 14", f"{name}: {what} over HET", "1.09-2.11", ratios, goal=1.09, why=cost.source, bound=most)
        )
    for way, (what, paper) in SCALING.items():
        factors = [cost.necessary_s / one for one in took[way]]
        found.append(row("004 Fig. 15", f"{name}: scaling factor, {what}", paper, factors, why=cost.source))
    hottest = [static(load, size, seed, cost) for seed in chosen]
    most = [one / cost.necessary_s for one in hottest]
    for way, what in ((HERALD, "LAIA and plan"), (OURS, "ours")):
        over = [theirs / mine for theirs, mine in zip(hottest, took[way], strict=True)]
        what = f"{name}: {what} over static caching"
        found.append(row("004 Fig. 17", what, "1.67-51.59", over, goal=1.67, why=cost.source, bound=most))
    return found


def shapes(load: Workload, size: HeraldSize, seeds: Sequence[int], cost: Costs | None) -> list[Row]:
    """Return Figs. 16, 18 and 19: smaller caches, a large cluster, more servers."""
    if cost is None:
        return [missing(figure, f"{load.name}: {what}", paper, NOT_MEASURED) for figure, what, paper in FIGURES[4:]]
    chosen, found = load.seeds(seeds), []
    longer = HeraldSize(iterations=4 * size.iterations, epoch=size.epoch, workers=size.workers)
    for share in SHARES:
        ratios = [faster(load, HERALD, longer, seed, cost, share=share) for seed in chosen]
        paper = "1.97-2.15" if share >= 0.04 else "not in text"
        found.append(
            row("004 Fig. 16", f"{load.name}: over HET, caches of {100 * share:g}%", paper, ratios, why=cost.source)
        )
    few = HeraldSize(iterations=min(size.iterations, 40), epoch=size.epoch, workers=size.workers)
    most = max(size.workers)
    ratios = [faster(load, HERALD, few, seed, cost, workers=most, servers=most // 8) for seed in chosen]
    found.append(
        row(
            "004 Fig. 18",
            f"{load.name}: over HET, {most} workers",
            "1.02-1.60",
            ratios,
            goal=1.02,
            why=f"one server for 8 workers, which is an assumption; {cost.source}",
        )
    )
    for servers in SERVERS:
        ratios = [faster(load, HERALD, size, seed, cost, servers=servers) for seed in chosen]
        paper = "not in text" if servers == 1 else "about 1.4"
        found.append(row("004 Fig. 19", f"{load.name}: over HET, {servers} servers", paper, ratios, why=cost.source))
    return found


def measured(folder: pathlib.Path = BENCHES) -> list[Row]:
    """Return figures of real training and real searches, from published results."""
    return [published_goal(folder, *case) for case in PUBLISHED]


def overhead(path: pathlib.Path = BENCHES / "schedule.json") -> list[Row]:
    """Return Fig. 12 from published results: the scheduler's time per iteration, and its stages."""
    figure, command = "004 Fig. 12", "`springtide bench schedule --json`"
    run = published(path)
    if run is None:
        return [
            missing(
                figure, "scheduling, ms an iteration", 7.7, f"run {command} to measure it; no result is published here"
            )
        ]
    parts: dict[str, float] = run["details"][SCHEDULED]["stages_ms"]
    why = f"{command} of {run['date']}, {SCHEDULED}, on one thread; the paper's 7.7 ms are on 16 threads, for "
    "Criteo AD"
    whole = sum(parts.values())
    found = [row(figure, "scheduling, ms an iteration", 7.7, [whole], goal=7.7, better="lower", why=why)]
    for part, (names, paper) in STAGES.items():
        found.append(row(figure, f"of that, {part}", paper, [sum(parts.get(name, 0.0) for name in names) / whole]))
    return found
