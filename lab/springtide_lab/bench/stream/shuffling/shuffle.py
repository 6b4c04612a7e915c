"""Global shuffling as in §4.3 of Kale: one of many partitions gets ten times what the others get; who trains it?

In: a producer, a log and eight workers, real processes that speak over sockets (shuffling/crew.py); only training
itself is a wait of known length, so that two cores are enough and the capacity of a worker is known. Out: how long the
backlog takes to drain under the three strategies, bytes between workers, CPU, and a picture of lags by partition.

Two ways to ask how fast a backlog drains, and the worse of the two counts: *backlog*: it comes in one moment, the same
for all; *burst*: it builds up while they train. Drained: no more records wait than before the burst. Extra traffic:
bytes between workers (batches and all words) for each byte read from the stream, from two seconds before a burst of
four to six seconds after it, the most of all scenes. What goes to servers, which would make that share smaller, is not
counted.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from springtide_lab.bench import Options
from springtide_lab.bench.core import progress, report
from springtide_lab.bench.stream.shuffling import picture, processes
from springtide_lab.bench.stream.shuffling.processes import Crew, Told
from springtide_lab.bench.stream.shuffling.scene import Scene

STRATEGIES = ("none", "basic", "advanced")
BACKLOG = Scene(name="backlog", partitions=64, at_once=True, ends_s=24.0)
BURST = Scene(name="burst", partitions=64, ends_s=20.0)
MANY = Scene(name="burst of 800", partitions=800, hot=10, begins_s=3.0, ends_s=21.0, linger_s=1.0)
"""Ten of the hundred partitions of one worker at ten times their rate: one of them alone is less than a tenth more."""
SOONER_S = 13.0
"""When a scene is over with shuffling, six seconds after the burst. Later, the extra traffic would be less."""
QUICK_WORKERS = 2
PAPER = "paper: 905 MB without, 1097 basic (+21%), 948 advanced (+4.8%), all traffic of a job; 10 times in production"


def bench(options: Options) -> report.Result:
    """All scenes."""
    return measure(options, [BACKLOG, BURST, MANY])


def measure(options: Options, scenes: Sequence[Scene]) -> report.Result:
    """These scenes, all strategies."""
    found: dict[Scene, list[Told]] = {}
    pictures: list[pathlib.Path] = []
    with Crew(QUICK_WORKERS if options.quick else scenes[0].workers) as workers:
        for scene in map(_short, scenes) if options.quick else scenes:
            found[scene] = [_run(workers, scene, strategy) for strategy in STRATEGIES]
            pictures.append(options.folder / f"shuffle-{scene.name.replace(' ', '-')}.png")
            picture.draw(scene, found[scene], pictures[-1])
    return _result(found, pictures)


def _run(workers: Crew, scene: Scene, strategy: str) -> Told:
    progress.say(f"{scene.name}: {strategy}")
    if strategy != "none":
        scene = dataclasses.replace(scene, ends_s=min(scene.ends_s, SOONER_S))
    return workers.run(scene, strategy)


def _short(scene: Scene) -> Scene:
    return dataclasses.replace(scene, begins_s=1.0, burst_s=1.0, ends_s=4.0, workers=QUICK_WORKERS)


def _result(found: dict[Scene, list[Told]], pictures: list[pathlib.Path]) -> report.Result:
    faster = {scene: _times_faster(scene, runs) for scene, runs in found.items()}
    slowest = None if None in faster.values() else min(each for each in faster.values() if each is not None)
    extra = max(runs[-1].extra_traffic for runs in found.values())
    late = max(run.late_s for runs in found.values() for run in runs)
    return report.Result(
        goals=(
            report.goal("drain_vs_none", slowest, target=5.0, why="" if slowest else "a backlog was not drained"),
            report.goal("extra_traffic", extra, target=0.10, better="lower"),
        ),
        rounds=1,
        columns=("scene", "strategy", "drained s", "longest lag s", "extra traffic", "CPU s", "came home"),
        rows=tuple(
            (
                scene.name, run.strategy, run.drain_s(scene), float(run.lag_s.max()),
                f"{run.extra_traffic:.2%}", run.cpu_s, float(run.came_home),
            )
            for scene, runs in found.items()
            for run in runs
        ),
        notes=(
            *(_note(scene, faster[scene]) for scene in found),
            f"the producer was {late:.1f} s late at the most; {PAPER}",
            *(f"picture: {path}" for path in pictures),
        ),
        details={
            "calm": processes.CALM,
            "scenes": {scene.name: dataclasses.asdict(scene) for scene in found},
            "runs": {
                scene.name: {run.strategy: _detail(scene, run) for run in runs} for scene, runs in found.items()
            },
        },
    )  # fmt: skip


def _times_faster(scene: Scene, runs: list[Told]) -> float | None:
    """How many times sooner than without shuffling the backlog is gone; what is gone at once counts as one look."""
    none, ours = runs[0].drain_s(scene), runs[-1].drain_s(scene)
    return None if none is None or ours is None else none / max(ours, processes.STEP_S)


def _note(scene: Scene, faster: float | None) -> str:
    share = (1 + scene.hot * (scene.times - 1) / scene.partitions) * scene.load
    return (
        f"{scene.name}: {scene.partitions} partitions, {scene.workers} workers of {scene.capacity:.0f} records/s "
        f"(a wait), loaded {scene.load:.0%}, {share:.0%} with {scene.hot} of them at {scene.times:g} times the rate; "
        f"by arithmetic one worker needs {scene.alone_s():.1f} s afterwards, all of them {scene.together_s():.1f}; "
        + ("not drained" if faster is None else f"drained {faster:.1f} times sooner with advanced than without")
    )


def _detail(scene: Scene, run: Told) -> dict[str, float | int | None]:
    return {
        "drain_s": run.drain_s(scene), "usual": run.usual(scene), "most": float(run.waiting.max()),
        "longest_lag_s": float(run.lag_s.max()),
        "mean_lag_s": float(run.lag_s.mean()), "trained": run.trained, "read_bytes": run.read_bytes,
        "sent_bytes": run.sent_bytes, "forwarded": run.forwarded, "came_home": run.came_home, "cpu_s": run.cpu_s,
        "late_s": run.late_s,
    }  # fmt: skip
