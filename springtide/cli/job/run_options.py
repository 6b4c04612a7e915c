"""Options of `springtide run`: a table with the spec fields that each option sets.

Help, type and default of an option are those of its field in `domain.spec.elastic_job`.
"""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from springtide.cli.common.options import RUNS, Debug, Json, Plain, Runs, parameter
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob


class RunOption(NamedTuple):
    """An option of `springtide run`, and the fields of the job's spec that it sets."""

    name: str
    to: str | None = None
    """Fields of `ElasticJob` that the option sets, separated by spaces. None: the field with the option's name. Empty:
    `cli.job.run` reads the option itself.
    """
    help: str = ""
    """Help text, if it differs from the field's description."""
    metavar: str | None = None
    min: float | None = None
    max: int | None = None
    example: str = ""
    """Example of a NAME=VALUE option, which may be given several times."""
    default: Any = None
    """Value if the option is not given; None means the default of the field."""

    @property
    def fields(self) -> list[str]:
        return [self.name] if self.to is None else self.to.split()

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def parameter(self) -> inspect.Parameter:
        kind, default, words = self._of_field() if self.fields else (type(self.default), None, "")
        default = default if self.default is None else self.default
        words = f"{self.help}, such as {self.example}." if self.example else self.help or words
        text, mark, usual = words.partition(" Default: ")
        words = f"{text}  [default: {usual.removesuffix('.')}]" if mark else words
        declared = [self.flag] if default is False else []  # other bool options also get --no-NAME
        metavar = "NAME=VALUE" if self.example else self.metavar
        option = typer.Option(*declared, help=words, metavar=metavar, min=self.min, max=self.max)
        return parameter(self.name, Annotated[kind if default is not None else kind | None, option], default)

    def _of_field(self) -> tuple[Any, Any, str]:
        """Return type, default and description of the first field."""
        kind: Any = ElasticJob
        for name in self.fields[0].split("."):
            field = next(known for known in schema.fields_of(kind) if known.name == name)
            kind = field.kind
        if isinstance(field.default, Mapping):
            return list[str], None, field.words
        return kind if field.default is None else type(field.default), field.default, field.words


_o = RunOption
_SIZE = (
    _o("servers", "servers.count", "Number of parameter servers. Default: planned.", min=1),
    _o("workers", "workers.count", "Number of workers. Default: planned.", min=1),
    _o("cpu", "workers.cpu servers.cpu", "Limit each worker and server to this many cores, such as 0.5.", "CORES"),
    _o("memory", "workers.memory servers.memory", "Limit each worker and server to this much memory.", "SIZE"),
    _o("gpu", "workers.gpu", metavar="SHARE", min=0, max=1),
    _o("gpus", "quota.gpu", "GPUs of this machine for all workers together, one each; 0 trains on the CPU.", "NUMBER"),
    _o("plan"),
    _o("quota", "quota.cpu", metavar="CORES"),
    _o("planning", help="Set a planning parameter", example="sample_s=20"),
    _o("brain", metavar="HOST:PORT"),
    _o("history", metavar="FILE_OR_URL"),
)
_TRAINING = (
    _o("sync"),
    _o("cache", metavar="SIZE|SHARE|auto|off"),
    _o("cache_staleness"),
    _o("allocation", metavar="POLICY"),
    _o("seed"),
    _o("slots"),
    _o("recovery"),
    _o("relaunches", min=0),
    _o("guards"),
)
_PATIENCE = (
    _o("timeout", "patience.join_s", min=0.1),
    _o("silence", "patience.silence_s", min=1),
    _o("heartbeat", "patience.heartbeat_s", min=0.05),
    _o("tries", "patience.tries", min=1),
    _o("straggler", "stragglers", "Set a threshold for stragglers", example="window=20"),
    _o("grace", "patience.grace_s", min=0),
)
_DATA = (
    _o("data_workers", metavar="NUMBER|auto|off"),
    _o("data_worker_cpu", metavar="CORES"),
    _o("split", metavar="auto|stages|verify|off"),
    _o("poison"),
)
_TRACKING = (_o("log_to", metavar="TRACKER"),)
_CHECKPOINTS = (
    _o("disk_wait", "patience.disk_s", min=0),
    _o("checkpoint_every", "checkpoints.every_s", min=0),
    _o("checkpoint_dir", "checkpoints.folder", metavar="DIR"),
    _o("checkpoint_url", "checkpoints.url", metavar="URL"),
    _o("upload_every", "checkpoints.upload_every_s", min=1),
    _o("mirror", "checkpoints.mirror"),
    _o("resume", "", "Continue from the newest checkpoint of this run or URL.", "RUN_OR_URL", default=""),
    _o("continue_from", "", "Train new data with the model of this run or URL.", "RUN_OR_URL", default=""),
)
_STREAM = (
    _o("online", "", "On a stream: scale workers with its traffic.", "auto|off", default="auto"),
    _o("min_workers", "workers.min", "Never plan fewer workers.", min=1, default=1),
    _o("max_workers", "workers.max", "Never plan more workers. Default: the number of cores.", min=1),
    _o("slo_lag", "following.slo_lag", metavar="TIME"),
    _o("online_setting", "following.settings", "Set how the job follows traffic", example="every=30"),
    _o("metrics_port", "following.metrics_port", min=0, max=65535),
    _o("export_to", "following.export_to", metavar="URL"),
    _o("export_every", "following.export_every", metavar="TIME"),
)
RUN_OPTIONS = (*_SIZE, *_TRAINING, *_PATIENCE, *_DATA, *_CHECKPOINTS, *_TRACKING, *_STREAM)
RUN_PARAMETERS = [
    parameter("script", Annotated[str, typer.Argument(help="Your training script.", metavar="SCRIPT")]),
    parameter(
        "arguments",
        Annotated[list[str] | None, typer.Argument(help="Arguments of your script, after --.", metavar="ARGS")],
        None,
    ),
    *(option.parameter() for option in (*_SIZE, *_TRAINING)),
    parameter("name", Annotated[str | None, typer.Option(help="Name of the job.  [default: the script's]")], None),
    parameter("logs", Runs, RUNS),
    _o("port", "", "Port of the master; 0 means any free port.", min=0, max=65535, default=0).parameter(),
    _o("tls", "", "Use mutual TLS between all roles, as on a cluster.", default=False).parameter(),
    _o(
        "dashboard", "", "Port of the job's dashboard; auto for any free port.", "PORT|auto|off", default="auto"
    ).parameter(),
    *(option.parameter() for option in _PATIENCE),
    parameter("plain", Plain, False),
    parameter("as_json", Json, False),
    parameter("debug", Debug, False),
    *(option.parameter() for option in (*_DATA, *_CHECKPOINTS, *_TRACKING, *_STREAM)),
]


def run_options(**given: Any) -> dict[str, Any]:
    return {
        **{
            run_parameter.name: run_parameter.default
            for run_parameter in RUN_PARAMETERS
            if run_parameter.name != "script"
        },
        **given,
    }
