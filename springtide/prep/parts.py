"""What becomes of a forward: `Split` in two parts, or `Unsplit`, each with its explanation.

Made by: prep/trial.py. Used by: train/splitting.py, which sends the stages to data workers and runs the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from springtide.prep.explain import Explanation
from springtide.prep.stage import Stage
from springtide.prep.staleness import Watch


@dataclass(frozen=True, slots=True)
class Split:
    """A forward in two parts."""

    stages: tuple[Stage, ...]
    """The first takes the list of the model's input leaves, each the list that the one before made; the last one's list
    crosses. None instead of a list: this batch is not of the kind that was captured, run the model's own forward."""
    rest: Callable[[Sequence[Any], Sequence[Any]], Any]
    """(crossing, leaves) -> what forward returns; of the leaves only those in `needs` are read."""
    needs: frozenset[int]
    """Numbers of the input leaves that `rest` reads."""
    explanation: Explanation
    digest: str
    """Equal on every worker that captured the same program and cut it alike."""
    watch: Watch

    def stale(self) -> str:
        """Empty, or what has changed in the model since, so that crossing values are no longer right."""
        return self.watch.changed()

    def crossing(self, leaves: Sequence[Any]) -> list[Any] | None:
        """All stages, in this process."""
        made: Any = list(leaves)
        for stage in self.stages:
            made = None if made is None else stage.run(made)
        return None if made is None else list(made)


@dataclass(frozen=True, slots=True)
class Unsplit:
    """A forward that stays whole, and why."""

    explanation: Explanation
