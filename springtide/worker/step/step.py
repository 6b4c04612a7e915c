"""Common part of every training step: takes batches, collects the optimizers that step, and sends one push for all
of them.

In: the loop's batch from worker/input/batches.py, and calls of worker/link/optimizer.py when an optimizer steps.
Out: gradients for tables and dense parameters. Next: async_step.py (each worker alone) or bsp_step.py (all ranks
together).
"""

import abc
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from springtide import errors
from springtide.embedding.device.request_line import LatePart
from springtide.embedding.lookup.lookup import LookupHandle, Lookups
from springtide.embedding.lookup.table_client import RowGradients, SentPush
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.modules import optimizers
from springtide.worker.input.batch_plan import ReadBatch
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.link.master_link import MasterLink
from springtide.worker.link.optimizer import JobOptimizer, unscale
from springtide.worker.link.progress import StepMeter
from springtide.worker.step.dense import Dense, check_finite
from springtide.worker.step.hyperparams import Hyper, TableRates

Name = tuple[int, int, int, int]
"""Identity of a batch: number of samples in the whole shard (0 if unknown), shard, first sample, and number of
samples."""


class StepListener:
    """Listener that learns what happened to batches. This base class ignores all events. The feed of a stream overrides
    its methods.
    """

    def on_trained(self, claims: Sequence[BatchClaim]) -> None:
        """Handle batches that all servers have applied."""

    def on_torn(self, claims: Sequence[BatchClaim]) -> bool:
        """Handle batches that the servers have applied only in part. Return True if this worker no longer holds the
        lease of these batches.
        """
        return False

    def row_clock(self) -> int | None:
        """Return the clock with which the age of rows is measured; None means that the step number is used."""
        return None


@dataclass(frozen=True, slots=True)
class StepContext:
    """Parts of a prepared model that a step uses."""

    lookups: Lookups
    tables: Sequence[ServedTable]
    dense: Dense
    rates: TableRates
    link: MasterLink
    meter: StepMeter
    on_step: Callable[[], None]
    """Function that is called after every step."""
    listener: StepListener


class TableGradients:
    """Gradients of table rows for a push."""

    def __init__(self, context: StepContext) -> None:
        self._lookups, self._rates = context.lookups, context.rates
        self._named = [(f"table {table.name!r}", table.weight) for table in context.tables]
        self.weights = [table.weight for table in context.tables]

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[RowGradients]:
        for weight in self._rates.idle_weights(stepped):
            weight.grad = None  # no optimizer of this table has stepped, so the push does not include its gradient
        parts = self._lookups.pending_parts()
        for part in parts:
            if isinstance(part, LatePart):
                part.begin_copy()  # the end of the copy checks these gradients
            elif not part.finite():
                check_finite(self._named)
        return parts


class RowPrefetcher:
    """Requests the rows of a batch, and also the rows of the next batch if rows may be read ahead."""

    def __init__(self, lookups: Lookups, meter: StepMeter, *, ahead: bool) -> None:
        self._lookups, self._meter, self._ahead = lookups, meter, ahead
        self._expected: tuple[Any, LookupHandle] | None = None

    def hand_out(self, now: ReadBatch, following: ReadBatch | None, began: float) -> None:
        """Request the rows of `now`, and then the rows of `following`. `began` is the time before the requests."""
        if self._expected is not None and self._expected[0] is now.batch:
            handle = self._expected[1]
        else:
            handle = self._lookups.prefetch(now.seen, after_step=self._lookups.after_step)
        self._expected = None
        if self._ahead and following is not None:
            self._expected = (following.batch, self._lookups.prefetch(following.seen))
        self._lookups.begin(handle)
        self._meter.looked_up(self._meter.clock() - began)
        self._meter.handed_out()

    def drop(self) -> None:
        self._expected = None


