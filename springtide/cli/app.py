"""The command line: verbs, exit codes, and errors without tracebacks.

Exit codes: 0 well, 1 the user's code failed, 2 bad usage, 3 infrastructure (a role lost, unreachable), 130 Ctrl-C.
Commands that look at a job return 0 when they could, whatever became of the job.
Each verb's own file is imported when it is called, so that `springtide --help` is quick.
"""

import sys
import traceback
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.cluster import brain, k8s
from springtide.cli.common.option_groups import taking
from springtide.cli.common.options import (
    RUNS,
    Debug,
    ExportOptions,
    FeedingOptions,
    Job,
    Json,
    KeepingOptions,
    OnlineOptions,
    Runs,
)
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
  springtide submit job.yaml --platform k8s    or on a cluster, and leave
  springtide status                            how the newest job is doing
  springtide explain train                     what happened to it, and why
  springtide scale train --workers 4           while it trains
  springtide run train.py --resume train       from its last checkpoint
  springtide doctor                            is all here that is needed?

\b
Exit codes:
  0 well   1 your code failed   2 bad usage   3 a role lost or unreachable
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

Cpu = Annotated[
    float | None, typer.Option(help="Cores that each worker and server may use, such as 0.5.", metavar="CORES")
]
Memory = Annotated[str | None, typer.Option(help="Memory that each of them may use, such as 2G.", metavar="SIZE")]
Cache = Annotated[str, typer.Option(help="Rows that a worker keeps, such as 10%.", metavar="SIZE|SHARE|auto|off")]
Allocation = Annotated[
    str | None, typer.Option(help="bsp: who trains which sample.  [default: where its rows are]", metavar="POLICY")
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(help="Arguments of your script, after --.", metavar="ARGS")
]
Recovery = Annotated[str, typer.Option(help="A server is lost: train its part again (exact), or not (partial).")]
Planning = Annotated[
    list[str] | None, typer.Option(help="How it is planned, such as sample_s=10.", metavar="NAME=VALUE")
]
Straggler = Annotated[
    list[str] | None, typer.Option(help="When a worker counts as slow, such as window=20.", metavar="NAME=VALUE")
]


