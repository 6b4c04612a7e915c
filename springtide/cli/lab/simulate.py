"""`springtide simulate`: compares policies on a virtual cluster. In: a trace file or a seed. Out: a table, a plot,
JSON."""

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich import console as rich_console
from rich import progress as rich_progress

from springtide import errors
from springtide.cli.common.options import Json, verb
from springtide.cli.common.render import print_json
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import registry
from springtide.sim import report
from springtide.sim.engine import systems
from springtide.sim.engine.simulation import Simulation, Story, Watch
from springtide.sim.world import workload
from springtide.sim.world.parameters import ClusterWorld
from springtide.sim.world.world import TrueJob

ORACLE = "oracle"
DEFAULTS = ("static", "springtide")


@verb(
    "springtide simulate --policy static --policy springtide --jobs 2000",
    "springtide simulate --example > trace.json; springtide simulate trace.json",
)
def simulate(
    trace: Annotated[str | None, typer.Argument(help="Jobs, in YAML or JSON.  [default: drawn at random]")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy; repeatable; also oracle or module:function.", metavar="NAME")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs to draw.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn jobs.")] = 0,
    plot: Annotated[str | None, typer.Option(help="Write a plot to this file.", metavar="FILE.png")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print an example trace and exit.")] = False,
    as_json: Json = False,
) -> int:
    """Compare policies on a virtual cluster. Every policy gets the same jobs and faults, in virtual time."""
    if example:
        typer.echo(workload.example())
        return 0
    picture = pathlib.Path(plot) if plot else None
    if picture is not None:
        report.check(picture)
    chosen = list(dict.fromkeys(policy or DEFAULTS))
    if trace is not None:
        world, work = workload.read(pathlib.Path(trace))
        what = f"{len(work)} jobs of {trace}"
    else:
        world = ClusterWorld()
        work, what = workload.jobs(world, jobs, seed), f"{jobs} jobs drawn from seed {seed}"
    contestants = [system(name, work) for name in chosen]
    stories: dict[str, Story] = {}
    took: dict[str, float] = {}
    for contestant in contestants:
        began = time.process_time()
        with progress(contestant.name, len(work)) as watch:
            stories[contestant.name] = run(world, work, contestant, watch)
        took[contestant.name] = time.process_time() - began
        for complaint, times in stories[contestant.name].complaints.items():
            typer.echo(f"warning: {complaint} ({times} times)", err=True)
    summaries = {name: report.summary(story) for name, story in stories.items()}
    if not as_json:
        report.show(summaries, title=f"simulated: {what}, {world.size.nodes:g} nodes")
    if picture is not None:
        report.story(stories, picture)
        typer.echo(f"plot: {picture}", err=True)
    found = {
        name: {**summary.flat(), "seconds": round(took[name], 3), "decisions": stories[name].decisions}
        for name, summary in summaries.items()
    }
    print_json({"jobs": len(work), "seed": None if trace else seed, "trace": trace, "systems": found}, as_json)
    return outcome(stories)


def outcome(stories: Mapping[str, Story]) -> int:
    """Return exit code 1 if all calls of a policy failed, because the figures of that policy are then meaningless."""
    useless = [name for name, story in stories.items() if 0 < story.decisions <= sum(story.complaints.values())]
    for name in useless:
        typer.echo(f"error: policy {name} failed each time, so its jobs got no decision", err=True)
    return 1 if useless else 0


def run(world: ClusterWorld, jobs: Sequence[TrueJob], system: systems.System, watch: Watch | None = None) -> Story:
    """Simulate one system. The exact solver is off, because its time limit counts real time."""
    return Simulation(world, jobs, system, config=PlanningConfig(exact_seconds=0.0), watch=watch).run()


@contextlib.contextmanager
def progress(name: str, total: int) -> Iterator[Watch | None]:
    if not sys.stderr.isatty():
        print(f"simulating {name}: {total} jobs", file=sys.stderr, flush=True)
        yield None
        return
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=20),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=rich_console.Console(stderr=True), transient=True) as shown:
        task = shown.add_task(name, total=total)
        yield lambda now, ended: shown.update(task, completed=min(ended, total))


def system(name: str, jobs: Sequence[TrueJob]) -> systems.System:
    if name == ORACLE:
        return systems.oracle(jobs)
    if name not in registry.names() and ":" not in name:
        raise errors.UnknownName("policy", name, (*registry.names(), ORACLE))
    return systems.system(name, registry.load(name))
