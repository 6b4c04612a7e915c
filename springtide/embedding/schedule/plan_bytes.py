"""Pure. Count the bytes that the plans of one step send, with caches and without.

A row that travels with its optimizer state takes more bytes than its value alone. In: the plans of
`scheduler.Scheduler`, one per rank, and the row sizes of each table. Out: a `PlanVolume`. Next:
`worker.cache.row_cache` compares the volumes before caches start. `embedding.schedule.sync_plan` counts rows instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KEY = 10  # bytes that identify a row to a server: its key and its table
SAID = 4  # bytes of the presence flag before a row or gradient between workers


class RowSize(NamedTuple):
    """Bytes of a row of one table, without its key."""

    value: int
    """Bytes of the weights, or of their gradient."""
    image: int
    """Bytes of the weights and the optimizer state."""


class PlanVolume(NamedTuple):
    """Bytes that all ranks send together."""

    with_caches: int
    without: int


def volume(plans: Sequence[Any], sizes: Mapping[int, RowSize]) -> PlanVolume:
    """Return the bytes that these `_native.CachePlan`s send, and the bytes of the same samples without caches."""
    tables = max(sizes, default=-1) + 1
    value, image = (np.array([sizes.get(id, RowSize(0, 0))[kind] for id in range(tables)], np.int64) for kind in (0, 1))

    def count(named: Iterable[tuple[Any, Any]]) -> NDArray[np.int64]:
        total = np.zeros(tables, np.int64)
        for ids, _ in named:
            total += np.bincount(np.asarray(ids, np.int64), minlength=tables)
        return total

    def rows(name: str) -> NDArray[np.int64]:
        return count(getattr(plan, name) for plan in plans)

    def passed(name: str) -> NDArray[np.int64]:
        return count(keys for plan in plans for _, keys in getattr(plan, name))

    read = rows("pass_hit") + rows("pass_pull")
    valued, given = passed("value_receives"), passed("gradient_sends")
    pushed = read - (given - valued)
    held = rows("hold_hit") + rows("hold_pull") + passed("receives")
    sums = (
        ((rows("hold_pull") + rows("write_back")) * (KEY + image)).sum()
        + ((rows("pass_pull") + pushed) * (KEY + value)).sum()
        + (passed("sends") * (SAID + image)).sum()
        + (passed("value_sends") * value).sum()
        + (given * (SAID + value)).sum()
    )
    return PlanVolume(int(sums), int((2 * (held + valued + read) * (KEY + value)).sum()))
