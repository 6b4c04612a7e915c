"""The command line: verbs, exit codes, and errors without tracebacks.

Exit codes: 0 success, 1 the user's code failed, 2 bad usage, 3 infrastructure (a role lost, unreachable), 130 Ctrl-C.
Commands that show a job return 0 if they could show it, however the job ended. Each command imports its module only
when it is called, so that `springtide --help` stays fast.
"""

import sys
import traceback
from typing import Annotated, Any

import typer

from springtide import errors
from springtide.cli.cluster import brain, k8s
from springtide.cli.common.options import (
    RUN_PARAMETERS,
    RUNS,
    Debug,
    Job,
    Json,
    Runs,
    WhereOptions,
    command,
    declared,
    taking,
)
from springtide.cli.lab import commands as trying
from springtide.cli.stream import commands as streams
from springtide.telemetry import output

BAD_USAGE, INFRASTRUCTURE, INTERRUPTED = 2, 3, 130

UsageError = typer.BadParameter.__bases__[0]  # Typer bundles its own copy of click, so take the class from that copy
ClickException: type[Exception] = UsageError.__bases__[0]

EXAMPLES = """\b
Examples:
  springtide demo                              train on a generated click log
  springtide run train.py                      run your script on this machine
  springtide run train.py --servers 2 --workers 2 -- --epochs 3
  springtide submit job.yaml --platform k8s    submit it to a cluster
  springtide status                            show the newest job
  springtide explain train                     tell what happened, and why
  springtide scale train --workers 4           scale it while it trains
  springtide run train.py --resume train       continue from its checkpoint
  springtide doctor                            check this machine

\b
Exit codes:
  0 success   1 your code failed   2 bad usage   3 a role lost or unreachable
  130 stopped by Ctrl-C or `springtide stop`
"""

app = typer.Typer(
    name="springtide",
    help="Elastic training for recommendation models: a plain PyTorch loop on workers and parameter servers.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(brain.app)
app.add_typer(k8s.app)
app.add_typer(trying.app)
app.add_typer(streams.app)


@app.callback(invoke_without_command=True)
def springtide(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Elastic training for recommendation models: a plain PyTorch loop on workers and parameter servers."""
    if version:
        from springtide import __version__

        typer.echo(f"springtide {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@command(app, "Run a training script on this machine.", "springtide run train.py --servers 2 --workers 2 -- --epochs 3")
@declared(RUN_PARAMETERS)
def run(**given: Any) -> int:
    """Run a training script on this machine: one master, parameter servers and workers.

    The job finds out how many servers and workers it needs; numbers that you give are kept.
    Ctrl-C drains the job: workers finish their batch, and a checkpoint is written. A second Ctrl-C kills it.
    """
    from springtide.cli.job import run as verb

    return verb.run(given)


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
    from springtide.cli.job import control as verb

    counts = {"workers": workers, "servers": servers, "data_workers": data_workers}
    return verb.scale(job, counts, at.where(), as_json=as_json, sure=sure)


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
    from springtide.cli.job import control as verb

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
    from springtide.cli.job import control as verb

    return verb.logs(job, role, at.where(), lines=lines, follow=follow, as_json=as_json)


@command(
    app,
    "List the checkpoints of a job.",
    "springtide checkpoints train --json",
    "springtide checkpoints s3://bucket/train --verify",
)
def checkpoints(
    job: Job = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all checksums; exit with 1 if a checkpoint is damaged.")
    ] = False,
    folder: Runs = RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """List the checkpoints of a job, of a folder or of a URL: time, size, outcome and place."""
    from springtide.cli.job import checkpoints as verb

    return verb.checkpoints(job, folder=folder, as_json=as_json, verify=verify)


@command(
    app,
    "Export a job's model for serving.",
    "springtide export train exports              tables and dense tensors",
    "springtide export train exports --since 7    changes since export 7",
    "springtide export train exports --since samples:1000000",
    "springtide export train exports --every 5m   again every five minutes",
)
def export(
    job: Annotated[str, typer.Argument(help="Name of a job, or folder or URL of checkpoints.", metavar="JOB")],
    url: Annotated[str, typer.Argument(help="Destination: a folder, or any URL that fsspec knows.", metavar="URL")],
    since: Annotated[
        str, typer.Option(help="Export only changes since export N, samples:N or step:N.", metavar="N")
    ] = "",
    checkpoint: Annotated[
        int | None, typer.Option(help="Export this checkpoint.  [default: the newest]", metavar="N")
    ] = None,
    every: Annotated[str, typer.Option(help="Export again after this time: 300, 5m or 1h.", metavar="TIME")] = "",
    format: Annotated[str, typer.Option(help="Format of the tables: safetensors or parquet.")] = "safetensors",
    folder: Runs = RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Export the newest checkpoint of a job, running or over: keys and rows of every table, and a dense state dict."""
    from springtide.cli.job import export as verb

    return verb.export(
        job, url, since=since, checkpoint=checkpoint, every=every, format=format, folder=folder, as_json=as_json
    )


@command(app, "Train on a generated click log, in about a minute.", "springtide demo")
def demo(
    servers: Annotated[int, typer.Option(min=1, help="Number of parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    samples: Annotated[
        int, typer.Option(min=1000, help="Number of events to generate; a tenth is held out for the test.")
    ] = 500_000,
    kill: Annotated[
        bool, typer.Option(help="Add a server, and kill a worker, a server and the master on the way.")
    ] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Train WideDeep on a generated click log whose best possible AUC is known.

    On the way the demo adds a server and kills a worker, a server and the master (kill -9). A table beside the model
    counts lost and repeated samples. Takes a minute or two.
    """
    from springtide.cli.job import demo as verb

    return verb.demo(servers=servers, workers=workers, samples=samples, kill=kill, as_json=as_json, debug=debug)


@command(app, "Check this machine; suggest fixes.", "springtide doctor --json")
def doctor(as_json: Json = False) -> int:
    """Check that this machine has all that training needs; suggest fixes and print versions for bug reports."""
    from springtide.cli import doctor as verb

    return verb.doctor(as_json=as_json)


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
    from springtide.cli.show import status as verb

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
    from springtide.cli.show import status as verb

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


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in (given[: given.index("--")] if "--" in given else given)
    try:
        return int(app(given, prog_name="springtide", standalone_mode=False) or 0)
    except ClickException as error:
        return _usage_error(error, given)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except errors.SpringtideError as error:
        if debug:
            print(output.redact(traceback.format_exc()), file=sys.stderr)
        print(output.redact(f"error: {error}"), file=sys.stderr)
        return BAD_USAGE if isinstance(error, errors.UserError) else INFRASTRUCTURE
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, so print nothing more, not even at exit
        return 0
    finally:
        output.finish()


def _usage_error(error: BaseException, given: list[str]) -> int:
    """Print Typer's message; hint at `--` when an option of the user's script caused it."""
    show = getattr(error, "show")  # noqa: B009 - the class is known at run time only
    show()
    if type(error).__name__ == "NoSuchOption" and given[:1] == ["run"] and "--" not in given:
        print("Options of your script go after --, as in: springtide run train.py -- --epochs 3", file=sys.stderr)
    return BAD_USAGE


if __name__ == "__main__":
    sys.exit(main())
