"""`--online` and what goes with it, checked before anything starts; and how an online job reads in a status.

In: words of the command line. Out: an `OnlineJob` for the job's spec; lines of text. Next: `master.online`.
"""

import pathlib
import re
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from springtide import errors
from springtide.cli import settings
from springtide.domain.online import OnlineRules
from springtide.domain.online_job import OnlineJob, OnlineState
from springtide.telemetry.logs import RunFiles

MODES = ("auto", "off")
SETTINGS = ("speedup", "every_s", "forecaster", "history")
RULES = ("pause_s", "start_s")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOptions:
    """What was given on the command line."""

    online: Annotated[str, typer.Option(help="On a stream: workers follow its traffic.", metavar="auto|off")] = "auto"
    min_workers: Annotated[int, typer.Option(min=1, help="On a stream: never fewer workers.")] = 1
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="On a stream: never more.  [default: as many as cores]")
    ] = None
    slo_lag: Annotated[
        str, typer.Option(help="A sample of a stream may wait so long, such as 90s, 20m.", metavar="TIME")
    ] = "20m"
    online_setting: Annotated[
        list[str] | None, typer.Option(help="How traffic is followed, such as forecaster=mstl.", metavar="NAME=VALUE")
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve figures for Prometheus there; 0: a free one.")
    ] = None


def job_of(
    options: OnlineOptions, *, workers: int | None, servers: int | None, cores: int, resume: str = ""
) -> OnlineJob:
    """What a job may do about a stream. `workers`, `servers`: as given; a number that was given stays."""
    if options.online not in MODES:
        raise errors.UnknownName("mode of --online", options.online, MODES)
    most = options.max_workers if options.max_workers is not None else max(cores, options.min_workers)
    if most < options.min_workers:
        raise errors.BadInput(
            f"--min-workers {options.min_workers} --max-workers {most}: wanted no more at least than at most"
        )
    rules = OnlineRules(fewest=options.min_workers, most=most, slo_lag_s=seconds("--slo-lag", options.slo_lag))
    follows = options.online == "auto" and (workers is None or options.max_workers is not None)
    job = OnlineJob(
        on=follows, rules=rules, servers_follow=servers is None, metrics_port=options.metrics_port,
        history=known(resume),
    )  # fmt: skip
    job, rules = settings.changed(
        options.online_setting or (), (job, SETTINGS), (rules, RULES), option="--online-setting", example="every=30"
    )
    if job.history and not pathlib.Path(job.history).is_file():
        raise errors.MissingFile(
            f"--online-setting history={job.history}: no such file; wanted traffic.jsonl of another run"
        )
    made: OnlineJob = replace(job, rules=rules)
    return made


def known(resume: str) -> str:
    """Traffic of the run that is gone on from, if it is here and has any."""
    path = RunFiles(pathlib.Path(resume)).traffic if resume and "://" not in resume else None
    return str(path.absolute()) if path is not None and path.is_file() else ""


def seconds(option: str, text: str) -> float:
    """A time such as 90s, 20m, 1.5h."""
    found = _TIME.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise errors.BadInput(f"{option} {text}: wanted a time above 0, such as 90s, 20m or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


def shown(state: OnlineState) -> list[str]:
    """How a job keeps up, on a few lines, each with its heading."""
    forecast = "" if state.forecast is None else f", {state.forecast:,.0f}/s forecast (at most {state.high:,.0f})"
    capacity = "" if state.capacity is None else f", workers could train {state.capacity:,.0f}/s"
    lines = [
        f"lag     {duration(state.lag_s)} of {duration(state.slo_lag_s)} promised, {state.backlog:,} samples wait; "
        f"append to trained {duration(state.lag_p50_s)} at the median, {duration(state.lag_p99_s)} for 99%",
        f"traffic {state.arriving:,.0f}/s come, {state.trained:,.0f}/s trained{forecast}{capacity}, "
        f"busy {state.utilization:.0%}",
    ]
    backups = f", {state.backups} of them backups" if state.backups else ""
    lines.append(f"follows {state.fewest} to {state.most} workers{backups}: {state.why}")
    if state.forecast_trouble:
        lines.append(f"forecast {state.forecast_trouble}")
    if state.alert:
        lines.append(f"ALERT   {state.alert}")
    if state.hours:
        lines.append(
            f"kept    over {state.hours:.1f} h: lag above the promise {state.violation:.2%} of the time, accumulated "
            f"{state.lag_min:,.0f} min, {state.down_min:.1f} min down, {state.worker_hours:.1f} worker-hours"
        )
    if lost := lost_words(state):
        lines.append(f"letters {lost}")
    return lines


def lost_words(state: OnlineState) -> str:
    """Records that were not trained, by why; empty: none."""
    counts = [(name, getattr(state, name)) for name in ("late", "corrupt", "oversized", "expired")]
    return ", ".join(f"{count:,} {name}" for name, count in counts if count)


def brief(state: OnlineState) -> str:
    """On a word or two, for a line that has little room."""
    return f"lag {duration(state.lag_s)}{' ALERT' if state.alert else ''}"


def duration(length_s: float) -> str:
    """`0.3 s`, `45 s`, `3.5 min`, `2.1 h`."""
    if length_s < 10:
        return f"{length_s:.1f} s"
    if length_s < 120:
        return f"{length_s:.0f} s"
    return f"{length_s / 60:.1f} min" if length_s < 7200 else f"{length_s / 3600:.1f} h"
