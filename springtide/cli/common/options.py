"""Options of commands, each declared once. The options of `run` are a table that names the spec fields that each option
sets.

`taking` turns the fields of a dataclass into options. Imported for `--help`, so nothing heavy is imported here.
"""

import functools
import inspect
import pathlib
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from springtide import errors

if TYPE_CHECKING:
    from springtide.launch.job_lookup import JobLocation

Command = Callable[..., int]
RUNS = ".springtide/runs"

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and log more.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
Job = Annotated[str | None, typer.Argument(help="Name of the job.  [default: the newest]", metavar="JOB")]
Runs = Annotated[str, typer.Option("--logs", help="Folder of runs and their logs.", metavar="DIR")]


verbs = typer.Typer(rich_markup_mode=None)
"""Verbs of the modules that are imported so far: `cli.app` imports the module of the verb that is called."""


def verb(*examples: str, name: str | None = None) -> Callable[[Command], Command]:
    """Declare a verb; its summary is in the table of `cli.app`."""
    return verbs.command(name, epilog=_epilog(examples))


def command(group: typer.Typer, summary: str, *examples: str) -> Callable[[Command], Command]:
    """Declare a command of a group, such as `brain serve`."""
    return group.command(short_help=summary, epilog=_epilog(examples))


def _epilog(examples: Sequence[str]) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}\n"


