"""Pipeline of stages that data workers run: from sample indices to the data that a trainer needs.

In: data/source.py reads samples. dataworker/split/search/split.py finds further work that does not depend on
parameters. Out: a `Pipeline`, which travels to data workers in the job's package (dataworker/processes/job_package.py).
Next: dataworker/feed/worker.py runs a single stage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage of the pipeline, which runs on a single kind of device."""

    name: str
    run: Callable[[Any], Any]
    """Function of this stage. The first stage takes an int64 array of sample indices; each later stage takes the
    previous result.

    The result is a tree: tuples, lists, dicts, named tuples and dataclasses of tensors, arrays, numbers and strings.
    """
    device: Device = "cpu"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All stages of a job in order. Trainers get the result of the last stage."""

    stages: tuple[PipelineStage, ...]

    def __call__(self, indices: Any) -> Any:
        """Run all stages in this process."""
        made = indices
        for stage in self.stages:
            made = stage.run(made)
        return made
