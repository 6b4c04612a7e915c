"""Pictures of GoldMiner's figures: Table 5 as bars, what is allocated over time, and one job's walk.

In: rows, and the stories of one seed. Out: PNG files, each with a sentence that says what it shows.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from springtide.sim import report
from springtide_lab.reproduce.goldminer.simulation.models import MODELS
from springtide_lab.reproduce.goldminer.simulation.run import ClusterStory
from springtide_lab.reproduce.goldminer.simulation.systems import FIXED, MAXTP, SYSTEMS, TUNED, SharingSystem
from springtide_lab.reproduce.goldminer.tuning_walk import walk
from springtide_lab.reproduce.report import Picture, Row, save

OURS, PAPER = "#1f6fb4", "#c0392b"
COLOURS = {TUNED: "#8c8c8c", FIXED: "#e08a1e", MAXTP: OURS}


def draw(folder: pathlib.Path, found: Sequence[Row], stories: Mapping[SharingSystem, ClusterStory]) -> list[Picture]:
    return [
        _walk(folder / "goldminer-fig13.png"),
        _use(folder / "goldminer-fig14.png", stories),
        _table(folder / "goldminer-fig15-table5.png", found),
        _gains(folder / "goldminer-fig16-sensitivity.png", found),
    ]


def _plain(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)


def _table(path: pathlib.Path, found: Sequence[Row]) -> Picture:
    figure, axes = report.pyplot().subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for axis, what in zip(axes, ("JCT, min", "queueing, min"), strict=True):
        rows = [one for system in SYSTEMS for one in found if one.what == f"{system.name}: {what}"]
        places = list(range(len(rows)))
        values = [one.ours or 0.0 for one in rows]
        spread = [one.spread or (value, value) for one, value in zip(rows, values, strict=True)]
        error = [
            [value - low for value, (low, _) in zip(values, spread, strict=True)],
            [high - value for value, (_, high) in zip(values, spread, strict=True)],
        ]
        axis.barh(places, values, color=OURS, xerr=error, ecolor="#333333", capsize=2, label="ours")
        axis.plot([float(one.paper) for one in rows], places, "D", mfc="white", mec=PAPER, label="the paper's")
        axis.set_yticks(places, [system.name for system in SYSTEMS], fontsize=8)
        axis.set_xlabel(what)
        _plain(axis)
    axes[0].invert_yaxis()
    axes[1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle("Table 5: completion and queueing", fontsize=10)
    return save(figure, path, "Table 5: medians over seeds, the smallest and the largest; diamonds are the paper's.")


def _use(path: pathlib.Path, stories: Mapping[SharingSystem, ClusterStory]) -> Picture:
    """Fig. 14: GPUs and cores allocated over time."""
    figure, axes = report.pyplot().subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for system, colour in COLOURS.items():
        moments = stories[system].moments
        at = [one.at for one in moments]
        axes[0].plot(at, [one.gpus for one in moments], color=colour, drawstyle="steps-post", label=system.name)
        axes[1].plot(at, [one.cpus for one in moments], color=colour, drawstyle="steps-post")
    for axis, what in zip(axes, ("GPUs", "cores"), strict=True):
        axis.set(xlabel="minutes", ylim=(0, 1.03), xlim=(0, 1500))
        axis.set_title(what, fontsize=9)
        _plain(axis)
    axes[0].set_ylabel("allocated")
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle("Fig. 14: what is allocated over time", fontsize=10)
    return save(figure, path, "Fig. 14: GPUs and cores that are allocated, one seed.")


def _walk(path: pathlib.Path) -> Picture:
    """Fig. 13 in virtual time."""
    stands = walk(MODELS["ResNet18"]).stands
    figure, (speed, cores) = report.pyplot().subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    at = [place / 2 for place in range(len(stands))]
    speed.step(at, [one.speed for one in stands], where="post", color=OURS)
    speed.set(xlabel="minutes", ylabel="of the ideal speed", ylim=(0, 1.03))
    cores.step(
        at, [one.data_workers * one.data_worker_cpu for one in stands], where="post", color=OURS, label="data workers"
    )
    cores.step(at, [one.trainer_cpu for one in stands], where="post", color=PAPER, label="trainer")
    cores.set(xlabel="minutes", ylabel="cores")
    cores.legend(frameon=False, fontsize=8)
    for axis in (speed, cores):
        _plain(axis)
    figure.suptitle("Fig. 13: a ResNet18 job is tuned, in virtual time", fontsize=10)
    return save(
        figure, path, "Fig. 13: the tuner of real jobs walks a simulated ResNet18 job; the paper ends at 24 and 3."
    )


def _gains(path: pathlib.Path, found: Sequence[Row]) -> Picture:
    rows = [one for one in found if one.figure == "sensitivity"]
    names = list(dict.fromkeys(one.what.rpartition(": ")[0] for one in rows))
    figure, axis = report.pyplot().subplots(figsize=(9, 0.9 + 0.4 * len(names)), layout="constrained")
    for mark, system in zip("os^Dv", SYSTEMS[1:], strict=True):
        mine = [one for one in rows if one.what.endswith(f": {system.name}, JCT gain")]
        axis.plot([one.ours for one in mine], range(len(mine)), mark, label=system.name)
    axis.axvline(1.0, color="#bbbbbb", lw=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("JCT gain over No DW (tuned)")
    axis.legend(frameon=False, fontsize=8)
    axis.set_title("How gains change with what the text does not give", fontsize=10)
    _plain(axis)
    return save(figure, path, "Gains over No DW (tuned) with other assumptions; medians over seeds.")