def declared(parameters: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Decorator that replaces a command's parameters by these."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def called(**given: Any) -> int:
            return function(**given)

        setattr(called, "__signature__", inspect.Signature(parameters))  # noqa: B010 - mypy knows of none
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        del called.__wrapped__  # otherwise Typer would use the command's own signature
        return called

    return decorate


def taking(**groups: type) -> Callable[[Command], Command]:
    """Turn each field of the given dataclasses into an option; pass one dataclass per group to the command."""

    def decorate(function: Command) -> Command:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [
            each.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in inspect.signature(function).parameters.items()
            if name not in groups
        ]
        for group in groups.values():
            hints = typing.get_type_hints(group, include_extras=True)
            parameters += [parameter(option.name, hints[option.name], option.default) for option in fields(group)]

        @functools.wraps(function)
        def grouped(**given: Any) -> int:
            made = {
                name: group(**{option.name: given.pop(option.name) for option in fields(group)})
                for name, group in groups.items()
            }
            return function(**given, **made)

        return declared(parameters)(grouped)

    return decorate


def made_folder(option: str, text: str) -> pathlib.Path:
    """Create the folder that an option names, so that a bad path fails before any work."""
    folder = pathlib.Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.BadInput(f"{option} {text}: no folder can be made there ({error.strerror})") from None
    return folder


class RunOption(NamedTuple):
    """An option of `springtide run`, and the fields of the job's spec that it sets."""

    name: str
    default: Any
    """Value without the option; a type for an option that stays open without it."""
    help: str
    metavar: str | None = None
    to: str | None = None
    """Fields of `ElasticJob`, separated by spaces; None for the same name, empty if `cli.job.run` reads the option."""
    min: float | None = None
    max: int | None = None
    example: str = ""

    @property
    def fields(self) -> list[str]:
        return [self.name] if self.to is None else self.to.split()

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def parameter(self) -> inspect.Parameter:
        is_open = isinstance(self.default, type)
        kind: Any = (self.default if is_open else type(self.default)) if not self.example else list[str]
        declared = [self.flag] if self.default is False else []  # other bool options also get --no-NAME
        option = typer.Option(*declared, help=self.help, metavar=self.metavar, min=self.min, max=self.max)
        wanted = kind | None if is_open or self.example else kind
        hint: Any = Annotated[wanted, option]
        return parameter(self.name, hint, None if is_open else self.default)


def parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


_o = RunOption
_SIZE = (
    _o("servers", int, "Number of parameter servers.  [default: planned]", to="servers.count", min=1),
    _o("workers", int, "Number of workers.  [default: planned]", to="workers.count", min=1),
    _o(
        "cpu",
        float,
        "Limit each worker and server to this many cores, such as 0.5.",
        "CORES",
        to="workers.cpu servers.cpu",
    ),
    _o(
        "memory",
        str,
        "Limit each worker and server to this much memory, such as 2G.",
        "SIZE",
        to="workers.memory servers.memory",
    ),
    _o("plan", bool, "Let the job find its size.  [default: if a number is left open]"),
    _o("quota", float, "Limit the whole job to this many cores.", "CORES", to="quota.cpu"),
    _o("planning", None, "Set a planning parameter, such as sample_s=10.", "NAME=VALUE", example="sample_s=20"),
    _o("brain", "", "Ask this brain, which plans for many jobs.", "HOST:PORT"),
    _o("history", str, "Database of past jobs; '' for none.", "FILE_OR_URL"),
)
_TRAINING = (
    _o("sync", "async", "async: each worker at its own pace; bsp: all workers in step."),
    _o(
        "cache",
        "auto",
        "Size of each worker's row cache: bytes, a share of the table (10%), auto or off.",
        "SIZE|SHARE|auto|off",
    ),
    _o("cache_staleness", int, "async: most pushes that a cached row may lack.  [default: 10]"),
    _o("allocation", "", "bsp: which worker trains a sample.  [default: where its rows are]", "POLICY"),
    _o("seed", 0, "Seed of shuffles and of untrained rows."),
    _o("slots", 1024, "Number of slots of the key space, a power of two."),
    _o("recovery", "exact", "After a lost server: train its part again (exact), or do not (partial)."),
    _o("relaunches", 5, "Restart a failing role at most this many times.", min=0),
    _o("guards", True, "Add, relieve and replace servers that need it."),
)
_PATIENCE = (
    _o("timeout", 300.0, "Seconds until every role must have joined.", to="patience.join_s", min=0.1),
    _o(
        "silence",
        30.0,
        "Declare a role lost after this many seconds without a heartbeat.",
        to="patience.silence_s",
        min=1,
    ),
    _o("heartbeat", 1.0, "Seconds between two heartbeats of a role.", to="patience.heartbeat_s", min=0.05),
    _o("tries", 3, "Try unreadable data this many times.", to="patience.tries", min=1),
    _o(
        "straggler",
        None,
        "Set when a worker counts as slow, such as window=20.",
        "NAME=VALUE",
        to="stragglers",
        example="window=20",
    ),
    _o("grace", 30.0, "Seconds that workers get to stop after Ctrl-C.", to="patience.grace_s", min=0),
)
_DATA = (
    _o("data_workers", "auto", "Number of processes that prepare batches for workers.", "NUMBER|auto|off"),
    _o("data_worker_cpu", float, "Cores of each data worker.  [default: measured]", "CORES"),
    _o(
        "split",
        "auto",
        "Move part of forward() to data workers; verify also compares results.",
        "auto|stages|verify|off",
    ),
    _o("poison", "fail", "On a sample that cannot be read: fail, or skip and report it."),
)
_CHECKPOINTS = (
    _o(
        "disk_wait",
        600.0,
        "Wait this many seconds for room on a full disk before the job fails.",
        to="patience.disk_s",
        min=0,
    ),
    _o(
        "checkpoint_every",
        float,
        "Seconds between checkpoints; 0 for none.  [default: 30]",
        to="checkpoints.every_s",
        min=0,
    ),
    _o("checkpoint_dir", "", "Folder for checkpoints.  [default: the run's]", "DIR", to="checkpoints.folder"),
    _o("checkpoint_url", "", "Copy checkpoints to this URL.", "URL", to="checkpoints.url"),
    _o("upload_every", 600.0, "Seconds between two copies to the URL.", to="checkpoints.upload_every_s", min=1),
    _o("mirror", False, "Keep a copy of each server's checkpoint on another server.", to="checkpoints.mirror"),
    _o("resume", "", "Continue from the newest checkpoint of this run or URL.", "RUN_OR_URL", to=""),
)
_STREAM = (
    _o("online", "auto", "On a stream: scale workers with its traffic.", "auto|off", to=""),
    _o("min_workers", 1, "Never plan fewer workers.", to="workers.min", min=1),
    _o("max_workers", int, "Never plan more workers.  [default: the number of cores]", to="workers.max", min=1),
    _o(
        "slo_lag",
        "20m",
        "Train each sample within this time of its arrival, such as 90s, 20m.",
        "TIME",
        to="following.slo_lag",
    ),
    _o(
        "online_setting",
        None,
        "Set how traffic is followed, such as forecaster=mstl.",
        "NAME=VALUE",
        to="following.settings",
        example="every=30",
    ),
    _o(
        "metrics_port",
        int,
        "Serve Prometheus metrics on this port; 0 takes a free one.",
        to="following.metrics_port",
        min=0,
        max=65535,
    ),
    _o("export_to", "", "Export the model to this URL while it trains.", "URL", to="following.export_to"),
    _o("export_every", "", "Time between exports.  [default: 5m]", "TIME", to="following.export_every"),
)
RUN_OPTIONS = (*_SIZE, *_TRAINING, *_PATIENCE, *_DATA, *_CHECKPOINTS, *_STREAM)
RUN_PARAMETERS = [
    parameter("script", Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")]),
    parameter(
        "arguments",
        Annotated[list[str] | None, typer.Argument(help="Arguments of your script, after --.", metavar="ARGS")],
        None,
    ),
    *(each.parameter() for each in (*_SIZE, *_TRAINING)),
    parameter("name", Annotated[str | None, typer.Option(help="Name of the job.  [default: the script's]")], None),
    parameter("logs", Runs, RUNS),
    _o("port", 0, "Port of the master; 0 takes a free one.", to="", min=0, max=65535).parameter(),
    _o("tls", False, "Use mutual TLS between all roles, as on a cluster.", to="").parameter(),
    *(each.parameter() for each in _PATIENCE),
    parameter("as_json", Json, False),
    parameter("debug", Debug, False),
    *(each.parameter() for each in (*_DATA, *_CHECKPOINTS, *_STREAM)),
]


def run_options(**given: Any) -> dict[str, Any]:
    return {**{each.name: each.default for each in RUN_PARAMETERS if each.name != "script"}, **given}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereOptions:
    """Location of a job. The card of a job on this machine, if there is one, supplies the defaults: see
    `launch.job_lookup`."""

    platform: Annotated[
        str, typer.Option(help="local, ray or k8s.  [default: where the job was submitted]", metavar="NAME")
    ] = ""
    address: Annotated[str, typer.Option(help="Address of the Ray cluster.", metavar="ADDRESS")] = ""
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.", metavar="NAME")] = ""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.", metavar="NAME")] = ""
    kubeconfig: Annotated[str, typer.Option(help="Kubeconfig to use.", metavar="FILE")] = ""
    folder: Runs = RUNS

    def where(self) -> "JobLocation":
        """Return the location; an option that only one platform has implies that platform."""
        from springtide.launch.job_lookup import JobLocation

        names = ("address", "namespace", "context", "kubeconfig")
        given = {name: value for name in names if (value := getattr(self, name))}
        platform = self.platform
        if not platform and given:
            platform = "ray" if set(given) == {"address"} else "k8s" if "address" not in given else ""
        return JobLocation(platform=platform, options=given, folder=self.folder)
