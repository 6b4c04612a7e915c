"""Options of commands: each declared once, those that belong together as one dataclass.

In: dataclasses whose fields are annotated as Typer wants them. Out: `command`, which declares a command, and `taking`,
which turns the fields of dataclasses into options. Imported for `--help`, so nothing heavy is imported here.
"""

import functools
import inspect
import pathlib
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

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


def command(app: typer.Typer, summary: str, *examples: str, name: str | None = None) -> Callable[[Command], Command]:
    """Declare a command with a one-line summary and examples for its help."""
    lines = "\n".join(f"  {example}" for example in examples)
    return app.command(name, short_help=summary, epilog=f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}\n")


def taking(**groups: type) -> Callable[[Command], Command]:
    """Turn each field of the given dataclasses into an option; pass one dataclass per group to the command."""

    def decorate(function: Command) -> Command:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in groups
        ]
        for group in groups.values():
            parameters += _parameters(group)

        @functools.wraps(function)
        def called(**given: Any) -> int:
            made = {name: _filled(group, given) for name, group in groups.items()}
            return function(**given, **made)

        setattr(called, "__signature__", inspect.Signature(parameters))  # noqa: B010 - mypy knows of none
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del called.__wrapped__  # else Typer would use the command's own signature
        return called

    return decorate


def is_group(kind: object) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _parameters(group: type) -> list[inspect.Parameter]:
    """One parameter per field; fields that are dataclasses themselves are expanded in place."""
    hints, parameters = typing.get_type_hints(group, include_extras=True), []
    for option in fields(group):
        if is_group(hints[option.name]):
            parameters += _parameters(hints[option.name])
        else:
            default = inspect.Parameter.empty if option.default is MISSING else option.default
            kind, hint = inspect.Parameter.KEYWORD_ONLY, hints[option.name]
            parameters.append(inspect.Parameter(option.name, kind, default=default, annotation=hint))
    return parameters


def _filled(group: type, given: dict[str, Any]) -> Any:
    """Take a group's values out of `given`."""
    values: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(group).items():
        values[name] = _filled(kind, given) if is_group(kind) else given.pop(name)
    return group(**values)


