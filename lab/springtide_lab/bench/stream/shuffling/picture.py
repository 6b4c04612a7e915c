"""Lag of every partition over time, a chart a strategy, as in Fig. 8 of Kale; below, the longest and what waits."""

import pathlib
from collections.abc import Sequence

from springtide_lab.bench.stream.shuffling.processes import STEP_S, Told
from springtide_lab.bench.stream.shuffling.scene import Scene


def draw(scene: Scene, runs: Sequence[Told], path: pathlib.Path) -> None:
    """One picture of a scene."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    most = max(float(run.lag_s.max()) for run in runs)
    figure, grid = pyplot.subplots(
        3, len(runs), figsize=(3.6 * len(runs), 7), sharex=True, sharey="row", layout="constrained",
        gridspec_kw={"height_ratios": [2, 1, 1]}, squeeze=False,
    )  # fmt: skip
    for column, run in enumerate(runs):
        above, below, last = (row[column] for row in grid)
        shown = above.imshow(
            run.lag_s, aspect="auto", origin="lower", vmin=0, vmax=most, cmap="viridis", interpolation="nearest",
            extent=(0, STEP_S * run.lag_s.shape[1], 0, scene.partitions),
        )  # fmt: skip
        above.set_title(run.strategy)
        below.plot(run.times, run.lag_s.max(axis=0), label="longest", color="tab:red")
        below.plot(run.times, run.lag_s.mean(axis=0), label="mean", color="tab:blue")
        last.plot(run.times, run.waiting, color="tab:gray")
        last.set_xlabel("seconds")
    grid[0][0].set_ylabel("partition")
    grid[1][0].set_ylabel("lag, s")
    grid[2][0].set_ylim(bottom=0)
    grid[2][0].set_ylabel("records that wait")
    grid[1][0].legend(frameon=False, fontsize=8)
    figure.colorbar(shown, ax=grid[0][-1], label="lag, s")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
