"""Stop a job with a checkpoint, so that it can be started again: what live migration is measured against. A baseline.

In: a running job. Out: the rules by which the next one goes on from there. `bench rescale` and `bench hot-server`.
"""

from springtide.checkpoint.format import reader
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.testing.cluster import LocalCluster

EVERY_S = 3600.0
"""Between checkpoints that nobody asks for: none of them falls into what is measured."""


def stop(job: LocalCluster) -> CheckpointRules:
    """Let workers finish the batch in hand, write the last checkpoint, end all processes."""
    job.stop("to be started again")
    last = job.wait().checkpoint
    folder = str((job.files.root / "checkpoints").absolute())
    run = reader.read(folder, last).run
    return CheckpointRules(every_s=EVERY_S, resume=folder, resume_number=last, resume_run=run)