@dataclass(slots=True)
class PushBatches:
    """Batches that the loop has received since the last push."""

    ranges: list[Name] = field(default_factory=list)
    samples: int = 0
    counting: int = 0
    """Number of samples with which the gradients are weighted; borrowed samples do not count."""
    group_samples: float = 0.0
    claims: list[BatchClaim] = field(default_factory=list)

    def add(self, handed: ReadBatch) -> None:
        """Add a batch that the loop received. Adjacent parts of one batch share one identity and one claim."""
        order = handed.order
        for part in order.ranges:
            match self.ranges[-1:]:
                case [(samples, shard, first, count)] if (shard, first + count) == (part.shard, part.first):
                    self.ranges[-1] = (samples, shard, first, count + part.count)
                case _:
                    self.ranges.append((part.shard_samples, part.shard, part.first, part.count))
        self.samples += order.samples
        self.counting += 0 if order.borrowed else order.samples
        self.group_samples += order.samples / order.share
        if order.claim is not None and self.claims[-1:] != [order.claim]:
            self.claims.append(order.claim)

    @property
    def share(self) -> float:
        return self.counting / self.group_samples if self.group_samples else 1.0


class TrainingStep(abc.ABC):
    """Step that collects the loop's batches and optimizers, and pushes the result. Each `job.prepare` has one such
    step.
    """

    def __init__(
        self, context: StepContext, own: Sequence[torch.optim.Optimizer], *, fixed: bool, ahead: bool, named: bool
    ) -> None:
        """Create the step. `own` has the user's optimizers. With `fixed`, no optimizer may get more parameters."""
        for optimizer in own:
            optimizers.keep_loaded_sums(optimizer)
        self.optimizers = [
            JobOptimizer(optimizer, self.apply, fixed=fixed, tables=context.rates.weights) for optimizer in own
        ]
        self.count = 0
        """Number of pushes so far."""
        self.age = 0
        """Age clock of the servers before the first push. In a bsp group, `count` goes on instead."""
        self.named = named
        """Whether pushes carry the identities of their batches."""
        self._context = context
        self._client = context.lookups.client
        self._gradients = TableGradients(context)
        self._prefetcher = RowPrefetcher(context.lookups, context.meter, ahead=ahead)
        self._due = True
        """Whether the current batch completes a step."""
        self._again = False
        """Whether the current batch is already trained, so that its steps are dropped."""
        self._skip = False
        """Whether to skip the step, because a GradScaler found an infinity."""
        self._stepped: list[JobOptimizer] = []
        self._batches = PushBatches()

    @property
    def seat(self) -> tuple[int, int]:
        return (0, 1)

    # ---- calls of the loop's batches ----

    @abc.abstractmethod
    def hand_out(self, now: ReadBatch, following: ReadBatch | None) -> None:
        """Prepare `now` for the loop. `following` has already been read."""

    @abc.abstractmethod
    def on_batch_done(self) -> None:
        """Finish the current batch when the loop asks for its next batch."""

    @abc.abstractmethod
    def skip(self, now: ReadBatch) -> None:
        """Push a batch without trainable samples alone, because servers may apply only a part of a push of several
        batches."""

    def pause(self) -> None:
        """Push all batches that the loop has received so far. No batch is available at the moment, and other workers
        may wait for this worker's batches before they can end the pass.
        """
        return

    def rest(self) -> None:
        """Wait for the last push. No batch is available at the moment, but more will come."""
        return

    def regroup(self, generation: int) -> None:
        return

    def flush_now(self) -> None:
        return

    def retire(self) -> None:
        """Handle the successful end of the script."""
        return

    def hand_again(self, batch: Any) -> None:
        """Prepare a batch that was already trained, for a loop without batches (worker/input/batches.py)."""
        self._again = self._due = True
        self._context.lookups.learn(batch)

    def take_again(self) -> None:
        self._again = False
        self._forget_gradients()

    def close_pass(self, *, early: bool) -> None:
        """Apply all outstanding steps, and then return. An empty push names the batches for which the loop made no
        step. If the loop ended `early`, the current batch does not count, because it is not trained.
        """
        if early:
            self._drop_unstepped()
        if self._stepped or self._batches.ranges:
            self._send()
        self._end_pass(early=early)
        self._prefetcher.drop()
        self._context.dense.settle()
        self._context.link.leases.tracker.release_all()

    def apply(self, optimizer: JobOptimizer) -> None:
        """Record that one optimizer steps. The last optimizer triggers the push."""
        if self._again:
            optimizer.bring_back()
            return
        if not self._due:
            raise errors.BadInput(
                "optimizer.step() in the middle of a sum: with accumulate=, gradients are pushed after the last part "
                "of a batch. Call step() where batches.completes_step is true"
            )
        if optimizer in self._stepped:
            self._send()
        self._skip |= unscale(optimizer)
        self._stepped.append(optimizer)
        if len(self._stepped) == len(self.optimizers):
            self._send()

    # ---- the push ----

    @abc.abstractmethod
    def _send_gradients(self, stepped: list[JobOptimizer]) -> None:
        """Push the gradients of these optimizers with the current batches."""

    @abc.abstractmethod
    def _end_pass(self, *, early: bool) -> None:
        """Wait for all pushes."""

    def _drop_unstepped(self) -> None:
        if not self._stepped:
            self._batches, self._skip = PushBatches(), False
            if not self._due:
                self._forget_gradients()

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self._context.lookups.clear()

    @property
    def rates(self) -> TableRates:
        return self._context.rates

    def _send(self) -> None:
        self._context.meter.step_began()
        stepped, self._stepped = self._stepped, []
        newer = [optimizer.bring_back() for optimizer in stepped]
        try:
            self._send_gradients(stepped)
        finally:
            for param, grad in itertools.chain.from_iterable(newer):
                param.grad = grad

    def _push(
        self, parts: Sequence[Any], batches: PushBatches, hyper: Sequence[Hyper], *, bsp: bool = False
    ) -> SentPush:
        clock = self._context.listener.row_clock()
        return self._client.push(
            parts,
            step=self.count + 1,
            hyper=hyper,
            bsp=bsp,
            batches=batches.ranges if self.named else (),
            clock=self.age + self.count + 1 if clock is None else clock,
        )

    def _end_step(self, samples: int) -> None:
        self._context.lookups.clear()
        self._context.meter.step_done(samples=samples)
        self._context.on_step()


