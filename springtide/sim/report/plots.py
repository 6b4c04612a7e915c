"""Plots simulations with matplotlib, an optional package that is imported late. In: stories by system. Out: a PNG."""

import pathlib
from collections.abc import Mapping
from typing import Any

from springtide import errors
from springtide.sim.engine.job import JobEnd
from springtide.sim.engine.simulation import Story


def pyplot() -> Any:
    """Import matplotlib with a backend that needs no display."""
    try:
        import matplotlib
    except ImportError:
        raise errors.MissingExtra("a plot", "sim") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plots

    return plots


def check(path: pathlib.Path) -> None:
    """Fail early if the picture cannot be written."""
    if path.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise errors.BadInput(f"--plot {path}: wanted a file name that ends in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise errors.MissingFile(f"--plot {path}: there is no folder {path.absolute().parent}")
    pyplot()


def story(stories: Mapping[str, Story], path: pathlib.Path) -> None:
    """Plot the distribution of completion times, and the held cores over time."""
    plots = pyplot()
    figure, (times, held) = plots.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, one in stories.items():
        hours = sorted(outcome.jct_s / 3600 for outcome in one.outcomes if outcome.end is JobEnd.FINISHED)
        if hours:
            shares = [place / len(hours) for place in range(len(hours) + 1)]
            times.plot([hours[0], *hours], shares, drawstyle="steps-post", label=name)
        held.plot([at / 3600 for at, _, _ in one.held], [cpu for _, cpu, _ in one.held], label=name)
    hours_on(times)
    times.set(ylabel="part of finished jobs", ylim=(0, 1.02))
    times.set_title("how long jobs took, pending and all", fontsize=10)
    held.set(xlabel="hours since the first submission", ylabel="cores", ylim=(0, None))
    held.set_title("cores that jobs held", fontsize=10)
    for axis in (times, held):
        axis.spines[["top", "right"]].set_visible(False)
    held.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plots.close(figure)


def hours_on(axis: Any) -> None:
    from matplotlib import ticker

    axis.set(xscale="log", xlabel="completion time, hours")
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0)))
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.xaxis.set_minor_formatter(ticker.NullFormatter())
