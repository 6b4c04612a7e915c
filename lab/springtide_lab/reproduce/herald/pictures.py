"""Herald's figures as pictures, from the rows: what a table says in numbers, side by side with the paper's ranges.

In: rows of `reproduction`. Out: PNG files, each with a sentence that says what it shows.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from springtide.sim import report
from springtide_lab.reproduce.report import Picture, Row, save

OURS, PAPER = "#1f6fb4", "#c0392b"


class Sheet(NamedTuple):
    """One picture: which rows, what they are, and the paper's lowest and highest."""

    figure: str
    title: str
    axis: str
    low: float
    high: float


SHEETS = (
    Sheet("004 Fig. 3", "Fig. 3: rows an iteration, batch 256 over 64", "times", 2.7, 4.0),
    Sheet("004 Fig. 6", "Fig. 6: infrequent among cached rows", "DoI", 0.99, 1.0),
    Sheet("004 Fig. 10", "Fig. 10: DoI of the lowest and the highest table", "DoI", 0.0, 1.0),
    Sheet("004 Fig. 11", "Fig. 11: transmissions saved", "part of vanilla's", 0.48, 0.89),
    Sheet("004 Fig. 13", "Fig. 13: scoring with four tables over all", "transmissions", 1.0, 1.11),
    Sheet("004 Fig. 14", "Fig. 14: speed-up over HET in bsp", "times", 1.09, 2.11),
    Sheet("004 Fig. 15", "Fig. 15: scaling factor", "of ideal", 0.42, 0.90),
    Sheet("004 Fig. 16", "Fig. 16: speed-up by cache size", "times", 1.97, 2.15),
    Sheet("004 Fig. 19", "Fig. 19: speed-up by servers", "times", 1.4, 1.4),
)


def draw(folder: pathlib.Path, rows: Sequence[Row]) -> list[Picture]:
    drawn = []
    for sheet in SHEETS:
        shown = [one for one in rows if one.figure == sheet.figure and one.ours is not None]
        if shown:
            number = sheet.figure.rpartition(" ")[2]
            drawn.append(_bars(folder / f"herald-fig{number}.png", sheet, shown))
    return drawn


def _bars(path: pathlib.Path, sheet: Sheet, rows: Sequence[Row]) -> Picture:
    figure, axis = report.pyplot().subplots(figsize=(8, 0.9 + 0.26 * len(rows)), layout="constrained")
    values = [one.ours or 0.0 for one in rows]
    least = [value - (one.spread[0] if one.spread else value) for value, one in zip(values, rows, strict=True)]
    most = [(one.spread[1] if one.spread else value) - value for value, one in zip(values, rows, strict=True)]
    axis.axvspan(sheet.low, max(sheet.high, sheet.low * 1.005), color=PAPER, alpha=0.15, label="the paper's range")
    drawn = axis.barh(range(len(rows)), values, xerr=[least, most], color=OURS, ecolor="#333333", capsize=2)
    axis.bar_label(drawn, labels=[f"{value:.3g}" for value in values], padding=4, fontsize=7)
    axis.set_yticks(range(len(rows)), [one.what for one in rows], fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel(sheet.axis)
    axis.set_title(sheet.title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7, loc="lower right")
    return save(figure, path, f"{sheet.title}; medians over seeds, the shaded range is the paper's.")