class UnsteppedGradients:
    """Detects gradients that the loop has computed but not stepped. Each async job has one such detector."""

    def __init__(self, lookups: Lookups, dense: Iterable[torch.Tensor], *, tables: bool) -> None:
        """Watch for gradients of table rows. In a model without tables, watch for gradients of `dense` parameters."""
        self._lookups = lookups
        # hooks refer only to this set, because a hook that refers to the job would keep the job in memory
        touched: set[int] = set()
        self._touched = touched
        self._dense = [] if tables else list(dense)
        for param in self._dense:
            param.register_post_accumulate_grad_hook(lambda param: touched.add(id(param)))

    def clear(self) -> None:
        self._touched.clear()

    def refuse(self) -> None:
        """Raise BadInput for gradients without a step. A sum over several batches needs one common identity
        (`accumulate=`); without a common identity, servers could apply only a part of the sum."""
        touched = [param.grad for param in self._dense if id(param) in self._touched and param.grad is not None]
        values = [grad.coalesce().values() if grad.is_sparse else grad for grad in touched]
        if any(bool(value.any()) for value in values) or self._lookups.pending_parts():
            raise errors.BadInput(
                "the loop asks for the next batch with gradients for which it did not call optimizer.step(). To sum "
                "gradients of several batches, use job.prepare(..., accumulate=4), and call optimizer.step() where "
                "batches.completes_step is true: the sum is then trained exactly once, even if a worker is lost. "
                "To skip a batch, call optimizer.zero_grad()"
            )
