"""The step of a worker that trains at its own pace, in an async job or without a cluster.

In: calls of worker/step/step.py. Out: one push per step, identified by the step's batches. The next push waits until
this push is done. With a bound on staleness, the master decides when the worker may read values. Next: dense.py.
"""

import logging
from collections.abc import Sequence

import torch

from springtide import errors
from springtide.embedding.lookup.table_client import SentPush
from springtide.worker.input.batch_plan import ReadBatch
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step.step import PushBatches, StepContext, TrainingStep, UnsteppedGradients

log = logging.getLogger(__name__)


class AsyncStep(TrainingStep):
    """Step that pushes the gradients of this worker alone."""

    def __init__(
        self,
        context: StepContext,
        own: Sequence[torch.optim.Optimizer],
        *,
        served: bool,
        named: bool,
        max_staleness: int | None = None,
        unstepped: UnsteppedGradients | None = None,
    ) -> None:
        """Create the step. `served`: True if servers hold the tables and dense parameters."""
        ahead = served and max_staleness is None
        super().__init__(context, own, fixed=served, ahead=ahead, named=named)
        self.age = self._client.age
        self._max_staleness = max_staleness
        """Maximum number of other pushes between this worker's read of values and its push; None for no limit."""
        self._entered = False
        """Whether the master has allowed this worker to read values."""
        self._unstepped = unstepped
        self._pending: SentPush | None = None
        self._under_way: list[BatchClaim] = []

    def hand_out(self, now: ReadBatch, following: ReadBatch | None) -> None:
        self._due = now.order.last
        self._batches.add(now)
        began = self._context.meter.clock()
        self._enter()
        self._prefetcher.hand_out(now, following, began)

    def on_batch_done(self) -> None:
        # only some of the optimizers have stepped, so push their gradients without waiting for the remaining ones
        if self._stepped:
            self._send()
        elif self._unstepped is not None and self._due and self.named and self._batches.ranges:
            self._unstepped.refuse()
            # the loop skipped this batch; push it alone, because servers may apply only a part of a push of several
            # batches
            self._send()

    def pause(self) -> None:
        if self._stepped or self._batches.ranges:
            self._send()
        self._await_push()

    def rest(self) -> None:
        self._await_push()

    def skip(self, now: ReadBatch) -> None:
        batches = PushBatches()
        batches.add(now)
        self._await_push()
        self._pending, self._under_way = self._push([], batches, []), batches.claims
        self.count += 1

    def _send_gradients(self, stepped: list[JobOptimizer]) -> None:
        context, batches = self._context, self._batches
        skip, self._skip = self._skip, False
        skip = context.dense.agree(share=batches.share, skip=skip) or not stepped
        rows = [] if skip else self._gradients.parts(stepped)
        self._await_push()  # meanwhile, a GPU copies the gradients of the rows
        hyper = [] if skip else context.rates.now(stepped)
        self._pending = self._push([] if skip else [*rows, *context.dense.parts(stepped)], batches, hyper)
        self._batches, self._under_way = PushBatches(), batches.claims
        self.count += 1
        if not skip:
            context.dense.update(stepped, self._gradients.weights)
        if self._entered:
            self._await_push()
            self._leave()
        if self._unstepped is not None:
            self._unstepped.clear()
        self._end_step(batches.samples)

    def _end_pass(self, *, early: bool) -> None:
        self._await_push()
        self._leave()

    def _drop_unstepped(self) -> None:
        keep = bool(self._stepped)
        super()._drop_unstepped()
        if not keep and self._due and self._unstepped is not None:
            self._forget_gradients()

    def _enter(self) -> None:
        """Wait until this worker may read values. Several batches that are summed in one push count as one batch."""
        if self._max_staleness is not None and not self._entered:
            self._context.link.group.enter(self._max_staleness)
            self._entered = True
            self._context.dense.settle()

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            self._context.link.group.leave()

    def _await_push(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            torn = self._is_torn(pending)
            claims, self._under_way = self._under_way, []
            if not torn:
                self._context.link.leases.tracker.acknowledge(claims)
                self._context.listener.on_trained(claims)

    def _is_torn(self, pending: SentPush) -> bool:
        """Wait for a push. Return True if servers refused the push because another worker now holds its batches."""
        try:
            pending.wait()
        except errors.PartlyApplied as error:
            if not self._context.listener.on_torn(self._under_way):
                raise
            log.info("the servers refused a batch that another worker holds now: %s", error)
            return True
        return False
