"""`springtide forecast`: measures how well each model would have forecast a stream's past traffic, and forecasts the
next day."""

import pathlib
from typing import Annotated

import numpy as np
import typer
from rich import box as rich_box
from rich import console, table

from springtide import file_input
from springtide.cli.common.options import Json, verb
from springtide.cli.common.render import print_json
from springtide.data.stream import producer
from springtide.planning.online import forecasters
from springtide.planning.online.forecasters import BacktestScore
from springtide.planning.online.traffic import DAY_S, PastTraffic, RateForecast

STEP_S = 600.0
SHOWN_H = 3


@verb("springtide forecast traffic.csv", "springtide forecast traffic.csv --model last-week --known 14 --json")
def forecast(
    trace: Annotated[str, typer.Argument(help="Traffic: a CSV of times and counts.", metavar="FILE.csv")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model to try; repeatable.  [default: all that are built in]", metavar="NAME"),
    ] = None,
    known: Annotated[int, typer.Option(min=1, help="Days of history for each forecast.")] = 28,
    step: Annotated[float | None, typer.Option(min=1, help="Seconds per step.  [default: 600, or the file's]")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Forecast only the last days.  [default: all]")] = None,
    as_json: Json = False,
) -> int:
    """Forecast each day of a trace from the days before, compare models, and forecast the next day."""
    history = read(pathlib.Path(trace), step)
    chosen = list(dict.fromkeys(model or forecasters.BUILT_IN))
    models = {name: forecasters.load(name) for name in chosen}
    scores = {name: forecasters.backtest(history, model, known_days=known, last=last) for name, model in models.items()}
    best = min(scores, key=lambda name: scores[name].wape)
    forecast = models[best](history.before(len(history.values), days=known), history.day)
    if not as_json:
        show(trace, history, scores, known)
        typer.echo(f"the next day by {best}: {forecast.why}")
        show_day(forecast)
    shown = {
        "trace": trace,
        "step_s": history.step_s,
        "days": history.days,
        "known_days": known,
        "best": best,
        "models": {name: score._asdict() for name, score in scores.items()},
        "next": {
            "mean": forecast.mean.tolist(),
            "low": forecast.low.tolist(),
            "high": forecast.high.tolist(),
            "why": forecast.why,
        },
    }
    print_json(shown, as_json)
    return 0


def read(path: pathlib.Path, step_s: float | None) -> PastTraffic:
    trace = producer.read_trace(file_input.read(path, what=f"a {producer.TRACE}").splitlines(), str(path))
    step_s = step_s or max(STEP_S, float(np.median(np.diff(trace.at_s))))
    return PastTraffic.of(trace.at_s, trace.rate, step_s)


def show(path: str, history: PastTraffic, scores: dict[str, BacktestScore], known_days: int) -> None:
    screen = console.Console(width=80, highlight=False)
    tried = next(iter(scores.values())).tried
    screen.print(
        f"{path}: {history.days} days by {history.step_s:g} s; {tried} days forecast, each from the {known_days} before"
    )
    shown = table.Table(box=rich_box.SIMPLE, padding=(0, 1))
    shown.add_column("model")
    for column in ("WAPE", "within (80%)", "below high (90%)", "bias"):
        shown.add_column(column, justify="right")
    for name, score in sorted(scores.items(), key=lambda item: item[1].wape):
        shown.add_row(name, f"{score.wape:.2%}", f"{score.covered:.1%}", f"{score.below:.1%}", f"{score.bias:+.1%}")
    screen.print(shown)


def show_day(forecast: RateForecast) -> None:
    shown = table.Table(box=rich_box.SIMPLE, padding=(0, 1))
    for column in ("hours from now", "low", "samples/s", "high"):
        shown.add_column(column, justify="right")
    steps = max(1, round(SHOWN_H * 3600 / forecast.step_s))
    for first in range(0, round(DAY_S / forecast.step_s), steps):
        part = slice(first, first + steps)
        hours = f"{first * forecast.step_s / 3600:g}-{(first + steps) * forecast.step_s / 3600:g}"
        shown.add_row(
            hours, *(f"{series[part].mean():,.4g}" for series in (forecast.low, forecast.mean, forecast.high))
        )
    console.Console(width=80, highlight=False).print(shown)
