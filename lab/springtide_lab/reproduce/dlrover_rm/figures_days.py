"""Figures 9, 14 and 15 of DLRover-RM as pictures: days of a cluster.

In: the days that were simulated. Out: PNG files, each with a sentence that says what it shows. Next: `reproduction`.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from springtide.sim import report
from springtide.sim.engine.running_job import JobEnd
from springtide.sim.engine.simulation import Story
from springtide_lab.reproduce.dlrover_rm import clusterdays
from springtide_lab.reproduce.dlrover_rm.clusterdays import ClusterDay, Which
from springtide_lab.reproduce.dlrover_rm.figures import bars
from springtide_lab.reproduce.report import Picture, save

BEFORE, OURS, ORACLE = "as users asked", "Springtide", "oracle"
COLOURS = {BEFORE: "#8c8c8c", OURS: "#1f6fb4", ORACLE: "#222222", "cold": "#e08a1e"}


def draw(folder: pathlib.Path, days: Sequence[ClusterDay]) -> list[Picture]:
    return [
        _warm_start(folder / "fig9-warm-start.png", days),
        _before_and_after(folder / "fig14-production.png", days),
        _times(folder / "fig15-completion-times.png", days),
    ]


def _warm_start(path: pathlib.Path, days: Sequence[ClusterDay]) -> Picture:
    """Fig. 9: first against last, job by job; on the line nothing had to be changed."""
    figure, axes = report.pyplot().subplots(1, 2, figsize=(7.6, 3.8), layout="constrained")
    for axis, role in zip(axes, ("workers", "servers"), strict=True):
        found = [pair for day in days for pair in clusterdays.first_and_last(day.after, role)]
        pairs = np.array(found, dtype=float).reshape(-1, 2)  # of few jobs none may be of a kind that ran before
        ends = [0.8 * float(pairs.min(initial=1.0)), 1.2 * float(pairs.max(initial=1.0))]
        axis.plot(ends, ends, color="#bbbbbb", lw=1)
        axis.scatter(pairs[:, 1], pairs[:, 0], s=10, alpha=0.25, color=COLOURS[OURS], edgecolors="none")
        near = float(np.mean([clusterdays.near(day.after, role) for day in days]))
        axis.set(xlabel=f"{role} at the end", ylabel=f"{role} at the start")
        right = "no job" if math.isnan(near) else f"{near:.0%} right"
        axis.set_title(f"{role}: {right} (paper: {0.92 if role == 'workers' else 0.85:.0%})", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Fig. 9: warm start, first and last configuration", fontsize=10)
    return save(figure, path, "Fig. 9: what a job began with against what it ended with, of kinds that ran before.")


def _before_and_after(path: pathlib.Path, days: Sequence[ClusterDay]) -> Picture:
    """Fig. 14: utilization and completion rates, beside the paper's figures."""
    panels = (
        ("CPU", (("workers", "worker_cpu", 0.19, 0.40), ("servers", "server_cpu", 0.13, 0.414))),
        ("memory", (("workers", "worker_memory", 0.152, 0.468), ("servers", "server_memory", 0.138, 0.311))),
        (
            "completed",
            (("below 100 CPUs", "completion_small", 0.84, 0.95), ("from 100 CPUs", "completion_large", 0.67, 0.87)),
        ),
    )
    figure, axes = report.pyplot().subplots(1, 3, figsize=(9.6, 3.6), layout="constrained")
    for axis, (title, cases) in zip(axes, panels, strict=True):
        found = {
            BEFORE: [[100 * (getattr(day.was, field) or 0.0) for day in days] for _, field, _, _ in cases],
            OURS: [[100 * (getattr(day.now, field) or 0.0) for day in days] for _, field, _, _ in cases],
        }
        bars(axis, [case[0] for case in cases], found, COLOURS, text="{:.0f}")
        for place, (_, _, was, now) in enumerate(cases):
            axis.plot(
                [place - 0.07, place + 0.33],
                [100 * was, 100 * now],
                "D",
                ms=5,
                mfc="white",
                mec="#c0392b",
                label="the paper's" if not place else None,
            )
        axis.set(ylim=(0, 110), ylabel="%")
        axis.set_title(title, fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=3, loc="outside lower center")
    figure.suptitle("Fig. 14: use of what was allocated, and jobs completed", fontsize=10)
    said = "Fig. 14: utilization and completion rates, medians over seeds; diamonds are the paper's figures."
    return save(figure, path, said)


def _times(path: pathlib.Path, days: Sequence[ClusterDay]) -> Picture:
    """Fig. 15: how many jobs had ended after so many hours."""
    figure, axes = report.pyplot().subplots(1, 3, figsize=(9.6, 3.6), layout="constrained", sharey=True)
    for axis, (title, which) in zip(axes, clusterdays.CLASSES.items(), strict=True):
        for name, stories in (
            (BEFORE, [day.before for day in days]),
            (OURS, [day.after for day in days]),
            (ORACLE, [day.oracle for day in days]),
        ):
            _cumulative(axis, stories, which, name)
        report.hours_on(axis)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("of finished jobs")
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle("Fig. 15: completion times", fontsize=10)
    return save(figure, path, "Fig. 15: completion times of finished jobs, pending and all; all seeds together.")


def _cumulative(axis: Any, stories: Sequence[Story], which: Which, name: str) -> None:
    hours = sorted(
        one.jct_s / 3600 for story in stories for one in story.outcomes if one.end is JobEnd.FINISHED and which(one)
    )
    if hours:
        axis.plot(
            hours,
            np.arange(1, len(hours) + 1) / len(hours),
            color=COLOURS[name],
            label=name,
            ls="--" if name == ORACLE else "-",
        )