def made_folder(option: str, text: str) -> pathlib.Path:
    """Create the folder that an option names, so that a bad path fails before any work."""
    folder = pathlib.Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.BadInput(f"{option} {text}: no folder can be made there ({error.strerror})") from None
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """How large a run is, and who plans that."""

    servers: Annotated[int | None, typer.Option(min=1, help="Number of parameter servers.  [default: planned]")] = None
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers.  [default: planned]")] = None
    cpu: Annotated[
        float | None,
        typer.Option(help="Limit each worker and server to this many cores, such as 0.5.", metavar="CORES"),
    ] = None
    memory: Annotated[
        str | None, typer.Option(help="Limit each worker and server to this much memory, such as 2G.", metavar="SIZE")
    ] = None
    plan: Annotated[
        bool | None, typer.Option(help="Let the job find its size.  [default: if a number is left open]")
    ] = None
    quota: Annotated[float | None, typer.Option(help="Limit the whole job to this many cores.", metavar="CORES")] = None
    planning: Annotated[
        list[str] | None, typer.Option(help="Set a planning parameter, such as sample_s=10.", metavar="NAME=VALUE")
    ] = None
    brain: Annotated[str, typer.Option(help="Ask this brain, which plans for many jobs.", metavar="HOST:PORT")] = ""
    history: Annotated[str | None, typer.Option(help="Database of past jobs; '' for none.", metavar="FILE_OR_URL")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a run trains. The names are those of `ElasticJob`."""

    sync: Annotated[str, typer.Option(help="async: each worker at its own pace; bsp: all workers in step.")] = "async"
    cache: Annotated[
        str,
        typer.Option(
            help="Size of each worker's row cache: bytes, a share of the table (10%), auto or off.",
            metavar="SIZE|SHARE|auto|off",
        ),
    ] = "auto"
    cache_staleness: Annotated[
        int | None, typer.Option(help="async: most pushes that a cached row may lack.  [default: 10]")
    ] = None
    allocation: Annotated[
        str, typer.Option(help="bsp: which worker trains a sample.  [default: where its rows are]", metavar="POLICY")
    ] = ""
    seed: Annotated[int, typer.Option(help="Seed of shuffles and of untrained rows.")] = 0
    slots: Annotated[int, typer.Option(help="Number of slots of the key space, a power of two.")] = 1024
    recovery: Annotated[
        str, typer.Option(help="After a lost server: train its part again (exact), or do not (partial).")
    ] = "exact"
    relaunches: Annotated[int, typer.Option(min=0, help="Restart a failing role at most this many times.")] = 5
    guards: Annotated[bool, typer.Option(help="Add, relieve and replace servers that need it.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PatienceOptions:
    """How long a run waits for what."""

    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until every role must have joined.")] = 300.0
    silence: Annotated[
        float, typer.Option(min=1, help="Declare a role lost after this many seconds without a heartbeat.")
    ] = 30.0
    heartbeat: Annotated[float, typer.Option(min=0.05, help="Seconds between two heartbeats of a role.")] = 1.0
    tries: Annotated[int, typer.Option(min=1, help="Try unreadable data this many times.")] = 3
    straggler: Annotated[
        list[str] | None,
        typer.Option(help="Set when a worker counts as slow, such as window=20.", metavar="NAME=VALUE"),
    ] = None
    grace: Annotated[float, typer.Option(min=0, help="Seconds that workers get to stop after Ctrl-C.")] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingOptions:
    """Data workers of a run. The names are those of `ElasticJob`."""

    data_workers: Annotated[
        str, typer.Option(help="Number of processes that prepare batches for workers.", metavar="NUMBER|auto|off")
    ] = "auto"
    data_worker_cpu: Annotated[
        float | None, typer.Option(help="Cores of each data worker.  [default: measured]", metavar="CORES")
    ] = None
    split: Annotated[
        str,
        typer.Option(
            help="Move part of forward() to data workers; verify also compares results.",
            metavar="auto|stages|verify|off",
        ),
    ] = "auto"
    poison: Annotated[str, typer.Option(help="On a sample that cannot be read: fail, or skip and report it.")] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingOptions:
    """Checkpoints and disk of a run: see `launch.spec.resolve`."""

    disk_wait: Annotated[
        float, typer.Option(min=0, help="Wait this many seconds for room on a full disk before the job fails.")
    ] = 600.0
    checkpoint_every: Annotated[
        float | None, typer.Option(min=0, help="Seconds between checkpoints; 0 for none.  [default: 30]")
    ] = None
    checkpoint_dir: Annotated[
        str, typer.Option(help="Folder for checkpoints.  [default: the run's]", metavar="DIR")
    ] = ""
    checkpoint_url: Annotated[str, typer.Option(help="Copy checkpoints to this URL.", metavar="URL")] = ""
    upload_every: Annotated[float, typer.Option(min=1, help="Seconds between two copies to the URL.")] = 600.0
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Keep a copy of each server's checkpoint on another server.")
    ] = False
    resume: Annotated[
        str, typer.Option(help="Continue from the newest checkpoint of this run or URL.", metavar="RUN_OR_URL")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOptions:
    """How a run follows a stream."""

    online: Annotated[str, typer.Option(help="On a stream: scale workers with its traffic.", metavar="auto|off")] = (
        "auto"
    )
    min_workers: Annotated[int, typer.Option(min=1, help="Never plan fewer workers.")] = 1
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="Never plan more workers.  [default: the number of cores]")
    ] = None
    slo_lag: Annotated[
        str, typer.Option(help="Train each sample within this time of its arrival, such as 90s, 20m.", metavar="TIME")
    ] = "20m"
    online_setting: Annotated[
        list[str] | None,
        typer.Option(help="Set how traffic is followed, such as forecaster=mstl.", metavar="NAME=VALUE"),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port; 0 takes a free one.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Exports of a run while it trains."""

    export_to: Annotated[str, typer.Option(help="Export the model to this URL while it trains.", metavar="URL")] = ""
    export_every: Annotated[str, typer.Option(help="Time between exports.  [default: 5m]", metavar="TIME")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """All options of `springtide run`. None is left open."""

    script: Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")]
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of your script, after --.", metavar="ARGS")
    ] = None
    sizes: SizeOptions = field(default_factory=SizeOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    name: Annotated[str | None, typer.Option(help="Name of the job.  [default: the script's]")] = None
    logs: Runs = RUNS
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the master; 0 takes a free one.")] = 0
    tls: Annotated[bool, typer.Option("--tls", help="Use mutual TLS between all roles, as on a cluster.")] = False
    patience: PatienceOptions = field(default_factory=PatienceOptions)
    as_json: Json = False
    debug: Debug = False
    feeding: FeedingOptions = field(default_factory=FeedingOptions)
    keeping: KeepingOptions = field(default_factory=KeepingOptions)
    following: OnlineOptions = field(default_factory=OnlineOptions)
    exporting: ExportOptions = field(default_factory=ExportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereOptions:
    """Where a job runs, unless its card on this machine says so: see `launch.job_lookup`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Records to produce."""

    file: Annotated[
        str | None, typer.Option("--from", help="Append each line of this file as a record.", metavar="FILE")
    ] = None
    record_bytes: Annotated[
        int | None, typer.Option(help="With --from: cut the file into records of this many bytes.")
    ] = None
    generator: Annotated[str | None, typer.Option(help="Generate records: counter or clicks.", metavar="NAME")] = None
    keys: Annotated[int, typer.Option(min=0, help="counter: number of distinct keys; 0 makes each key new.")] = 1000
    records: Annotated[int | None, typer.Option(min=0, help="Number of records.  [default: all, or endless]")] = None
    first: Annotated[int, typer.Option(min=0, max=2**62, help="Index of the first generated record.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Seed of generators and of mixed-in faults.")] = 0
    raw: Annotated[bool, typer.Option("--raw", help="Omit event time and checksum.")] = False
    late: Annotated[float, typer.Option(min=0, max=1, help="Share of records to append a day late.")] = 0.0
    corrupt: Annotated[float, typer.Option(min=0, max=1, help="Share of records to damage.")] = 0.0
    oversized: Annotated[float, typer.Option(min=0, max=1, help="Share of records to inflate to a MiB.")] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """Pace of the records."""

    rate: Annotated[float | None, typer.Option(help="Records per second.  [default: as fast as possible]")] = None
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds.")] = None
    trace: Annotated[
        str | None, typer.Option(help="Follow this trace: a CSV of times and counts.", metavar="FILE.csv")
    ] = None
    speedup: Annotated[float, typer.Option(help="Replay the trace this many times faster.")] = 1.0
    peak: Annotated[
        float | None,
        typer.Option(help="Scale the trace to this many records per second at its peak.  [default: the trace's own]"),
    ] = None
    day: Annotated[int | None, typer.Option(min=0, help="Replay only this day of the trace; 0 is the first.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Stream to append to."""

    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions of a log that is created or grown.")
    ] = None
    skew: Annotated[float, typer.Option(help="Give partition 0 this many times the records of another.")] = 1.0
    retain: Annotated[
        str | None, typer.Option(help="Keep this many bytes per partition, such as 2G.", metavar="SIZE")
    ] = None
    retain_age: Annotated[str | None, typer.Option(help="Keep records this long: 12h, 7d.", metavar="TIME")] = None
    segment: Annotated[str | None, typer.Option(help="Size of segment files.  [default: 64M]", metavar="SIZE")] = None
    seal: Annotated[bool, typer.Option("--seal", help="Seal the log at the end: jobs end when all is trained.")] = False
