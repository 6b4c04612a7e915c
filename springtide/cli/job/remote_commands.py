"""Commands on a job wherever it runs: `submit`, `status`, `logs`, `events`, `explain`, `scale`, `stop`.

In: options. Out: each hands over to its own file, imported when it is called. Next: `cli.app` lists them beside others.
"""

from typing import Annotated

import typer

from springtide.cli.common.option_groups import taking
from springtide.cli.common.options import Debug, Job, Json, WhereOptions

app = typer.Typer(rich_markup_mode=None)


@app.command(
    short_help="Hand a job to a platform, and leave.",
    epilog="""\b
Examples:
  springtide submit job.yaml                   here, in the background
  springtide submit job.yaml --platform k8s --namespace ml
  springtide submit job.yaml --platform ray --address 10.0.0.5:6379 --follow
  springtide submit job.yaml --dry-run         what would be run, and why
""",
)
@taking(at=WhereOptions)
def submit(
    spec: Annotated[str, typer.Argument(help="The job's spec.", metavar="JOB.YAML")],
    name: Annotated[str, typer.Option(help="Another name than the spec's.")] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Look on until it ends; Ctrl-C leaves it running.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check it, and show what it would be.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Hand a job to this machine, a Ray cluster or a Kubernetes cluster, and leave; the spec is the same for all.

    It needs no more than `script: train.py`. Then: springtide status, logs -f, scale, stop, explain.
    """
    from springtide.cli.job import submit as verb

    return verb.submit(spec, at.where(), name=name, follow=follow, dry_run=dry_run, as_json=as_json, debug=debug)


@app.command(
    short_help="How a job is doing, or how it ended.",
    epilog="""\b
Example:
  springtide status train --json
""",
)
@taking(at=WhereOptions)
def status(
    job: Job = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs, running and past, a line each.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """How a job is doing, or how it ended: progress, roles with CPU and memory, the last decision and why."""
    from springtide.cli.show import status as verb

    return verb.status(job, at.where(), every=every, as_json=as_json)


@app.command(
    short_help="Everything that happened to a job.",
    epilog="""\b
Example:
  springtide events train
""",
)
@taking(at=WhereOptions)
def events(job: Job = None, as_json: Json = False, debug: Debug = False, *, at: WhereOptions) -> int:
    """Everything that happened to a job, in order."""
    from springtide.cli.show import events as verb

    return verb.events(job, at.where(), as_json=as_json)


@app.command(
    short_help="What was decided about a job, and why.",
    epilog="""\b
Example:
  springtide explain train
""",
)
@taking(at=WhereOptions)
def explain(job: Job = None, as_json: Json = False, debug: Debug = False, *, at: WhereOptions) -> int:
    """What was decided about a job, and why: phases, losses, relaunches, scaling."""
    from springtide.cli.show import events as verb

    return verb.explain(job, at.where(), as_json=as_json)


@app.command(
    short_help="Change how many workers, servers or data workers it has.",
    epilog="""\b
Example:
  springtide scale train --workers 4 --servers 2 --data-workers 3
""",
)
@taking(at=WhereOptions)
def scale(
    workers: Annotated[int | None, typer.Option(min=1, help="So many workers from now on.")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="So many servers; slots move while they serve.")] = None,
    data_workers: Annotated[int | None, typer.Option(min=0, help="So many data workers; 0: none.")] = None,
    job: Job = None,
    sure: Annotated[bool, typer.Option("--yes", help="Also far more than there are cores.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Change how many workers, servers or data workers a job has. New ones join, surplus ones drain; others train on.

    A number of data workers that you set by hand is not tuned any more.
    """
    from springtide.cli.job import scale_stop as verb

    wanted = verb.ScaleTarget(workers=workers, servers=servers, data_workers=data_workers)
    return verb.scale(job, wanted, at.where(), as_json=as_json, sure=sure)


@app.command(
    short_help="Drain a running job.",
    epilog="""\b
Example:
  springtide stop train --wait
""",
)
@taking(at=WhereOptions)
def stop(
    job: Job = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job is over.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Drain a running job, as Ctrl-C does: workers finish the batch in hand and stop."""
    from springtide.cli.job import scale_stop as verb

    return verb.stop(job, at.where(), wait=wait, as_json=as_json)


@app.command(
    short_help="What the processes of a job have printed.",
    epilog="""\b
Example:
  springtide logs train worker-1 -f
""",
)
@taking(at=WhereOptions)
def logs(
    job: Job = None,
    role: Annotated[str | None, typer.Argument(help="One of its roles; all if not given.", metavar="ROLE")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they print, until the job is over.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="How many of the last lines.")] = 20,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """What the processes of a job have printed: the last lines of each log, and with -f whatever comes."""
    from springtide.cli.job import logs as verb

    return verb.logs(job, role, at.where(), lines=lines, follow=follow, as_json=as_json)
