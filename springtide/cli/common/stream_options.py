"""`--online` and what goes with it, as options; and how an online job reads in a status.

In: words of the command line. Out: part of an `ElasticJob`; lines of text. Next: `launch.spec.stream_options`.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from springtide import errors
from springtide.domain.spec.online_job import OnlineState

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


def on(options: OnlineOptions) -> bool:
    """Whether workers may follow a stream."""
    if options.online not in MODES:
        raise errors.UnknownName("mode of --online", options.online, MODES)
    return options.online == "auto"


def shown(state: OnlineState) -> list[str]:
    """How a job keeps up, on a few lines, each with its heading."""
    forecast = "" if state.forecast is None else f", {state.forecast:,.0f}/s forecast (at most {state.high:,.0f})"
    capacity = "" if state.capacity is None else f", workers could train {state.capacity:,.0f}/s"
    busy = "" if state.utilization is None else f", busy {state.utilization:.0%}"
    lines = [
        f"lag     {duration(state.lag_s)} of {duration(state.slo_lag_s)} promised, {state.backlog:,} samples wait; "
        f"append to trained {duration(state.lag_p50_s)} at the median, {duration(state.lag_p99_s)} for 99%",
        f"traffic {state.arriving:,.0f}/s come, {state.trained:,.0f}/s trained{forecast}{capacity}{busy}",
    ]
    backups = f", {state.backups} of them backups" if state.backups else ""
    may = f"{state.fewest} to {state.most} workers{backups}" if state.fewest < state.most else "no traffic"
    lines.append(f"follows {may}: {state.why}")
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
        only = f"; {state.unkept:,} of them left no dead letter: {state.unkept_why}" if state.unkept else ""
        lines.append(f"letters {lost}{only}")
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
