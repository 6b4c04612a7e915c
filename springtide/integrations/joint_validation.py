"""Validation that the workers of a job share in a framework's loop: each worker validates a part of the data.

In: validation data, and what each worker found in its part. Out: the part of this worker, and what was found in the
whole data. A worker that joined after the data was divided has no part. Next: worker/job.py gathers the values.
"""

import copy
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.data import shards
from springtide.worker.job import Job

MOST_BYTES = 8 * 2**20 - 2**16
"""Largest values of all workers together that a job passes on, less room for their headers."""


class Seat(NamedTuple):
    """This worker's index among the workers that divide a validation."""

    place: int | None
    """None for a worker that has no part."""
    workers: int

    def part(self, count: int) -> range:
        """Return the positions of this worker's part of a sequence."""
        if self.place is None:
            return range(0)
        return range(count)[shards.rank_part(count, rank=self.place, workers=self.workers)]


def seat(job: Job) -> Seat:
    """Agree on the workers that divide the next validation."""
    ranks = job.gather(job.rank)
    return Seat(ranks.index(job.rank) if job.rank in ranks else None, len(ranks))


def gather(job: Job, value: Any) -> list[Any] | None:
    """Return the values of all workers; return None if the values are too large to send, or of a kind that a job cannot
    send.
    """
    try:
        size = len(state_image.encode_state(value))
    except errors.BadInput:
        size = MOST_BYTES + 1
    return None if job.reduce(size) > MOST_BYTES else job.gather(value)


def is_divisible(loader: Any) -> bool:
    """Return whether a part of the DataLoader's samples, in batches of its size, is a part of its validation."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and type(loader.batch_sampler) is BatchSampler
        and isinstance(loader.sampler, SequentialSampler | RandomSampler)
        and not loader.drop_last
    )


def with_samples(loader: Any, positions: range) -> Any:
    """Return a DataLoader as this one, over some of its samples, in order."""
    part = copy.copy(loader)
    # a DataLoader refuses to change these attributes, but this copy was not used yet
    part.__dict__["sampler"] = positions
    part.__dict__["batch_sampler"] = BatchSampler(positions, loader.batch_size, drop_last=False)
    part.__dict__["_iterator"] = None
    return part
