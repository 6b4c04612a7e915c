"""Commands that show a job as it goes on: `top` in a terminal, `metrics` for monitors, `dashboard` for a browser.

In: options. Out: each hands over to its own file, imported when it is called. Next: `cli.app` lists them beside others.
"""

from typing import Annotated

import typer

from springtide.cli.common.option_groups import taking
from springtide.cli.common.options import RUNS, Debug, Job, Json, Runs, WhereOptions

app = typer.Typer(rich_markup_mode=None)


@app.command(
    short_help="Watch a job from another terminal.",
    epilog="""\b
Example:
  springtide top train
""",
)
@taking(at=WhereOptions)
def top(
    job: Job = None,
    once: Annotated[bool, typer.Option("--once", help="One line, and leave.")] = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Watch a job from another terminal, as `springtide run` shows it; in a pipe, a line every two seconds."""
    from springtide.cli.show import top as verb

    return verb.top(job, at.where(), once=once)


@app.command(
    short_help="Figures of a job, as Prometheus reads them.",
    epilog="""\b
Examples:
  springtide metrics train
  springtide run train.py --metrics-port 9464    served by the job
""",
)
@taking(at=WhereOptions)
def metrics(job: Job = None, as_json: Json = False, debug: Debug = False, *, at: WhereOptions) -> int:
    """Figures of a job as Prometheus reads them: progress, roles, and how it keeps up with its stream."""
    from springtide.cli.show import metrics as verb

    return verb.metrics(job, at.where(), as_json=as_json)


@app.command(
    short_help="A page with a job's figures, live.",
    epilog="""\b
Example:
  springtide dashboard train --port 8080
""",
)
def dashboard(
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it is served; 0 takes a free one.")] = 8265,
    host: Annotated[str, typer.Option(help="Who may look; 0.0.0.0: everybody.", metavar="ADDRESS")] = "127.0.0.1",
    folder: Runs = RUNS,
    debug: Debug = False,
) -> int:
    """A page for the browser: traffic, forecast, workers and lag of a job, live or past; decisions with reasons.

    It only looks: nothing can be changed from there. Ctrl-C ends it, not the job.
    """
    from springtide.cli.show import dashboard as verb

    return verb.dashboard(job, folder=folder, host=host, port=port)