@app.callback(invoke_without_command=True)
def springtide(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Elastic training for recommendation models: a plain PyTorch loop on workers and parameter servers."""
    if version:
        from springtide import __version__

        typer.echo(f"springtide {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(
    short_help="Run a training script on this machine.",
    epilog="""\b
Example:
  springtide run train.py --servers 2 --workers 2 -- --epochs 3
""",
)
@taking(feeding=FeedingOptions, keeping=KeepingOptions, following=OnlineOptions, exporting=ExportOptions)
def run(
    script: Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")],
    arguments: ScriptArguments = None,
    servers: Annotated[int | None, typer.Option(min=1, help="Parameter servers.  [default: planned]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers.  [default: planned]")] = None,
    cpu: Cpu = None,
    plan: Annotated[bool | None, typer.Option(help="Let the job find its size.  [default: if it is open]")] = None,
    quota: Annotated[float | None, typer.Option(help="Cores of the whole job.", metavar="CORES")] = None,
    planning: Planning = None,
    brain: Annotated[str, typer.Option(help="A brain that plans for many jobs.", metavar="HOST:PORT")] = "",
    history: Annotated[str | None, typer.Option(help="Past jobs; '' for none.", metavar="FILE_OR_URL")] = None,
    memory: Memory = None,
    sync: Annotated[str, typer.Option(help="async: each worker at its own pace; bsp: in step.")] = "async",
    cache: Cache = "auto",
    cache_staleness: Annotated[int | None, typer.Option(help="async: what a kept row may lack.  [default: 10]")] = None,
    allocation: Allocation = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.  [default: the script's]")] = None,
    logs: Runs = RUNS,
    seed: Annotated[int, typer.Option(help="Seed of shuffles and of untrained rows.")] = 0,
    slots: Annotated[int, typer.Option(help="Parts of the key space, a power of two.")] = 1024,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The master's port; 0 takes a free one.")] = 0,
    tls: Annotated[bool, typer.Option("--tls", help="Mutual TLS between all roles, as on a cluster.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until every role must have joined.")] = 300.0,
    silence: Annotated[float, typer.Option(min=1, help="Seconds after which a silent role counts as lost.")] = 30.0,
    heartbeat: Annotated[float, typer.Option(min=0.05, help="Seconds between two heartbeats of a role.")] = 1.0,
    relaunches: Annotated[int, typer.Option(min=0, help="How often a role that fails is started again.")] = 5,
    recovery: Recovery = "exact",
    tries: Annotated[int, typer.Option(min=1, help="How often data that cannot be read is tried.")] = 3,
    straggler: Straggler = None,
    guards: Annotated[bool, typer.Option(help="Add, relieve and replace servers where they need it.")] = True,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that workers get to stop after Ctrl-C.")] = 30.0,
    as_json: Json = False,
    debug: Debug = False,
    *,
    feeding: FeedingOptions,
    keeping: KeepingOptions,
    following: OnlineOptions,
    exporting: ExportOptions,
) -> int:
    """Run a training script on this machine: one master, parameter servers, workers.

    How many there are, and with how many cores each, the job finds out by itself; what you give is kept to.
    Ctrl-C drains: workers finish the batch in hand and stop, and a checkpoint is written. A second Ctrl-C kills.
    """
    from springtide.cli.job import run as verb

    options = verb.RunOptions(
        script=script, arguments=tuple(arguments or ()), servers=servers, workers=workers, cpu=cpu, memory=memory,
        sync=sync, cache=cache, cache_staleness=cache_staleness, allocation=allocation, name=name, logs=logs, seed=seed,
        slots=slots, port=port, timeout_s=timeout, silence_s=silence, heartbeat_s=heartbeat, relaunches=relaunches,
        tls=tls, recovery=recovery, tries=tries, stragglers=tuple(straggler or ()), plan=plan, quota=quota,
        planning=tuple(planning or ()), brain=brain, history=history, feeding=feeding, guards=guards, grace_s=grace,
        checkpoint_every_s=keeping.checkpoint_every, checkpoint_dir=keeping.checkpoint_dir,
        checkpoint_url=keeping.checkpoint_url, upload_every_s=keeping.upload_every, mirror=keeping.mirror,
        resume=keeping.resume, disk_s=keeping.disk_wait, following=following, exporting=exporting, as_json=as_json,
        debug=debug,
    )  # fmt: skip
    return verb.run(options)


@app.command(
    short_help="The checkpoints of a job: when, how large, where.",
    epilog="""\b
Example:
  springtide checkpoints train --json
  springtide checkpoints s3://bucket/train --verify
""",
)
def checkpoints(
    job: Job = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare checksums; exit with 1 if one is damaged.")
    ] = False,
    folder: Runs = RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """The checkpoints of a job, in a folder or at a URL: when each began, its size, what became of it, where it is."""
    from springtide.cli.job import checkpoints as verb

    return verb.checkpoints(job, folder=folder, as_json=as_json, verify=verify)


@app.command(
    short_help="Write a job's model as files for serving.",
    epilog="""\b
Example:
  springtide export train exports                  tables and dense tensors
  springtide export train exports --since 7        what changed since export 7
  springtide export train exports --since samples:1000000
  springtide export train exports --every 5m   what changed, again and again
""",
)
def export(
    job: Annotated[str, typer.Argument(help="A job, or a folder or URL of checkpoints.", metavar="JOB")],
    url: Annotated[str, typer.Argument(help="Where to: a folder, or any URL that fsspec knows.", metavar="URL")],
    since: Annotated[
        str, typer.Option(help="Only what changed since that export, or samples:N, or step:N.", metavar="N")
    ] = "",
    checkpoint: Annotated[int | None, typer.Option(help="Another than the newest.", metavar="N")] = None,
    every: Annotated[str, typer.Option(help="Go on exporting: 300, 5m or 1h.", metavar="TIME")] = "",
    format: Annotated[str, typer.Option(help="Of the tables: safetensors or parquet.")] = "safetensors",
    folder: Runs = RUNS,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Write the newest checkpoint of a job, running or over: keys and rows of every table, and a dense state dict."""
    from springtide.cli.job import export as verb

    return verb.export(
        job, url, since=since, checkpoint=checkpoint, every=every, format=format, folder=folder, as_json=as_json
    )  # fmt: skip


@app.command(
    short_help="Train on a generated click log, in about a minute.",
    epilog="""\b
Example:
  springtide demo
""",
)
def demo(
    servers: Annotated[int, typer.Option(min=1, help="Parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    samples: Annotated[int, typer.Option(min=1000, help="Events to generate; a tenth is for the test.")] = 500_000,
    kill: Annotated[bool, typer.Option(help="Add a server; kill a worker, a server and the master on the way.")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Train WideDeep on a generated click log whose best possible AUC is known.

    Midway a server is added, and a worker, a server and the master are killed (kill -9); a table beside the model
    counts whether any sample was lost or repeated. Takes a minute or two.
    """
    from springtide.cli.job import demo as verb

    return verb.demo(servers=servers, workers=workers, samples=samples, kill=kill, as_json=as_json, debug=debug)


@app.command(
    short_help="Check that everything is here; a fix for what is not.",
    epilog="""\b
Example:
  springtide doctor --json
""",
)
def doctor(as_json: Json = False) -> int:
    """Check that everything is here, with a fix for what is not; prints versions for bug reports."""
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
