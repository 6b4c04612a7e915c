"""The command line: verbs, exit codes, and errors without tracebacks.

Commands that show a job return 0 if they could show the job, even if the job itself failed. A verb's module declares
the verb's options. The module is imported when the verb is called, so that `springtide --help` stays fast.
"""

import gc
import importlib
import sys
import traceback
from typing import Annotated, Any

import typer
import typer.core

from springtide import errors
from springtide.cli.common.options import verbs
from springtide.telemetry import output

BAD_USAGE, INFRASTRUCTURE, INTERRUPTED = 2, 3, 130

UsageError = typer.BadParameter.__bases__[0]  # Typer bundles its own copy of click, so take the class from that copy
ClickException: type[Exception] = UsageError.__bases__[0]

EXAMPLES = """\b
Examples:
  springtide demo                              train on a generated click log
  springtide init clicks                       write a starter project
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

VERBS = {
    "run": ("job.run", "Run a training script on this machine."),
    "submit": ("job.submit", "Submit a job to a platform."),
    "status": ("show.status", "Show a job's progress or outcome."),
    "events": ("show.events", "List all events of a job."),
    "explain": ("show.events", "Explain the decisions about a job."),
    "scale": ("job.control", "Scale workers, servers or data workers."),
    "stop": ("job.control", "Drain a running job."),
    "logs": ("job.control", "Print the logs of a job."),
    "checkpoints": ("job.checkpoints", "List the checkpoints of a job."),
    "export": ("job.export", "Export a job's model for serving."),
    "serve-check": ("job.serve_check", "Compare predictions of an export with its job's."),
    "init": ("job.init", "Write a starter project that runs."),
    "demo": ("job.demo", "Train on a generated click log, in about a minute."),
    "doctor": ("doctor", "Check this machine; suggest fixes."),
    "top": ("show.top", "Watch a job from another terminal."),
    "metrics": ("show.metrics", "Print a job's metrics for Prometheus."),
    "dashboard": ("show.dashboard", "Serve a live page about a job."),
    "brain": ("cluster.brain", "Serve a brain, which plans for many jobs, or inspect one."),
    "k8s": ("cluster.k8s", "Install Springtide in Kubernetes, check it or remove it."),
    "bench": ("lab.bench", "Run a benchmark against a peer."),
    "forecast": ("stream.forecast", "Backtest traffic forecasts."),
    "plan": ("lab.plan", "Show the decision of a policy now."),
    "explain-split": ("lab.explain_split", "Explain the work that data workers could do."),
    "simulate": ("lab.simulate", "Compare policies on a virtual cluster."),
    "reproduce": ("lab.bench", "Reproduce a paper's figures."),
    "produce": ("stream.streams", "Append records to a stream."),
    "stream": ("stream.streams", "Inspect a stream; grow, seal or trim a log."),
}
"""Module of each verb under `springtide.cli`, and the summary in the list of verbs."""


class VerbGroup(typer.core.TyperGroup):
    """All verbs of the command line. A verb has a name and a summary at first. The verb gets its command when the user
    calls it.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, summary) in VERBS.items():
            self.add_command(typer.core.TyperCommand(name, short_help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in VERBS:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> Any:
        importlib.import_module(f"springtide.cli.{VERBS[name][0]}")
        self.commands[name] = typer.main.get_group(verbs).commands[name]
        return self.commands[name]


app = typer.Typer(
    name="springtide",
    cls=VerbGroup,
    help="Elastic training for recommendation models: a plain PyTorch loop on workers and parameter servers.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    # imports create many objects that live long, so frequent collections would take a tenth of the time of a command
    gc.set_threshold(100_000)
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
        sys.stderr.close()  # the reader of the output is gone, so print nothing more, even when Python exits
        return 0
    finally:
        output.finish()


def _usage_error(error: BaseException, given: list[str]) -> int:
    """Print Typer's message; mention `--` if an option of the user's script caused the error."""
    show = getattr(error, "show")  # noqa: B009 - the class is known at run time only
    show()
    if type(error).__name__ == "NoSuchOption" and given[:1] == ["run"] and "--" not in given:
        print("Options of your script go after --, as in: springtide run train.py -- --epochs 3", file=sys.stderr)
    return BAD_USAGE


if __name__ == "__main__":
    sys.exit(main())
