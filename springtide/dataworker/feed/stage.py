"""What a data worker runs: a pipeline of stages from sample indices to what a trainer needs of a batch.

In: data/source.py reads samples, dataworker/split/search/split.py finds what else does not depend on parameters. Out: a
`Pipeline`, which travels to data workers in the job's package (dataworker/processes/job_package.py). Next:
dataworker/feed/worker.py runs one stage of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One step of the way that runs on one kind of device."""

    name: str
    run: Callable[[Any], Any]
    """The first stage is given an array of sample indices (int64), any other what the one before has made.

    It gives back a tree: tuples, lists, dicts, named tuples and dataclasses of tensors, arrays, numbers and strings.
    """
    device: Device = "cpu"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All stages of a job, first to last: what the last one makes goes to the trainers."""

    stages: tuple[PipelineStage, ...]

    def __call__(self, indices: Any) -> Any:
        """All of it in this process: what data workers would have made of these samples."""
        made = indices
        for stage in self.stages:
            made = stage.run(made)
        return made
