"""Commands on a job wherever it runs: `submit`, `status`, `logs`, `events`, `explain`, `scale`, `stop`.

In: options. Out: each hands over to its own file, imported when it is called. Next: `cli.app` lists them beside others.
"""

from typing import Annotated

import typer

from springtide.cli.common.options import Debug, Job, Json, WhereOptions, command, taking

app = typer.Typer(rich_markup_mode=None)


@command(
    app,
    "Submit a job to a platform.",
    "springtide submit job.yaml                   on this machine",
    "springtide submit job.yaml --platform k8s --namespace ml",
    "springtide submit job.yaml --platform ray --address 10.0.0.5:6379",
    "springtide submit job.yaml --dry-run         check it only",
)
@taking(at=WhereOptions)
def submit(
    spec: Annotated[str, typer.Argument(help="Spec of the job.", metavar="JOB.YAML")],
    name: Annotated[str, typer.Option(help="Name of the job.  [default: the spec's]")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the job until it ends; Ctrl-C leaves it running.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the spec and show every value with its origin; start nothing.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Submit a job to this machine, a Ray cluster or a Kubernetes cluster. The spec is the same for all.

    `script: train.py` is enough of a spec. Next: springtide status, logs -f, scale, stop, explain.
    """
    from springtide.cli.job import submit as verb

    return verb.submit(spec, at.where(), name=name, follow=follow, dry_run=dry_run, as_json=as_json, debug=debug)


@command(app, "Show a job's progress, or how it ended.", "springtide status train --json")
@taking(at=WhereOptions)
def status(
    job: Job = None,
    every: Annotated[bool, typer.Option("--all", help="List all jobs, running and past.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Show a job: progress, roles with CPU and memory, the last decision and its reason; or how it ended."""
    from springtide.cli.show import status as verb

    return verb.status(job, at.where(), every=every, as_json=as_json)


@command(app, "List all events of a job.", "springtide events train")
@taking(at=WhereOptions)
def events(job: Job = None, as_json: Json = False, debug: Debug = False, *, at: WhereOptions) -> int:
    """List all events of a job, in order."""
    from springtide.cli.show import events as verb

    return verb.events(job, at.where(), as_json=as_json)


@command(app, "Explain what was decided about a job.", "springtide explain train")
@taking(at=WhereOptions)
def explain(job: Job = None, as_json: Json = False, debug: Debug = False, *, at: WhereOptions) -> int:
    """Explain what was decided about a job, and why: phases, losses, relaunches, scaling."""
    from springtide.cli.show import events as verb

    return verb.explain(job, at.where(), as_json=as_json)


@command(
    app,
    "Scale workers, servers or data workers.",
    "springtide scale train --workers 4 --servers 2 --data-workers 3",
)
@taking(at=WhereOptions)
def scale(
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers.")] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="Number of servers; slots move while they serve.")] = None,
    data_workers: Annotated[int | None, typer.Option(min=0, help="Number of data workers; 0 for none.")] = None,
    job: Job = None,
    sure: Annotated[bool, typer.Option("--yes", help="Accept far more roles than there are cores.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Scale a running job. New roles join and surplus ones drain while the others train on.

    After you set the number of data workers, the job no longer tunes it.
    """
    from springtide.cli.job import scale_stop as verb

    wanted = verb.ScaleTarget(workers=workers, servers=servers, data_workers=data_workers)
    return verb.scale(job, wanted, at.where(), as_json=as_json, sure=sure)


@command(app, "Drain a running job.", "springtide stop train --wait")
@taking(at=WhereOptions)
def stop(
    job: Job = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job is over.")] = False,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Drain a running job, as Ctrl-C does: workers finish their batch and stop."""
    from springtide.cli.job import scale_stop as verb

    return verb.stop(job, at.where(), wait=wait, as_json=as_json)


@command(app, "Print the logs of a job.", "springtide logs train worker-1 -f")
@taking(at=WhereOptions)
def logs(
    job: Job = None,
    role: Annotated[str | None, typer.Argument(help="Role, such as worker-1.  [default: all]", metavar="ROLE")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the logs until the job is over.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="Number of last lines to print of each log.")] = 20,
    as_json: Json = False,
    debug: Debug = False,
    *,
    at: WhereOptions,
) -> int:
    """Print the last lines of each role's log; with -f, follow them."""
    from springtide.cli.job import logs as verb

    return verb.logs(job, role, at.where(), lines=lines, follow=follow, as_json=as_json)
