"""Pictures of Kale's figures: AUC against lag, workers over a day, and the four figures of all schemes.

In: what `comparison` found. Out: PNG files, each with a sentence that says what it shows.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from springtide.sim import report
from springtide_lab.reproduce.kale.auc import LAGS_MIN
from springtide_lab.reproduce.kale.comparison import ADEQUATE, CLAIRVOYANT, OURS, Compared
from springtide_lab.reproduce.kale.rows import METRICS, SCHEMES, TABLE_3
from springtide_lab.reproduce.kale.traffic import CAPACITY
from springtide_lab.reproduce.report import Picture, save

BLUE, RED, GREY, ORANGE, GREEN = "#1f6fb4", "#c0392b", "#8c8c8c", "#e08a1e", "#4a9c5d"
COLOURS = {OURS: BLUE, "HPA": RED, "Kale": ORANGE, CLAIRVOYANT: GREEN, ADEQUATE: GREY}


def draw(folder: pathlib.Path, compared: Sequence[Compared], curve: Sequence[float]) -> list[Picture]:
    first = compared[0]
    return [
        _auc(folder / "kale-fig1-auc.png", curve),
        _bars(folder / "kale-fig9-table3.png", first),
        *(_day(folder / f"kale-fig{10 + place}-day.png", one) for place, one in enumerate(compared)),
        _trade(folder / "kale-fig20-settings.png", compared),
    ]


def _plain(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)


def _auc(path: pathlib.Path, curve: Sequence[float]) -> Picture:
    figure, axis = report.pyplot().subplots(figsize=(5, 3.2), layout="constrained")
    axis.plot(LAGS_MIN, [100 * one for one in curve], "o-", color=BLUE)
    axis.axvline(20, color=GREY, linestyle=":", linewidth=1)
    axis.set(xlabel="lag, minutes", ylabel="AUC, %")
    axis.set_title("Fig. 1: a model that lags behind a stream whose truth turns", fontsize=10)
    _plain(axis)
    return save(figure, path, "Fig. 1: AUC against lag; the dotted line is the promised 20 minutes.")


def _bars(path: pathlib.Path, found: Compared) -> Picture:
    """Table 3 and Fig. 9."""
    figure, axes = report.pyplot().subplots(1, 4, figsize=(11, 3.2), layout="constrained", sharey=True)
    schemes = [one for one in SCHEMES if ("A", one) in found.figures]
    for place, (axis, metric) in enumerate(zip(axes, METRICS, strict=True)):
        values = [found.figures["A", one][:, place] * (100 if place == 0 else 1) for one in schemes]
        spots = list(range(len(schemes)))
        half = [1.96 * float(one.std()) / np.sqrt(len(one)) for one in values]
        colours = [BLUE if one == OURS else GREY for one in schemes]
        axis.barh(spots, [one.mean() for one in values], xerr=half, color=colours, ecolor="#333333", capsize=2)
        known = [(spot, TABLE_3[one][place]) for spot, one in enumerate(schemes) if one in TABLE_3]
        axis.plot([value for _, value in known], [spot for spot, _ in known], "D", mfc="white", mec=RED)
        axis.set_yticks(spots, schemes, fontsize=8)
        axis.set_xlabel(metric)
        _plain(axis)
    axes[0].invert_yaxis()
    figure.suptitle("Table 3, A: every change pauses the job for 10 minutes", fontsize=10)
    return save(figure, path, "Table 3: means with 95% intervals on the paper's shape; diamonds are the paper's own.")


def _day(path: pathlib.Path, found: Compared) -> Picture:
    """Fig. 10: a day, and how late each was."""
    figure, axes = report.pyplot().subplots(3, 1, figsize=(9, 6.4), layout="constrained", sharex=True)
    shown = (("A", "HPA"), ("A", "Kale"), ("A", OURS), ("B", OURS))
    some = found.stories["A", OURS]
    hours = np.arange(len(some.traffic)) / 60
    axes[0].fill_between(hours, np.searchsorted(CAPACITY, some.traffic, side="right"), color="#dddddd", linewidth=0)
    for table, scheme in shown:
        story = found.stories[table, scheme]
        live = table == "B"
        style: dict[str, Any] = {"color": COLOURS[scheme], "linewidth": 1.3, "linestyle": ":" if live else "-"}
        axes[0].plot(hours, story.workers, label=f"{scheme}{', live' if live else ''}", **style)
        axes[1].plot(hours, story.lag_min, **style)
        axes[2].plot(hours, np.cumsum(story.workers) / 60, **style)
    axes[0].set_ylabel("workers")
    axes[1].set_ylabel("lag, min")
    axes[1].axhline(20, color=GREY, linestyle=":", linewidth=1)
    axes[2].set(ylabel="worker-hours", xlabel="hour of the day")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    for axis in axes:
        _plain(axis)
    figure.suptitle(f"A day of {found.name}; grey: the fewest workers that keep up", fontsize=10)
    return save(figure, path, f"Fig. 10 on {found.name}: workers, lag and worker-hours of the first day.")


def _trade(path: pathlib.Path, compared: Sequence[Compared]) -> Picture:
    figure, axes = report.pyplot().subplots(
        1, len(compared), figsize=(3.4 * len(compared), 3.2), layout="constrained", squeeze=False
    )
    for axis, found in zip(axes[0], compared, strict=True):
        for scheme, colour in (("HPA", RED), ("Kale", ORANGE), ("Madu", GREEN)):
            tried = found.tuned["A", scheme].figures
            keeps = tried[:, 0] <= 0.026
            axis.plot(tried[keeps, 3], tried[keeps, 1] + 1, ".", color=colour, markersize=4, label=scheme)
        mine = found.on_tuning_days["A"].mean(axis=0)
        axis.plot(mine[3], mine[1] + 1, "*", color=BLUE, markersize=11, label=OURS)
        axis.set(xlabel="worker-hours", ylabel="lag, min", yscale="log")
        axis.set_title(found.name, fontsize=9)
        _plain(axis)
    axes[0][0].legend(frameon=False, fontsize=8)
    return save(
        figure, path, "Every setting that was tried and kept the promise, on the days it was tried on; ours once."
    )
