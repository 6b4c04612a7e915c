"""The step of a bsp group. All ranks sum their gradients, push them, and apply the step when all servers have it.

In: calls of worker/step/step.py. Out: the training step, equal on every rank. If a member is lost, the next group
repeats the step. Next: worker/bsp/group.py, worker/cache/coordinator.py, worker/bsp/batch_order.py. Design:
docs/design/training.md.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from springtide import _native, errors
from springtide.embedding.lookup.row_gradients import DeviceGradients
from springtide.embedding.lookup.table_client import SentPush
from springtide.worker.bsp.batch_order import UnitGradients
from springtide.worker.bsp.group import BspGroup, DataPosition
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input.batch_plan import ReadBatch
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step.hyperparams import Hyper
from springtide.worker.step.step import PushBatches, StepContext, TrainingStep

log = logging.getLogger(__name__)


class BspStep(TrainingStep):
    """Step that all ranks of a group take together."""

    def __init__(
        self,
        context: StepContext,
        own: Sequence[torch.optim.Optimizer],
        group: BspGroup,
        *,
        coordinator: CacheCoordinator | None,
        units: UnitGradients | None,
        named: bool,
    ) -> None:
        """Create the step. `coordinator` allocates batches and caches rows, and `units` sums gradients in the order of
        the batch."""
        super().__init__(context, own, fixed=False, ahead=False, named=named)
        self._group, self._coordinator, self._units = group, coordinator, units
        self._applying: _native.Pending | None = None
        self._unconfirmed: tuple[int, SentPush] | None = None
        """The last step and its push, if this rank did not wait for the servers after it."""
        self._finish: Callable[[], None] | None = None
        """Function that finishes the current step once it is complete on all servers."""
        self._position = DataPosition()
        self._counted: set[int] = set()
        """Ids of the optimizers whose count includes the current step."""

    @property
    def seat(self) -> tuple[int, int]:
        return self._group.place.rank, self._group.place.workers

    def hand_out(self, now: ReadBatch, following: ReadBatch | None) -> None:
        self._due = now.order.last
        if now.unit is None or now.unit.first:
            self._batches.add(now)
            if self._coordinator is not None:
                self._coordinator.hand_out(now, self.count + 1)
        if self._units is not None and now.unit is not None:
            self._units.begin(now.unit)
        self._prefetcher.hand_out(now, following, self._context.meter.clock())

    def on_batch_done(self) -> None:
        """Push the gradients of optimizers that have stepped. The group may pause here for a checkpoint."""
        if self._stepped:
            self._send()
        if self._units is not None and not self.idle:
            self._units.check_kept()
            return
        if self._coordinator is not None and not self.idle and self._coordinator.bound:
            self._flush_caches()
            self._coordinator.accumulated()
        if self.idle and self._group.save_due:
            self._confirm()
            self._write_back()
        if self.idle and not self.bound:
            self._group.keep(self, self._applying)

    def skip(self, now: ReadBatch) -> None:
        """Make a step that trains nothing. All ranks then skip the batch, even if one rank could read some of its
        samples.
        """
        batches = PushBatches()
        batches.add(now)
        self._step_aside(batches)

    def flush_now(self) -> None:
        if (self._coordinator is not None or self._client.ahead_of_servers) and not self.idle:
            raise errors.BadInput(
                "job.flush() in the middle of a step, which trains rows. Call it right after optimizer.step()"
            )
        self.flush()

    def flush(self) -> None:
        """Write all rows that only workers have to the servers."""
        self._confirm()
        self._flush_caches()
        self._write_back()

    def _flush_caches(self) -> None:
        """Write all cached rows to the servers, in a separate step that every rank must take."""
        if self._coordinator is not None and not self._coordinator.clean:
            self._step_aside(PushBatches())

    def _write_back(self) -> None:
        """Write changed rows in GPU memory to the servers, in separate steps. The group has only this rank."""
        if not self._client.ahead_of_servers:
            return
        self._context.dense.settle()  # raise an error for a bad gradient before the rows are saved
        for parts in self._client.changed_parts():
            before = self.count
            self._step_aside(PushBatches(), parts)
            if self.count == before:  # the job stops
                return

    def regroup(self, generation: int) -> None:
        if self._group.place.generation == generation:
            self._confirm()
            self._write_back()
            self._context.lookups.release()
            self._group.form(self)
            if self._coordinator is not None:
                self._coordinator.restart(self._group.place)

    def pause(self) -> None:
        self._confirm()

    def rest(self) -> None:
        self._confirm()

    def retire(self) -> None:
        self._confirm()
        self._group.rest(self)

    # ---- calls of the group ----

    @property
    def idle(self) -> bool:
        return self._finish is None and not self._batches.ranges

    @property
    def bound(self) -> bool:
        """Return True while the loss of any rank would lose cached rows, or the rank's part of the current batch.

        A batch without a lease is of an IterableDataset, in which a next life cannot find the group's position.
        """
        unleased = bool(self._batches.ranges) and not self._batches.claims
        cached = self._coordinator is not None and self._coordinator.bound
        return unleased or cached or self._client.ahead_of_servers

    def catch_up(self, step: int) -> None:
        """If the current step is complete on all servers, count it and apply its dense part."""
        finish = self._finish
        if finish is not None and step > self.count:
            self._finish = None
            finish()

    def position(self) -> DataPosition:
        claims = self._batches.claims
        return DataPosition(claims[0].shard, claims[0].begin) if claims else self._position

    def counts(self) -> list[int]:
        rates = self._context.rates
        return [
            count - (id(optimizer) in self._counted)
            for optimizer, count in zip(rates.optimizers, rates.steps, strict=True)
        ]

    def begin_at(self, step: int, position: DataPosition, counts: list[int]) -> None:
        """Continue after `step`, at which this rank joins the group."""
        self._context.rates.steps = counts
        self.count = self._context.lookups.after_step = step
        self._position = position
        self._context.link.leases.tracker.skip_to(position.shard, position.first)

    # ---- the step ----

    def _send_gradients(self, stepped: list[JobOptimizer]) -> None:
        if self._units is not None and not self._keep_unit(self._units, stepped):
            return
        skip, self._skip = self._skip, False
        batches = self._batches
        self._step_together(stepped, batches, skip)
        self._end_step(batches.samples)

    def _keep_unit(self, units: UnitGradients, stepped: list[JobOptimizer]) -> bool:
        """Keep the gradients of a unit. Return True for the last unit of this rank's part."""
        parts = [] if self._skip else self._table_parts(stepped, units.share)
        last = units.keep(stepped, parts)
        self._context.lookups.clear()
        return last

    def _table_parts(self, stepped: list[JobOptimizer], share: float) -> list[_native.StepRows]:
        parts: list[Any] = self._gradients.parts(stepped)
        if share != 1.0:
            for part in parts:
                part.scale(share) if isinstance(part, DeviceGradients) else torch.from_numpy(part.grads()).mul_(share)
        return parts

    def _step_aside(self, batches: PushBatches, images: Sequence[Any] = ()) -> None:
        in_hand, number = self._batches, self.count + 1
        self._step_together([], batches, True, empty=True, images=images)
        if self.count == number:  # if the job stops, the step does not count, and the current batch remains untrained
            self._batches = in_hand

    def _step_together(
        self,
        stepped: list[JobOptimizer],
        batches: PushBatches,
        wants_skip: bool,
        *,
        empty: bool = False,
        images: Sequence[Any] = (),
    ) -> None:
        """All-reduce, push, and apply the step when all servers have it. If a member is lost, repeat the step."""
        self._confirm()
        number, again = self.count + 1, False
        rows: list[Any] | None = None
        hyper: list[Hyper] = []
        context, coordinator, units = self._context, self._coordinator, self._units
        if coordinator is not None:
            coordinator.set_words(empty=empty)
        while self.count < number:
            try:
                skip = context.dense.agree(share=batches.share, skip=wants_skip, again=again) or not stepped
                if coordinator is not None:
                    coordinator.apply_verdict(number)
                # collect rows only once, because collecting scales the gradients in place
                if rows is None and not skip:
                    rows = self._table_parts(stepped, batches.share) if units is None else []
                    hyper = context.rates.now(stepped)
                    self._counted = {id(optimizer.own) for optimizer in stepped}
                if units is not None and not skip:
                    rows = units.parts()  # compute the sums again for each group, because they depend on the group
                pushed, on_device = ([], []) if skip else by_memory(rows or [])
                if coordinator is not None:
                    coordinator.share_gradients(number, pushed)
                train = functools.partial(self._client.train, on_device, hyper)
                self._finish = functools.partial(self._count_step, number, stepped, batches, skip, train)
                parts = images if skip else [*pushed, *context.dense.parts(stepped)]
                pending = self._push(parts, batches, [] if skip else hyper, bsp=True)
                if not skip and context.lookups.all_on_device:
                    self._unconfirmed = number, pending
                else:
                    pending.wait()
                    self._group.await_complete(number)
                self.catch_up(number)
                if coordinator is not None:
                    coordinator.stepped(number, empty=empty)
            except errors.GroupChanged as changed:
                log.warning("step %d was interrupted: %s", number, changed)
                if not self._form_anew(batches, empty=empty):
                    return
            again = True
        if self._unconfirmed is None:
            self._apply(number)

    def _apply(self, number: int) -> None:
        self._applying = self._client.tables.apply_step(number)  # type: ignore[attr-defined]

    def _confirm(self) -> None:
        """Wait until every server has the last step. The only rank of a group trains its rows before that, because the
        loss of a server returns it to a checkpoint in any case."""
        if self._unconfirmed is not None:
            number, pending = self._unconfirmed
            self._unconfirmed = None
            pending.wait()  # then the step is complete, because no other rank has a part of this step
            self._apply(number)

    def _form_anew(self, batches: PushBatches, *, empty: bool) -> bool:
        """Join the next group. Return False if the job stops, so that no rank finishes the step."""
        if self._group.form(self) < 0:
            self._finish, self._batches = None, PushBatches()
            if self._units is not None:
                self._units.drop()
            return False
        if self._coordinator is not None:
            self._coordinator.restart(self._group.place)
            # replace the earlier flags, because they belong to the schedule that was dropped
            self._coordinator.set_words(empty=empty)
        return True

    def _count_step(
        self,
        number: int,
        stepped: list[JobOptimizer],
        batches: PushBatches,
        skip: bool,
        train: Callable[[], None],
    ) -> None:
        self.count = self._context.lookups.after_step = number
        self._batches, self._counted = PushBatches(), set()
        if self._units is not None:
            self._units.drop()
        if batches.claims:
            self._position = DataPosition(batches.claims[-1].shard, batches.claims[-1].end)
        self._context.link.leases.tracker.acknowledge(batches.claims)
        self._context.listener.on_trained(batches.claims)
        if not skip:
            train()
            self._context.dense.update(stepped, self._gradients.weights)

    def _drop_unstepped(self) -> None:
        if self._units is None:
            super()._drop_unstepped()
            return
        self._batches, self._stepped, self._skip = PushBatches(), [], False
        self._units.drop()

    def _end_pass(self, *, early: bool) -> None:
        self.flush()
        if self._coordinator is not None:
            self._coordinator.end_pass(self._group.place, early=early)


def by_memory(parts: Sequence[_native.StepRows | DeviceGradients]) -> tuple[list[Any], list[DeviceGradients]]:
    """Divide gradients of rows into gradients for rows on servers and gradients for rows in device memory."""
    on_device = [part for part in parts if isinstance(part, DeviceGradients)]
    return [part for part in parts if not isinstance(part, DeviceGradients)], on_device
