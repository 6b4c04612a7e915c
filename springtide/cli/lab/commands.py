"""Declarations of commands that try things out and change no job: `plan`, `simulate`, `forecast`, `bench`, ..."""

import importlib.util
from typing import Annotated, Any

import typer

from springtide import errors
from springtide.cli.common.options import RUNS, Debug, Json, Runs, command, made_folder

app = typer.Typer(rich_markup_mode=None)


@command(app, "Run a benchmark against a peer.", "springtide bench store --json")
def bench(
    name: Annotated[str | None, typer.Argument(help="Benchmark to run.  [default: list all]")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes: shows that it runs, proves nothing.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="Folder for plots.", metavar="DIR")] = None,
    delay: Annotated[
        list[str] | None, typer.Option(help="Make a baseline take this long.", metavar="NAME=SECONDS")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(help="allocate: ids of real data, samples by tables.", metavar="FILE.npy|FILE.parquet"),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Run a benchmark: ours and a peer alternately in one run, the ratio last."""
    benches = _of_lab("bench")
    if name is None:
        typer.echo(benches.listing())
    else:
        folder = made_folder("--out", out) if out else None
        benches.run(name, json=as_json, quick=quick, out=folder, delays=delay or (), ids=ids)
    return 0


@command(
    app,
    "Backtest traffic forecasts.",
    "springtide forecast traffic.csv",
    "springtide forecast traffic.csv --model mstl --known 14 --json",
)
def forecast(
    trace: Annotated[str, typer.Argument(help="Traffic: a CSV of times and counts.", metavar="FILE.csv")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model to try; repeatable.  [default: all that need no extra]", metavar="NAME"),
    ] = None,
    known: Annotated[int, typer.Option(min=1, help="Days of history for each forecast.")] = 28,
    step: Annotated[float | None, typer.Option(min=1, help="Seconds per step.  [default: 600, or the file's]")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Forecast only the last days.  [default: all]")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Forecast each day of a trace from the days before it, compare models, and forecast the next day."""
    from springtide.cli.stream import forecast as verb

    return verb.forecast(trace, names=model or (), known_days=known, step_s=step, last=last, as_json=as_json)


@command(
    app,
    "Show what a policy would do now.",
    "springtide plan train                    plan of a job, running or past",
    "springtide plan examples/plan_job.yaml --policy optimus",
)
def plan(
    source: Annotated[
        str | None, typer.Argument(help="Job or file.  [default: the newest job]", metavar="JOB_OR_FILE")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy to ask.  [default: the job's own]", metavar="NAME")] = None,
    folder: Runs = RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Show what a policy would do with a job now: its model, the candidates, the choice and the reason.

    Changes nothing. For a run, the policy sees what the planner saw last; a file has the same fields.
    """
    from springtide.cli.lab import plan as verb

    return verb.plan(source, policy=policy, folder=folder, as_json=as_json)


@command(
    app,
    "Explain what data workers could do.",
    "springtide explain-split train.py -- --epochs 1",
    name="explain-split",
)
def explain_split(
    script: Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.", metavar="-- ARGS")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Give the script this long to train a few batches.", metavar="SECONDS")
    ] = (300.0),
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Explain which part of forward() data workers could compute: what moves, what stays and why, bytes and cost.

    Runs the script alone in a process of its own, for a few batches, and keeps nothing that it trains.
    """
    from springtide.cli.lab import explain_split as verb

    return verb.explain_split(script, arguments or (), timeout_s=timeout, as_json=as_json, debug=debug)


@command(
    app,
    "Compare policies on a virtual cluster.",
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
    debug: Debug = False,
) -> int:
    """Compare policies on a virtual cluster: the same jobs and faults for each, in virtual time."""
    from springtide.cli.lab import simulate as verb

    return verb.simulate(
        trace, names=policy or verb.DEFAULTS, jobs=jobs, seed=seed, plot=plot, example=example, as_json=as_json
    )


@command(
    app,
    "Reproduce a paper's figures.",
    "springtide reproduce dlrover-rm --out figures --json",
    "springtide reproduce herald --ids clicks.npy",
    "springtide reproduce goldminer --trace jobs.csv",
    "springtide reproduce kale --trace traffic.csv",
)
def reproduce(
    name: Annotated[str, typer.Argument(help="Paper: dlrover-rm, herald, goldminer or kale.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.", show_default="3; 10; 20")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=10, help="dlrover-rm: jobs of a cluster's day; goldminer: of 8 hours.", show_default="500; 121"
        ),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help="herald: ids of real data, samples by tables.", metavar="FILE.npy|FILE.parquet")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="goldminer: jobs with timestamp, duration (s), num_gpus; kale: traffic, time and number; or a folder.",
            metavar="FILE.csv",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="goldminer: also share out data workers by this metric; may be repeated.", metavar="NAME"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use few jobs: shows that it runs, proves nothing.")] = False,
    out: Annotated[str | None, typer.Option(help="Folder for plots.", metavar="DIR")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Reproduce a paper's figures in simulation, beside the paper's own and the goals."""
    runner = _of_lab("reproduce.runner")
    metrics = tuple(metric or ())
    asked = runner.ReproduceOptions(seeds=seeds, jobs=jobs, quick=quick, ids=ids, trace=trace, metrics=metrics)
    runner.run(name, asked, folder=None if out is None else made_folder("--out", out), as_json=as_json)
    return 0


def _of_lab(module: str) -> Any:
    """Return a module of the lab; the lab is a distribution of its own."""
    if importlib.util.find_spec("springtide_lab") is None:
        raise errors.MissingLab(module.partition(".")[0])
    return importlib.import_module(f"springtide_lab.{module}")
