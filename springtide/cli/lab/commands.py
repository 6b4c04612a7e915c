"""Commands that try things out and change no job: `bench`, `plan`, `forecast`, `simulate`, `reproduce` and others.

In: options. Out: each hands over to its own file, imported when it is called. Next: `cli.app` lists them beside others.
"""

import importlib.util
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.common.options import RUNS, Debug, Json, Runs

app = typer.Typer(rich_markup_mode=None)


@app.command(
    short_help="Run a benchmark: ours and a peer in one run.",
    epilog="""\b
Example:
  springtide bench store --json
""",
)
def bench(
    name: Annotated[str | None, typer.Argument(help="Which one; without it, they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs, proves nothing.")] = False,
    out: Annotated[str | None, typer.Option(help="Folder for plots.", metavar="DIR")] = None,
    delay: Annotated[
        list[str] | None, typer.Option(help="Seconds that a baseline is to need.", metavar="NAME=SECONDS")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(help="allocate: ids of real data, samples by tables.", metavar="FILE.npy|FILE.parquet"),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Run a benchmark: ours and a peer alternately in one run, the ratio last."""
    _need_lab("bench")
    from springtide.cli.lab import bench as verb

    return verb.bench(name, quick=quick, out=out, as_json=as_json, delays=delay or (), ids=ids)


@app.command(
    short_help="How well traffic is forecast, and what comes next.",
    epilog="""\b
Examples:
  springtide forecast traffic.csv
  springtide forecast traffic.csv --model mstl --known 14 --json
""",
)
def forecast(
    trace: Annotated[str, typer.Argument(help="Traffic: moments and counts.", metavar="FILE.csv")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model to try; may be repeated.  [default: those that need no extra]", metavar="NAME"),
    ] = None,
    known: Annotated[int, typer.Option(min=1, help="Days that each forecast is made from.")] = 28,
    step: Annotated[float | None, typer.Option(min=1, help="Seconds of a step.  [default: 600, or the file's]")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Days to forecast, the last ones.  [default: all]")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Let models forecast the days of a trace, each from the days before, and then the day after it."""
    from springtide.cli.stream import forecast as verb

    return verb.forecast(trace, names=model or (), known_days=known, step_s=step, last=last, as_json=as_json)


@app.command(
    short_help="What would be done with a job now, and why.",
    epilog="""\b
Examples:
  springtide plan train                    of a job, running or past
  springtide plan examples/plan_job.yaml --policy optimus
""",
)
def plan(
    source: Annotated[
        str | None, typer.Argument(help="A job, or a file; the newest job if not given.", metavar="JOB_OR_FILE")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Another than the job's own.", metavar="NAME")] = None,
    folder: Runs = RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """What a policy would do with a job now: its model, candidates with the chosen one marked, and why.

    Nothing is changed. Of a run it is what its planner was shown last; a file has the same fields by hand.
    """
    from springtide.cli.lab import plan as verb

    return verb.plan(source, policy=policy, folder=folder, as_json=as_json)


@app.command(
    "explain-split",
    short_help="What of a script data workers could do, and why.",
    epilog="""\b
Example:
  springtide explain-split train.py -- --epochs 1
""",
)
def explain_split(
    script: Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.", metavar="-- ARGS")
    ] = None,
    timeout: Annotated[float, typer.Option(help="How long it may take to train a few batches.", metavar="SECONDS")] = (
        300.0
    ),
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """What of a script data workers could do: what moves, what stays, the line that stopped it, bytes and cost.

    The script runs by itself in a process of its own, for a few batches; nothing is kept of what it trains.
    """
    from springtide.cli.lab import explain_split as verb

    return verb.explain_split(script, arguments or (), timeout_s=timeout, as_json=as_json, debug=debug)


@app.command(
    short_help="Try policies on a virtual cluster.",
    epilog="""\b
Examples:
  springtide simulate --policy static --policy springtide --jobs 2000
  springtide simulate --example > trace.json; springtide simulate trace.json
""",
)
def simulate(
    trace: Annotated[str | None, typer.Argument(help="Jobs, in YAML or JSON; drawn if not given.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Which, or several; also oracle, module:function.", metavar="NAME")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="How many to draw: 2000, or 5 if detailed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="What they are drawn from.")] = 0,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="Few jobs, each with its real master, ledger, slots and checkpoints.")
    ] = False,
    plot: Annotated[str | None, typer.Option(help="Where to put a plot.", metavar="FILE.png")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a trace to begin with, and leave.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Try policies on a virtual cluster: each on the same jobs, with the same faults, in virtual time."""
    if detailed and not example:
        from springtide.cli.lab import simulate_jobs

        return simulate_jobs.simulate(trace, names=policy or (), jobs=jobs, seed=seed, plot=plot, as_json=as_json)
    from springtide.cli.lab import simulate as verb

    return verb.simulate(
        trace, names=policy or verb.DEFAULTS, jobs=jobs or 2000, seed=seed, plot=plot, example=example, as_json=as_json
    )


@app.command(
    short_help="A paper's figures from this code, beside its own.",
    epilog="""\b
Examples:
  springtide reproduce dlrover-rm --out figures --json
  springtide reproduce herald --ids clicks.npy
  springtide reproduce goldminer --trace jobs.csv
  springtide reproduce kale --trace traffic.csv
""",
)
def reproduce(
    name: Annotated[str, typer.Argument(help="Which paper: dlrover-rm, herald, goldminer or kale.")],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How often everything is done, with other luck.", show_default="3; 10; 20")
    ] = None,
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
    quick: Annotated[bool, typer.Option("--quick", help="Few jobs: shows that it runs, proves nothing.")] = False,
    out: Annotated[str | None, typer.Option(help="Folder for plots and a page.", metavar="DIR")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """A paper's figures from this code, in simulation, beside the paper's own, each with its goal."""
    _need_lab("reproduce")
    from springtide.cli.lab import reproduce as verb

    wish = verb.ReproduceOptions(seeds=seeds, jobs=jobs, quick=quick, ids=ids, trace=trace, metrics=tuple(metric or ()))
    return verb.reproduce(name, wish, out=out, as_json=as_json)


def _need_lab(command: str) -> None:
    if importlib.util.find_spec("springtide_lab") is None:
        raise errors.MissingLab(command)
