"""Pictures of simulations, by matplotlib, which is an extra and imported late. In: stories by system. Out: a PNG."""

import pathlib
from collections.abc import Mapping
from typing import Any

from springtide import errors
from springtide.sim.running import End
from springtide.sim.simulation import Story


def pyplot() -> Any:
    """matplotlib without a screen."""
    try:
        import matplotlib
    except ImportError:
        raise errors.MissingExtra("a plot", "sim") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plots

    return plots


def check(path: pathlib.Path) -> None:
    """Before anything takes time: can a picture be written there?"""
    if path.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise errors.BadInput(f"--plot {path}: wanted a file name that ends in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise errors.MissingFile(f"--plot {path}: there is no folder {path.absolute().parent}")
    pyplot()


def story(stories: Mapping[str, Story], path: pathlib.Path) -> None:
    """Completion times as a cumulative curve, and cores held over time."""
    plots = pyplot()
    figure, (times, held) = plots.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, one in stories.items():
        hours = sorted(outcome.jct_s / 3600 for outcome in one.outcomes if outcome.end is End.FINISHED)
        if hours:
            times.plot(hours, [(place + 1) / len(hours) for place in range(len(hours))], label=name)
        held.plot([at / 3600 for at, _, _ in one.held], [cpu for _, cpu, _ in one.held], label=name)
    times.set_xscale("log")
    times.set_xlabel("completion time, hours")
    times.set_ylabel("of finished jobs")
    held.set_xlabel("hours")
    held.set_ylabel("cores held")
    times.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plots.close(figure)


def curves(lines: Mapping[str, list[tuple[float, float]]], path: pathlib.Path) -> None:
    """Throughput over time, a line a policy."""
    plots = pyplot()
    figure, axis = plots.subplots(figsize=(6, 3.6), layout="constrained")
    for name, points in lines.items():
        axis.plot([at for at, _ in points], [speed for _, speed in points], label=name)
    axis.set_xlabel("minutes since submission")
    axis.set_ylabel("steps/s")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plots.close(figure)
