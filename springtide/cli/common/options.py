"""Options that many commands have. Next: `cli.app` and `cli.lab.commands` declare the commands."""

import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from springtide import errors

if TYPE_CHECKING:
    from springtide.launch.job_lookup import JobLocation

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, and log more.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of standard output.")]
RUNS = ".springtide/runs"
Job = Annotated[str | None, typer.Argument(help="Which job; the newest if not given.", metavar="JOB")]
Runs = Annotated[str, typer.Option("--logs", help="Where runs keep their logs.", metavar="DIR")]


def made_folder(option: str, text: str) -> pathlib.Path:
    """Create the folder that an option names, so that a bad path fails before any work."""
    folder = pathlib.Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.BadInput(f"{option} {text}: no folder can be made there ({error.strerror})") from None
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingOptions:
    """What a run is told about data workers: see `domain.data.data_workers`."""

    data_workers: Annotated[
        str, typer.Option(help="Processes that make batches for workers.", metavar="NUMBER|auto|off")
    ] = "auto"
    data_worker_cpu: Annotated[
        float | None, typer.Option(help="Cores of each of them.  [default: found out]", metavar="CORES")
    ] = None
    split: Annotated[
        str,
        typer.Option(
            help="Part of forward() moves to them; verify: and is compared.", metavar="auto|stages|verify|off"
        ),
    ] = "auto"
    poison: Annotated[str, typer.Option(help="A sample cannot be made: fail, or skip and report it.")] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingOptions:
    """What a run is told about checkpoints and about its disk: see `launch.spec.resolve`."""

    disk_wait: Annotated[float, typer.Option(min=0, help="Wait for a full disk: seconds before the job fails.")] = 600.0
    checkpoint_every: Annotated[float | None, typer.Option(min=0, help="Seconds; 0: never.  [default: 30]")] = None
    checkpoint_dir: Annotated[str, typer.Option(help="Folder for them.  [default: the run's]", metavar="DIR")] = ""
    checkpoint_url: Annotated[str, typer.Option(help="Where they are copied to.", metavar="URL")] = ""
    upload_every: Annotated[float, typer.Option(min=1, help="Seconds between two copies.")] = 600.0
    mirror: Annotated[bool, typer.Option("--mirror", help="Another server keeps a copy of each server's.")] = False
    resume: Annotated[str, typer.Option(help="Go on from a run's checkpoints.", metavar="RUN_OR_URL")] = ""


MODES = ("auto", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOptions:
    """What was given on the command line."""

    online: Annotated[str, typer.Option(help="On a stream: workers follow its traffic.", metavar="auto|off")] = "auto"
    min_workers: Annotated[int, typer.Option(min=1, help="Never fewer workers, where it is found out.")] = 1
    max_workers: Annotated[int | None, typer.Option(min=1, help="Never more.  [default: as many as cores]")] = None
    slo_lag: Annotated[
        str, typer.Option(help="A sample of a stream may wait so long, such as 90s, 20m.", metavar="TIME")
    ] = "20m"
    online_setting: Annotated[
        list[str] | None, typer.Option(help="How traffic is followed, such as forecaster=mstl.", metavar="NAME=VALUE")
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve figures for Prometheus there; 0: a free one.")
    ] = None


def online_is_on(options: OnlineOptions) -> bool:
    if options.online not in MODES:
        raise errors.UnknownName("mode of --online", options.online, MODES)
    return options.online == "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What a run is told about exports while it trains."""

    export_to: Annotated[str, typer.Option(help="Export the model there while it trains.", metavar="URL")] = ""
    export_every: Annotated[str, typer.Option(help="How often.  [default: 5m]", metavar="TIME")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereOptions:
    """Where a job is, if its card here does not say it: see `launch.job_lookup`."""

    platform: Annotated[str, typer.Option(help="local, ray or k8s.  [default: as submitted]", metavar="NAME")] = ""
    address: Annotated[str, typer.Option(help="Of a Ray cluster.", metavar="ADDRESS")] = ""
    namespace: Annotated[str, typer.Option(help="Of a Kubernetes cluster.", metavar="NAME")] = ""
    context: Annotated[str, typer.Option(help="Of a kubeconfig.", metavar="NAME")] = ""
    kubeconfig: Annotated[str, typer.Option(help="Which one.", metavar="FILE")] = ""
    folder: Runs = RUNS

    def where(self) -> "JobLocation":
        from springtide.cli.common import job_selection

        return job_selection.where_of(
            self.folder, platform=self.platform, address=self.address, namespace=self.namespace, context=self.context,
            kubeconfig=self.kubeconfig,
        )  # fmt: skip
