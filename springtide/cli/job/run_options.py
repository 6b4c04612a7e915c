"""Options of `springtide run`: a table that names the spec fields that each option sets.

Type and default of an option are those of its field in `domain.spec.elastic_job`.
"""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from springtide.cli.common.options import RUNS, Debug, Json, Runs, parameter
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob


class RunOption(NamedTuple):
    """An option of `springtide run`, and the fields of the job's spec that it sets."""

    name: str
    help: str
    metavar: str | None = None
    to: str | None = None
    """Fields of `ElasticJob`, separated by spaces; None for the same name, empty if `cli.job.run` reads the option."""
    min: float | None = None
    max: int | None = None
    example: str = ""
    default: Any = None
    """Value without the option; None for the default of the field."""

    @property
    def fields(self) -> list[str]:
        return [self.name] if self.to is None else self.to.split()

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def parameter(self) -> inspect.Parameter:
        kind, default = (type(self.default), self.default) if self.default is not None else self._of_field()
        declared = [self.flag] if default is False else []  # other bool options also get --no-NAME
        option = typer.Option(*declared, help=self.help, metavar=self.metavar, min=self.min, max=self.max)
        return parameter(self.name, Annotated[kind if default is not None else kind | None, option], default)

    def _of_field(self) -> tuple[Any, Any]:
        kind: Any = ElasticJob
        for name in self.fields[0].split("."):
            field = next(each for each in schema.fields_of(kind) if each.name == name)
            kind = field.kind
        if isinstance(field.default, Mapping):
            return list[str], None
        return (kind, None) if field.default is None else (type(field.default), field.default)


_o = RunOption
_SIZE = (
    _o("servers", "Number of parameter servers.  [default: planned]", to="servers.count", min=1),
    _o("workers", "Number of workers.  [default: planned]", to="workers.count", min=1),
    _o(
        "cpu",
        "Limit each worker and server to this many cores, such as 0.5.",
        "CORES",
        to="workers.cpu servers.cpu",
    ),
    _o(
        "memory",
        "Limit each worker and server to this much memory, such as 2G.",
        "SIZE",
        to="workers.memory servers.memory",
    ),
    _o("plan", "Let the job find its size.  [default: if a number is left open]"),
    _o("quota", "Limit the whole job to this many cores.", "CORES", to="quota.cpu"),
    _o("planning", "Set a planning parameter, such as sample_s=10.", "NAME=VALUE", example="sample_s=20"),
    _o("brain", "Ask this brain, which plans for many jobs.", "HOST:PORT"),
    _o("history", "Database of past jobs; '' for none.", "FILE_OR_URL"),
)
_TRAINING = (
    _o("sync", "async: each worker at its own pace; bsp: all workers in step."),
    _o(
        "cache",
        "Size of each worker's row cache: bytes, a share of the table (10%), auto or off.",
        "SIZE|SHARE|auto|off",
    ),
    _o("cache_staleness", "async: most pushes that a cached row may lack.  [default: 10]"),
    _o("allocation", "bsp: which worker trains a sample.  [default: where its rows are]", "POLICY"),
    _o("seed", "Seed of shuffles and of untrained rows."),
    _o("slots", "Number of slots of the key space, a power of two."),
    _o("recovery", "After a lost server: train its part again (exact), or do not (partial)."),
    _o("relaunches", "Restart a failing role at most this many times.", min=0),
    _o("guards", "Add, relieve and replace servers that need it."),
)
_PATIENCE = (
    _o("timeout", "Seconds until every role must have joined.", to="patience.join_s", min=0.1),
    _o(
        "silence",
        "Declare a role lost after this many seconds without a heartbeat.",
        to="patience.silence_s",
        min=1,
    ),
    _o("heartbeat", "Seconds between two heartbeats of a role.", to="patience.heartbeat_s", min=0.05),
    _o("tries", "Try unreadable data this many times.", to="patience.tries", min=1),
    _o(
        "straggler",
        "Set when a worker counts as slow, such as window=20.",
        "NAME=VALUE",
        to="stragglers",
        example="window=20",
    ),
    _o("grace", "Seconds that workers get to stop after Ctrl-C.", to="patience.grace_s", min=0),
)
_DATA = (
    _o("data_workers", "Number of processes that prepare batches for workers.", "NUMBER|auto|off"),
    _o("data_worker_cpu", "Cores of each data worker.  [default: measured]", "CORES"),
    _o(
        "split",
        "Move part of forward() to data workers; verify also compares results.",
        "auto|stages|verify|off",
    ),
    _o("poison", "On a sample that cannot be read: fail, or skip and report it."),
)
_CHECKPOINTS = (
    _o(
        "disk_wait",
        "Wait this many seconds for room on a full disk before the job fails.",
        to="patience.disk_s",
        min=0,
    ),
    _o(
        "checkpoint_every",
        "Seconds between checkpoints; 0 for none.  [default: 30]",
        to="checkpoints.every_s",
        min=0,
    ),
    _o("checkpoint_dir", "Folder for checkpoints.  [default: the run's]", "DIR", to="checkpoints.folder"),
    _o("checkpoint_url", "Copy checkpoints to this URL.", "URL", to="checkpoints.url"),
    _o("upload_every", "Seconds between two copies to the URL.", to="checkpoints.upload_every_s", min=1),
    _o("mirror", "Keep a copy of each server's checkpoint on another server.", to="checkpoints.mirror"),
    _o("resume", "Continue from the newest checkpoint of this run or URL.", "RUN_OR_URL", to="", default=""),
)
_STREAM = (
    _o("online", "On a stream: scale workers with its traffic.", "auto|off", to="", default="auto"),
    _o("min_workers", "Never plan fewer workers.", to="workers.min", min=1, default=1),
    _o("max_workers", "Never plan more workers.  [default: the number of cores]", to="workers.max", min=1),
    _o(
        "slo_lag",
        "Train each sample within this time of its arrival, such as 90s, 20m.",
        "TIME",
        to="following.slo_lag",
    ),
    _o(
        "online_setting",
        "Set how traffic is followed, such as forecaster=mstl.",
        "NAME=VALUE",
        to="following.settings",
        example="every=30",
    ),
    _o(
        "metrics_port",
        "Serve Prometheus metrics on this port; 0 takes a free one.",
        to="following.metrics_port",
        min=0,
        max=65535,
    ),
    _o("export_to", "Export the model to this URL while it trains.", "URL", to="following.export_to"),
    _o("export_every", "Time between exports.  [default: 5m]", "TIME", to="following.export_every"),
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
    _o("port", "Port of the master; 0 takes a free one.", to="", min=0, max=65535, default=0).parameter(),
    _o("tls", "Use mutual TLS between all roles, as on a cluster.", to="", default=False).parameter(),
    *(each.parameter() for each in _PATIENCE),
    parameter("as_json", Json, False),
    parameter("debug", Debug, False),
    *(each.parameter() for each in (*_DATA, *_CHECKPOINTS, *_STREAM)),
]


def run_options(**given: Any) -> dict[str, Any]:
    return {**{each.name: each.default for each in RUN_PARAMETERS if each.name != "script"}, **given}
