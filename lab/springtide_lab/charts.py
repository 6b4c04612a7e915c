"""Draw pictures of benchmarks and reproductions: panels of curves or horizontal bars, saved as PNG.

In: `Panel`s with `Curve`s or `Bar`s. Out: PNG files.
"""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from springtide.sim import report

BLUE, RED, GREY, ORANGE = "#1f6fb4", "#c0392b", "#8c8c8c", "#e08a1e"


class Curve(NamedTuple):
    """A line."""

    x: Sequence[float]
    y: Sequence[float]
    label: str
    colour: str


class Bar(NamedTuple):
    """A median with the smallest and largest value; `paper` is the paper's value, drawn as a diamond."""

    label: str
    value: float
    low: float
    high: float
    paper: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A pair of axes with curves or bars."""

    x: str = ""
    y: str = ""
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()


def draw(path: pathlib.Path, panels: Sequence[Panel], *, size: tuple[float, float], title: str = "") -> pathlib.Path:
    """Draw the panels below one another; panels of curves have one x axis, and begin at y = 0."""
    pyplot, heights = report.pyplot(), [max(3, len(panel.bars)) for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels), figsize=size, layout="constrained", squeeze=False, sharex=not panels[0].bars, height_ratios=heights
    )
    for axis, panel in zip(axes.flat, panels, strict=True):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set(xlabel=panel.x, ylabel=panel.y)
        for curve in panel.curves:
            axis.plot(curve.x, curve.y, color=curve.colour, label=curve.label, lw=1.4)
        if panel.bars:
            _bars(axis, panel.bars)
        else:
            axis.set_ylim(0, None)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _bars(axis: Any, bars: Sequence[Bar]) -> None:
    places, values = range(len(bars)), [bar.value for bar in bars]
    spread = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
    drawn = axis.barh(places, values, xerr=spread, color=BLUE, ecolor="#333333", capsize=2)
    axis.bar_label(drawn, labels=[f"{value:.3g}" for value in values], padding=4, fontsize=7)
    known = [(bar.paper, place) for place, bar in enumerate(bars) if bar.paper is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "D", mfc="white", mec=RED, label="the paper's")
    axis.set_yticks(places, [bar.label for bar in bars], fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
