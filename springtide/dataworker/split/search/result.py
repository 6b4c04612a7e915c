"""The result of a split search: `Split` in two parts, or `Unsplit`, each with its explanation.

Made by: dataworker/split/search/split.py. Used by: worker/split/controller.py, which sends the stages to data workers,
and worker/split/split_forward.py, which runs the user's forward with their results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from springtide.dataworker.feed.worker import PipelineStage
from springtide.dataworker.split.program.call_replay import CallReplay
from springtide.dataworker.split.search.report import Explanation


@dataclass(frozen=True, slots=True)
class Split:
    """A forward in two parts."""

    stages: tuple[PipelineStage, ...]
    """Programs for data workers. The first takes the list of input leaves. Each later program takes the list of the
    program before it. The last list goes to the trainer. A program returns None if the batch differs from the
    recording; the trainer then runs the model's own forward.
    """
    answering: CallReplay
    """Replay that runs the model's own forward with the values from data workers."""
    needs: frozenset[int]
    """Numbers of the input leaves that the trainer still reads."""
    explanation: Explanation
    digest: str
    """Digest that is equal on all workers with the same program and cut."""
    threads: int = 0
    """Required number of torch threads; 0 for any number."""

    def crossing(self, leaves: Sequence[Any]) -> list[Any] | None:
        """Run all stages in this process."""
        made: Any = list(leaves)
        for stage in self.stages:
            made = None if made is None else stage.run(made)
        return None if made is None else list(made)


@dataclass(frozen=True, slots=True)
class Unsplit:
    """A forward that stays whole, with the reason."""

    explanation: Explanation
