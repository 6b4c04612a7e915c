"""The command line: verbs, exit codes, and errors without tracebacks.

Exit codes: 0 success, 1 the user's code failed, 2 bad usage, 3 infrastructure (a role lost, unreachable), 130 Ctrl-C.
Commands that show a job return 0 if they could, however the job ended.
Each command imports its module when it is called: `springtide --help` stays quick.
"""

import sys
import traceback
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.cluster import brain, k8s
from springtide.cli.common.options import RUNS, Debug, Job, Json, RunOptions, Runs, command, taking
from springtide.cli.job import remote_commands
from springtide.cli.lab import commands as trying
from springtide.cli.show import commands as watching
from springtide.cli.stream import commands as streams
from springtide.telemetry import output, redactor

BAD_USAGE, INFRASTRUCTURE, INTERRUPTED = 2, 3, 130

UsageError = typer.BadParameter.__bases__[0]  # Typer brings a copy of click along: take the class from there
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

app.add_typer(remote_commands.app)
app.add_typer(brain.app)
app.add_typer(k8s.app)
app.add_typer(trying.app)
app.add_typer(streams.app)
app.add_typer(watching.app)


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
@taking(options=RunOptions)
def run(options: RunOptions) -> int:
    """Run a training script on this machine: one master, parameter servers and workers.

    The job finds out how many servers and workers it needs; numbers that you give are kept.
    Ctrl-C drains the job: workers finish their batch, and a checkpoint is written. A second Ctrl-C kills it.
    """
    from springtide.cli.job import run as verb

    return verb.run(options)


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
            print(redactor.redact(traceback.format_exc()), file=sys.stderr)
        print(redactor.redact(f"error: {error}"), file=sys.stderr)
        return BAD_USAGE if isinstance(error, errors.UserError) else INFRASTRUCTURE
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has left: nothing more to say, not even at exit
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
