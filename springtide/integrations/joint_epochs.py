"""Epochs of a framework's loop in a job: they begin on all workers, or on none.

In: each worker's decision to continue or to end the training. Out: whether the next epoch begins. As soon as one worker
ends the training, all workers end after their current epoch. Next: worker/job.py.
"""

import logging

from springtide.worker.job import Job

log = logging.getLogger(__name__)


class JointEpochs:
    """Epochs of one training."""

    def __init__(self, job: Job, total: int) -> None:
        self._job, self._epochs = job, job.epochs(total)
        self.ended = False
        """Whether a different worker has ended the training."""

    def begin(self) -> bool:
        """Begin an epoch. Return False if a different worker has ended the training. End the script of a worker that
        must leave.
        """
        if next(self._epochs, None) is None:
            raise SystemExit(0)
        self.ended = not self._job.reduce(True, "min")
        if self.ended:
            log.info("training ends, because another worker has ended it")
        return not self.ended

    def end(self) -> None:
        """End the training on all workers."""
        next(self._epochs, None)
        if not self.ended:
            self._job.reduce(False, "min")
