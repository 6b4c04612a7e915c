"""The result for a forward: `Split` in two parts, or `Unsplit`, each with its explanation.

Made by: dataworker/split/search/split.py. Used by: worker/split/controller.py, which sends the stages to data workers,
and worker/split/split_forward.py, which runs the user's forward with their results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from springtide.dataworker.feed.stage import PipelineStage
from springtide.dataworker.split.program.call_replay import CallReplay
from springtide.dataworker.split.search.report import Explanation


@dataclass(frozen=True, slots=True)
class Split:
    """A forward in two parts."""

    stages: tuple[PipelineStage, ...]
    """The first takes the list of the model's input leaves, each the list that the one before made; the last one's list
    crosses. None instead of a list: this batch is not of the kind that was recorded, run the model's own forward."""
    answering: CallReplay
    """Runs the model's own forward with what crossed."""
    needs: frozenset[int]
    """Numbers of the input leaves that the trainer still reads."""
    explanation: Explanation
    digest: str
    """Equal on every worker that recorded the same program and cut it alike."""
    threads: int = 0
    """So many threads of torch's are taken for granted; 0: any number."""

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
