"""What checkpoints cost: a job that saves itself while it trains, and the caller of `Checkpointer.save`.

In: nothing but the options. Out: the goals and rows of all parts, each measured in a room of its own. Next:
checkpoint_job.py, checkpoint_blocking.py.
"""

from springtide_lab.bench import Options
from springtide_lab.bench.core import report
from springtide_lab.bench.faults.checkpoint import checkpoint_blocking, checkpoint_job


def bench(options: Options) -> report.Result:
    """All parts, one after the other."""
    parts = (checkpoint_job.saving(options), checkpoint_blocking.blocking(options))
    return report.Result(
        goals=tuple(goal for part in parts for goal in part.goals),
        rounds=max(part.rounds for part in parts),
        columns=("what", "seconds", "GB/s"),
        rows=tuple(row for part in parts for row in part.rows),
        notes=tuple(note for part in parts for note in part.notes),
        details={name: value for part in parts for name, value in part.details.items()},
    )
