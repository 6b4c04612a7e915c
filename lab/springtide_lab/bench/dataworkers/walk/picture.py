"""What one interval of the walk was like, and a picture of all of them: speed above, CPUs below, as Fig. 13 has it."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from springtide.domain.data.data_workers import FeedSeen


class Taken(NamedTuple):
    """One interval, with the configuration it was measured in, and what was decided then."""

    at: float
    workers: int
    worker_cpu: float
    worker_used: float
    trainer_cpu: float
    trainer_used: float
    steps_per_s: float
    capable_per_s: float
    waits: float
    fill: float
    phase: str
    why: str

    @classmethod
    def of(cls, seen: FeedSeen, *, at: float, phase: str, why: str) -> "Taken":
        """Of what the tuner saw, and said."""
        return cls(
            at, seen.data_workers, seen.data_worker_cpu, seen.data_worker_cpu_used, seen.trainer_cpu,
            seen.trainer_cpu_used, seen.steps_per_s, seen.capable_per_s, seen.wait_share, seen.fill, phase, why,
        )  # fmt: skip


def draw(taken: Sequence[Taken], path: pathlib.Path) -> None:
    """Two charts over the time of the walk."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    at = [0.0, *(one.at for one in taken)]
    figure, (speed, cpus) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    speed.stairs([one.steps_per_s for one in taken], at, baseline=None, linewidth=2, color="tab:blue")
    speed.set_ylabel("steps a second")
    speed.set_ylim(bottom=0)
    cpus.stairs([one.workers * one.worker_cpu for one in taken], at, baseline=None, linewidth=2, label="data workers")
    cpus.stairs([one.trainer_cpu for one in taken], at, baseline=None, linewidth=2, label="trainer")
    for one, since in zip(taken, at, strict=False):
        if one.workers:
            cpus.annotate(f"{one.workers}x{one.worker_cpu:g}", (since, one.workers * one.worker_cpu), fontsize=7)
    cpus.set_ylabel("CPUs")
    cpus.set_xlabel("seconds")
    cpus.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
