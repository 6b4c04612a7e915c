"""Commands that show a job as it goes on: `top` in a terminal, `metrics` for monitors, `dashboard` for a browser.

In: options. Out: each hands over to its own file, imported when it is called. Next: `cli.app` lists them beside others.
"""

from typing import Annotated

import typer

from springtide.cli.common.options import RUNS, Debug, Job, Json, Runs, WhereOptions, command, taking

app = typer.Typer(rich_markup_mode=None)


@command(app, "Watch a job from another terminal.", "springtide top train")
@taking(at=WhereOptions)
def top(
    job: Job = None,
    once: Annotated[bool, typer.Option("--once", help="Print one line and exit.")] = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Watch a job from another terminal, as `springtide run` shows it; in a pipe, print a line every two seconds."""
    from springtide.cli.show import top as verb

    return verb.top(job, at.where(), once=once)


@command(
    app,
    "Print a job's metrics for Prometheus.",
    "springtide metrics train",
    "springtide run train.py --metrics-port 9464    metrics served by the job",
)
@taking(at=WhereOptions)
def metrics(job: Job = None, as_json: Json = False, debug: Debug = False, *, at: WhereOptions) -> int:
    """Print a job's metrics in Prometheus format: progress, roles and stream lag."""
    from springtide.cli.show import metrics as verb

    return verb.metrics(job, at.where(), as_json=as_json)


@command(app, "Serve a live page about a job.", "springtide dashboard train --port 8080")
def dashboard(
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 takes a free one.")] = 8265,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets everyone look.", metavar="ADDRESS")
    ] = "127.0.0.1",
    folder: Runs = RUNS,
    debug: Debug = False,
) -> int:
    """Serve a page about a job, live or past: traffic, forecast, workers, lag, and decisions with reasons.

    The page is read-only. Ctrl-C ends the page, not the job.
    """
    from springtide.cli.show import dashboard as verb

    return verb.dashboard(job, folder=folder, host=host, port=port)
