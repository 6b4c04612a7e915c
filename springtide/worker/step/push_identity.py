"""Identities and leases of the batches that one push trains.

In: batches handed to the loop. Out: identities for the push, claims to acknowledge, and whether the loop holds
gradients without a step. Next: step.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from springtide import errors
from springtide.embedding.lookup.lookup import Lookups
from springtide.worker.input.read_batch import ReadBatch
from springtide.worker.link.lease_tracker import BatchClaim

Name = tuple[int, int, int, int]
"""Identity of a batch: samples of the whole shard (0 if unknown), shard, first sample, and number of samples."""


@dataclass(slots=True)
class PushBatches:
    """Batches handed out since the last push."""

    ranges: list[Name] = field(default_factory=list)
    samples: int = 0
    counting: int = 0
    """Number of samples that weight the gradients; borrowed samples do not count."""
    group_samples: float = 0.0
    claims: list[BatchClaim] = field(default_factory=list)

    def add(self, handed: ReadBatch) -> None:
        """Add a batch that the loop received. Adjacent parts of one batch share one identity and one claim."""
        order = handed.order
        for one in order.ranges:
            samples, shard, first, count = self.ranges[-1] if self.ranges else (0, -1, -1, 0)
            if (shard, first + count) == (one.shard, one.first):
                self.ranges[-1] = (samples, shard, first, count + one.count)
            else:
                self.ranges.append((one.shard_samples, one.shard, one.first, one.count))
        self.samples += order.samples
        self.counting += 0 if order.borrowed else order.samples
        self.group_samples += order.samples / order.share
        if order.claim is not None and self.claims[-1:] != [order.claim]:
            self.claims.append(order.claim)

    @property
    def share(self) -> float:
        return self.counting / self.group_samples if self.group_samples else 1.0


class UnsteppedGradients:
    """Detector of gradients that the loop has computed without a step, one per async job."""

    def __init__(self, lookups: Lookups, dense: Iterable[torch.Tensor], *, tables: bool) -> None:
        """Watch for gradients. `dense` parameters are watched only without tables, because gradients of rows suffice
        otherwise.
        """
        self._lookups = lookups
        touched = self._touched = set[
            int
        ]()  # hooks reference only this set, so that a model does not keep its job alive
        self._dense = [] if tables else list(dense)
        for param in self._dense:
            param.register_post_accumulate_grad_hook(lambda param: touched.add(id(param)))

    def clear(self) -> None:
        self._touched.clear()

    def refuse(self) -> None:
        """Raise BadInput for gradients without a step, because a sum without a common identity could be applied in
        part.
        """
        touched = [param.grad for param in self._dense if id(param) in self._touched]
        if any(grad is not None and is_some(grad) for grad in touched) or self._lookups.pending_parts():
            raise errors.BadInput(
                "the loop asks for the next batch with gradients that it has not stepped on. To add up those of "
                "several batches, say how many, job.prepare(..., accumulate=4), and call optimizer.step() where "
                "batches.completes_step is true: then a sum is trained once and as a whole, whichever worker is lost. "
                "To pass over a batch, call optimizer.zero_grad()"
            )


def is_some(grad: torch.Tensor) -> bool:
    return bool((grad.coalesce().values() if grad.is_sparse else grad).any())
