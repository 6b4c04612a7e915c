"""Draw pictures of benchmarks and reproductions: panels of curves or horizontal bars, saved as PNG.

In: `Panel`s, each with `Curve`s or `Bar`s. Out: PNG files.
"""

import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from springtide.sim import report

BLUE, RED, GREY, ORANGE, GREEN, PURPLE, LIGHT = (
    *("#1f6fb4", "#c0392b", "#8c8c8c", "#e08a1e", "#4a9c5d", "#9b59b6"),
    "#bbbbbb",
)


class Curve(NamedTuple):
    """A line or a row of markers; `style` is a matplotlib style, or "steps" for a step function."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    colour: str = BLUE
    style: str = "-"


class Bar(NamedTuple):
    """A median with the smallest and largest value; `paper` is the paper's value, drawn as a diamond."""

    label: str
    value: float
    low: float
    high: float
    paper: float | None = None
    colour: str = BLUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes with its curves or bars."""

    title: str = ""
    x: str = ""
    y: str = ""
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()
    x_limits: tuple[float, float | None] | None = None
    y_limits: tuple[float, float | None] | None = None
    lines: Sequence[tuple[str, float]] = ()
    """Dotted lines as (axis, position); ("x", 12) is vertical."""
    shaded: tuple[float, float] | None = None
    """The paper's range on the x axis, drawn shaded."""
    y_ticks: Sequence[str] = ()
    log: str = ""
    """Axes with a logarithmic scale: "y" or "xy"."""


def bar(label: str, values: Sequence[float], colour: str = BLUE, paper: float | None = None) -> Bar:
    return Bar(label, statistics.median(values), min(values), max(values), paper, colour)


def draw(
    path: pathlib.Path,
    panels: Sequence[Panel],
    *,
    title: str = "",
    size: tuple[float, float] = (7.0, 3.6),
    stacked: bool = False,
) -> pathlib.Path:
    pyplot = report.pyplot()
    shape = (len(panels), 1) if stacked else (1, len(panels))
    figure, grid = pyplot.subplots(*shape, figsize=size, layout="constrained", squeeze=False, sharex=stacked)
    for axis, panel in zip(grid.flat, panels, strict=True):
        _panel(axis, panel)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _panel(axis: Any, panel: Panel) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    scales = {f"{name}scale": "log" for name in panel.log}
    axis.set(xlabel=panel.x, ylabel=panel.y, **scales)
    axis.set_title(panel.title, fontsize=10)
    if panel.shaded:
        low, high = panel.shaded
        axis.axvspan(low, max(high, low * 1.005), color=RED, alpha=0.15, label="the paper's range")
    for which, at in panel.lines:
        (axis.axvline if which == "x" else axis.axhline)(at, color=LIGHT, lw=1, ls=":")
    for curve in panel.curves:
        style = {"drawstyle": "steps-post"} if curve.style == "steps" else {"linestyle": curve.style}
        if curve.style in ("o", ".", "*", "s", "^", "D", "v"):
            style = {"marker": curve.style, "linestyle": ""}
        axis.plot(curve.x, curve.y, color=curve.colour, label=curve.label or None, lw=1.4, **style)
    if panel.bars:
        _bars(axis, panel.bars)
    if panel.y_ticks:
        axis.set_yticks(range(len(panel.y_ticks)), panel.y_ticks, fontsize=8)
        axis.invert_yaxis()
    if panel.x_limits:
        axis.set_xlim(*panel.x_limits)
    if panel.y_limits:
        axis.set_ylim(*panel.y_limits)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(frameon=False, fontsize=8)


def _bars(axis: Any, bars: Sequence[Bar]) -> None:
    places, values = range(len(bars)), [bar.value for bar in bars]
    spread = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
    drawn = axis.barh(places, values, xerr=spread, color=[bar.colour for bar in bars], ecolor="#333333", capsize=2)
    axis.bar_label(drawn, labels=[f"{value:.3g}" for value in values], padding=4, fontsize=7)
    known = [(bar.paper, place) for place, bar in enumerate(bars) if bar.paper is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "D", mfc="white", mec=RED, label="the paper's")
    axis.set_yticks(places, [bar.label for bar in bars], fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
