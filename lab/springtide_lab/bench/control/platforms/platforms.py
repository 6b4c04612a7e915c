"""What a cluster costs over this machine's own processes: the same job on each platform, in alternating rounds.

In: a script that computes all the time, on one worker and one server. Out: `ray_vs_local` and `k8s_vs_local`, samples a
second there over samples a second here, round by round; beside them the time from submitting to the first step, and the
time from losing a node (a worker and a server of two each) to full speed. A platform is up only in its own rounds: what
it takes while it idles counts against it and against no other. A platform that is not installed is not measured.
"""

import contextlib
import importlib
import importlib.util
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from springtide_lab.bench import Options
from springtide_lab.bench.control.platforms import platform_job
from springtide_lab.bench.control.platforms.platform_job import Side
from springtide_lab.bench.core import harness, report

TARGET = 0.95
OTHERS = {"ray": "ray", "k8s": "kopf"}
"""Platforms beside this machine, and the module that each needs."""
Maker = Callable[[], Side]


def bench(options: Options) -> report.Result:
    """Rounds of one run on each, then a lost node on each."""
    rounds, losses, samples = (1, 1, 30_000) if options.quick else (5, 2, 80_000)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        script = folder / "train.py"
        script.write_text(platform_job.SCRIPT)
        made = makers(folder)
        first: dict[str, list[float]] = {each: [] for each in made}

        def measure(platform: str) -> float:
            with running(made[platform]) as side:
                got = platform_job.trained(side, str(script), samples=samples)
            first[platform].append(got.first_step_s)
            return got.rate

        contestants = [harness.Contestant(name=each, measure=partial(measure, each)) for each in made]
        rates = harness.alternate(contestants, rounds=rounds, warmup=0 if options.quick else 1, label="one job on each")
        losing = lose(made, str(script), losses)
    first = {each: seconds[-rounds:] for each, seconds in first.items()}
    return judge(rates, first, losing)


def makers(folder: pathlib.Path) -> dict[str, Maker]:
    """How each platform that is here is set up for one run."""
    from springtide_lab.bench.control.platforms import local_and_ray_sides

    made: dict[str, Maker] = {"local": lambda: local_and_ray_sides.Local(folder / "runs")}
    if importlib.util.find_spec("ray") is not None:
        made["ray"] = local_and_ray_sides.Ray
    pods = "springtide_lab.bench.control.platforms.kubernetes_side"
    if importlib.util.find_spec("kopf") is not None and importlib.util.find_spec(pods) is not None:
        made["k8s"] = partial(importlib.import_module(pods).Pods, folder)
    return made


def lose(made: Mapping[str, Maker], script: str, times: int) -> dict[str, list[float]]:
    """Seconds to full speed after a node is lost, on each in turn."""
    seconds: dict[str, list[float]] = {each: [] for each in made}
    with harness.bar("a lost node on each", total=times) as step:
        for _ in range(times):
            for platform, maker in made.items():
                with running(maker) as side:
                    seconds[platform].append(platform_job.recovered(side, script))
            step()
    return seconds


@contextlib.contextmanager
def running(maker: Maker) -> Iterator[Side]:
    side = maker()
    try:
        yield side
    finally:
        side.close()


def judge(rates: harness.Rounds, first: Mapping[str, list[float]], losing: Mapping[str, list[float]]) -> report.Result:
    goals, rows = [], []
    for platform in ("local", *OTHERS):
        if platform not in rates.figures:
            goals.append(report.goal(f"{platform}_vs_local", None, target=TARGET, why="it is not installed here"))
            continue
        ratio = rates.ratio(platform, "local")
        if platform != "local":
            goals.append(report.goal(f"{platform}_vs_local", ratio, target=TARGET))
        rows.append(
            (
                platform,
                rates.median(platform),
                str(ratio),
                statistics.median(first[platform]),
                statistics.median(losing[platform]),
            )
        )
    return report.Result(
        goals=tuple(goals),
        rounds=rates.count,
        columns=("platform", "samples/s", "over local", "first step, s", "lost node, s"),
        rows=tuple(rows),
        notes=(
            "one worker and one server that compute all the time, on the same machine whatever the platform",
            "first step: from submitting to its end; lost node: from the loss of one of two workers with one of two "
            "servers (local: of both processes) to 90% of the speed before",
        ),
        details={
            "rates": {each: list(figures) for each, figures in rates.figures.items()},
            "first_step_s": {each: list(figures) for each, figures in first.items()},
            "lost_node_s": {each: list(figures) for each, figures in losing.items()},
        },
    )
