"""A step: what the loop did since the last one goes out as a single push, named by the batches that it trains.

In: worker/input/batches.py says which batch the loop has, worker/link/optimizer.py that it steps. Out: gradients to
tables and dense parameters, new values back. Next: served_dense.py or local_dense.py (dense),
embedding/lookup/lookup.py (rows), worker/link/step_timer.py (times).
"""

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from springtide import _native, errors
from springtide.embedding.lookup.lookup import LookupHandle, Lookups
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.lookup.tables import ServedTable
from springtide.worker.bsp.batch_order.unit_gradients import UnitGradients
from springtide.worker.bsp.group import BspGroup, DataPosition
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input.read_batch import ReadBatch
from springtide.worker.link import master_link as links
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.link.optimizer import JobOptimizer, unscale
from springtide.worker.link.step_timer import StepMeter
from springtide.worker.step.dense_api import Dense
from springtide.worker.step.finite import check_finite
from springtide.worker.step.hyperparams import Hyper, TableRates
from springtide.worker.step.push_identity import PushBatches, UnsteppedGradients

log = logging.getLogger(__name__)


class TrainingStep:
    """Collects what the loop does and sends it. One a `job.prepare`."""

    def __init__(
        self,
        lookups: Lookups,
        tables: Sequence[ServedTable],
        dense: Dense,
        rates: TableRates,
        link: links.MasterLink,
        meter: StepMeter,
        *,
        group: BspGroup | None,
        sharing: CacheCoordinator | None = None,
        kept: UnitGradients | None = None,
        ahead: bool,
        bound: int | None = None,
        named: bool = True,
        waiting: UnsteppedGradients | None = None,
        on_step: Callable[[], None],
    ) -> None:
        self.optimizers: list[JobOptimizer] = []
        self.count = 0
        """Pushes so far."""
        self._client: TableClient = lookups.client
        self._lookups = lookups
        self._tables = [(f"table {table.name!r}", table.weight) for table in tables]
        self._weights = [table.weight for table in tables]
        self._dense, self._rates = dense, rates
        self._link, self._meter = link, meter
        self.group, self._bsp = group, group is not None
        self.sharing = sharing
        """bsp: how batches are shared out and rows kept, where that is not as plain as can be."""
        self._kept = kept
        """bsp: what units have made, where gradients are summed in the order of the batch."""
        self._ahead = ahead
        self._bound = bound
        """How many pushes the values behind a push may lack; None: any."""
        self._inside = False
        self.named = named
        """Whether pushes name their batches."""
        self._waiting = waiting
        """Where a worker may be lost and the others go on: gradients that would have to wait for a later batch."""
        self._due = True
        """Whether the batch in hand completes a step."""
        self._on_step = on_step
        self._trained = PushBatches()
        self._stepped: list[JobOptimizer] = []
        self._skip = self._again = False  # again: the batch in hand is trained already, steps on it are dropped
        self._expected: tuple[Any, LookupHandle] | None = None
        self._pending: _native.Pending | None = None
        self._under_way: list[BatchClaim] = []
        self._applying: _native.Pending | None = None
        self._finish: Callable[[], None] | None = None
        """bsp: what is left to do for the step in hand once it is complete on all servers."""
        self._spot = DataPosition()
        self._counted: set[int] = set()
        self.on_trained: Callable[[Sequence[BatchClaim]], None] = lambda claims: None
        """Called with batches that every server has; set where others than `hands` want to know."""
        self.on_torn: Callable[[Sequence[BatchClaim]], bool] = lambda claims: False
        """Called with batches that a server has in part; whether they are none of our business any more."""
        self.age: Callable[[], int] | None = None
        """What ages of rows are counted in, where that is not steps."""

    # ---- what worker/input/batches.py tells ----

    def hand_out(self, now: ReadBatch, following: ReadBatch | None) -> None:
        """The loop is about to get `now`: its rows are asked for unless they were, then those of the batch after it."""
        self._due = now.order.last
        if now.unit is None or now.unit.first:
            self._trained.add(now)
            if self.sharing is not None:
                self.sharing.hand_out(now, self.count + 1)
        if self._kept is not None and now.unit is not None:
            self._kept.begin(now.unit)
        began = self._meter.clock()
        self._enter()
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

    def taken_back(self) -> None:
        """Of several optimizers only some have stepped on this batch: they are not kept waiting for the others.

        A bsp group may stop here for a checkpoint: schedules have been stepped by now.
        """
        if self._stepped:
            self._send()
        elif self._waiting is not None and self._due and self.named and self._trained.ranges:
            self._waiting.refuse()
            self._send()  # a batch that the loop has passed over: named by itself, for sums of names may be torn
        if self._kept is not None and not self.idle:
            self._kept.check_kept()
            return
        if self.sharing is not None and not self.idle and self.sharing.bound:
            self.flush()
            self.sharing.accumulated()
        if self.group is not None and self.idle and not self.bound:
            self.group.keep(self, self._applying)

    def pause(self) -> None:
        """What was handed out is pushed and reported done, so that the tail of a pass can end for everyone.

        Ranks of a group wait for no one's shards, and must all push alike: there it is only the master that is slow.
        """
        if not self._bsp:
            self._finish_batches()

    def rest(self) -> None:
        """What was pushed is waited for and reported done; batches that were not stepped on stay in hand."""
        self._await_push()

    def skip(self, now: ReadBatch) -> None:
        """Named in a push of its own, so that slots have no gaps to remember; gradients in hand stay there.

        In a group it is a step that does nothing: it is skipped by all ranks, even should one have found something.
        """
        empty = PushBatches()
        empty.add(now)
        if self.group is not None:
            in_hand, number = self._trained, self.count + 1
            self._step_together(self.group, [], empty, True, empty=True)
            if self.count == number:  # else the job stops, and what is in hand stays undone
                self._trained = in_hand
            return
        self._await_push()
        self._push([], empty, [], [], True)
        self._under_way = empty.claims
        self.count += 1

    @property
    def seat(self) -> tuple[int, int]:
        """This worker's rank in its bsp group, and the group's size."""
        return (0, 1) if self.group is None else (self.group.place.rank, self.group.place.workers)

    def hand_again(self, batch: Any) -> None:
        """The loop is about to get a batch that is trained already (worker/epochs/repeats.py)."""
        self._again = self._due = True
        self._lookups.learn(batch)

    def take_again(self) -> None:
        """The loop is through with it: gradients are dropped."""
        self._again = False
        self._forget_gradients()

    def close_pass(self, *, early: bool) -> None:
        """Everything is applied before this returns, batches that were not stepped on being named in an empty push.

        Where the loop was left early, the batch it had in hand is not named: nobody has trained it.
        """
        if early and (not self._stepped or self._kept is not None):
            self._trained, self._stepped, self._skip = PushBatches(), [], False
            if self._kept is not None:
                self._kept.drop()
            if self._waiting is not None or not self._due:
                self._forget_gradients()
        self._finish_batches()
        if self.sharing is not None and self.group is not None:
            self.flush()
            self.sharing.end_pass(self.group.place, early=early)
        self._expected = None
        self._leave()
        self._dense.settle()
        self._link.leases.tracker.release_all()

    def _forget_gradients(self) -> None:
        """Those of batches that are given back: whoever gets them computes them anew."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self._lookups.clear()
        if self._waiting is not None:
            self._waiting.clear()

    def _finish_batches(self) -> None:
        if self._stepped or self._trained.ranges:
            self._send()
        self._await_push()

    # ---- bounded staleness ----

    def _enter(self) -> None:
        """Values are read from here on, tables' rows too; what was handed out before without a step is of one push."""
        if self._bound is not None and not self._inside:
            self._link.group.enter(self._bound)
            self._inside = True
            self._dense.settle()

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._link.group.leave()

    # ---- what worker/link/optimizer.py tells ----

    def apply(self, optimizer: JobOptimizer) -> None:
        """One optimizer steps; with the last of them the push goes out."""
        if self._again:
            optimizer.bring_back()
            return
        if not self._due:
            raise errors.BadInput(
                "optimizer.step() in the middle of a sum: with accumulate= gradients go out once all parts of a batch "
                "are in. Step where batches.completes_step is true"
            )
        if optimizer in self._stepped:
            self._send()
        self._skip |= unscale(optimizer)
        self._stepped.append(optimizer)
        if len(self._stepped) == len(self.optimizers):
            self._send()

    # ---- the push ----

    def _send(self) -> None:
        self._meter.step_began()
        stepped, self._stepped = self._stepped, []
        newer = [optimizer.bring_back() for optimizer in stepped]
        try:
            if self._kept is None or self._keep_unit(self._kept, stepped):
                self._send_for(stepped)
        finally:
            for param, grad in itertools.chain.from_iterable(newer):
                param.grad = grad

    def _keep_unit(self, kept: UnitGradients, stepped: list[JobOptimizer]) -> bool:
        """The gradients of a unit stay here until the last one's are there; whether they are."""
        parts = [] if self._skip else self._table_parts(stepped, kept.share)  # infinities are of no use to anyone
        last = kept.keep(stepped, parts)
        self._lookups.clear()
        return last

    def _send_for(self, stepped: list[JobOptimizer]) -> None:
        skip, self._skip = self._skip, False
        trained = self._trained
        if self.group is not None:
            self._step_together(self.group, stepped, trained, skip)
        else:
            skip = self._dense.agree(share=trained.share, skip=skip) or not stepped
            self._await_push()
            rows = [] if skip else self._table_parts(stepped, trained.share)
            self._push(stepped, trained, rows, [] if skip else self._rates.now(stepped), skip)
            self._trained, self._under_way = PushBatches(), trained.claims
            self.count += 1
            if not skip:
                self._dense.update(stepped, self._weights)
        if self._inside:
            self._await_push()
            self._leave()
        self._lookups.clear()
        if self._waiting is not None:
            self._waiting.clear()
        self._meter.step_done(samples=trained.samples)
        self._on_step()

    def _push(
        self, stepped: list[JobOptimizer], trained: PushBatches, rows: Sequence[Any], hyper: Sequence[Hyper], skip: bool
    ) -> None:
        self._pending = self._client.push(
            [] if skip else [*rows, *self._dense.parts(stepped)],
            step=self.count + 1,
            hyper=hyper,
            bsp=self._bsp,
            batches=trained.ranges if self.named else (),
            clock=self.count + 1 if self.age is None else self.age(),
        )

    # ---- bsp ----

    def flush_now(self) -> None:
        """`job.flush()`: the same between two steps; BadInput in the middle of one."""
        if self.sharing is not None and not self.idle:
            raise errors.BadInput(
                "job.flush() with a batch in hand: its rows are being trained. Call it right after optimizer.step()"
            )
        self.flush()

    def flush(self) -> None:
        """All rows go to the servers now, in a step of their own that every rank must take, unless they are there."""
        if self.group is None or self.sharing is None or self.sharing.clean:
            return
        trained, number = self._trained, self.count + 1
        self._step_together(self.group, [], PushBatches(), True, empty=True)
        if self.count == number:  # else the job stops, and what is in hand stays undone
            self._trained = trained

    def _step_together(
        self,
        group: BspGroup,
        stepped: list[JobOptimizer],
        trained: PushBatches,
        wants_skip: bool,
        *,
        empty: bool = False,
    ) -> None:
        """All-reduce, push, and once the step is complete on all servers apply it; if a member is lost before that,
        the same again with the group that forms then.
        """
        number, again = self.count + 1, False
        rows: list[Any] | None = None
        hyper: list[Hyper] = []
        if self.sharing is not None:
            self.sharing.speak(empty=empty)
        while self.count < number:
            try:
                skip = self._dense.agree(share=trained.share, skip=wants_skip, again=again) or not stepped
                if self.sharing is not None:
                    self.sharing.listen(number)
                if rows is None and not skip:  # once: shares and counts are worked into them
                    rows = self._table_parts(stepped, trained.share) if self._kept is None else []
                    hyper, self._counted = self._rates.now(stepped), {id(one.own) for one in stepped}
                if self._kept is not None and not skip:
                    rows = self._kept.parts()  # with the group of now
                if self.sharing is not None:
                    self.sharing.pushing(number, [] if skip else rows or [])
                self._finish = functools.partial(self._count_step, number, stepped, trained, skip)
                self._push(stepped, trained, [] if skip else rows or [], [] if skip else hyper, skip)
                assert self._pending is not None
                self._pending.wait()
                group.await_complete(number)
                self.catch_up(number)
                if self.sharing is not None:
                    self.sharing.stepped(number, empty=empty)
            except errors.GroupChanged as changed:
                log.warning("step %d is interrupted: %s", number, changed)
                self._pending = None
                if trained.ranges and not trained.claims:
                    raise errors.JobFailed(
                        "a member of the bsp group is lost, and a group over an IterableDataset does not form anew: "
                        "nobody could tell where in the data it was"
                    ) from None
                if group.form(self) < 0:  # the job stops, and the step stays undone on all ranks
                    self._finish, self._trained = None, PushBatches()
                    if self._kept is not None:
                        self._kept.drop()
                    return
                if self.sharing is not None:
                    self.sharing.restart(group.place)
                    self.sharing.speak(empty=empty)  # what was said before was of the schedule that is gone
            again = True
        self._applying = self._client.tables.apply_step(number)  # type: ignore[attr-defined]

    def _count_step(self, number: int, stepped: list[JobOptimizer], trained: PushBatches, skip: bool) -> None:
        self.count = self._lookups.after_step = number
        self._trained, self._pending, self._counted = PushBatches(), None, set()
        if self._kept is not None:
            self._kept.drop()
        if trained.claims:
            self._spot = DataPosition(trained.claims[-1].shard, trained.claims[-1].end)
        self._link.leases.tracker.acknowledge(trained.claims)
        self.on_trained(trained.claims)
        if not skip:
            self._dense.update(stepped, self._weights)

    @property
    def idle(self) -> bool:
        """No step is in hand."""
        return self._finish is None and not self._trained.ranges

    @property
    def bound(self) -> bool:
        """What is in hand is lost with any one rank: rows in caches, or a part of a batch that a schedule gave it."""
        return self.sharing is not None and self.sharing.bound

    def catch_up(self, step: int) -> None:
        """This step is complete on all servers: if it is the one in hand, it counts, and its dense part is applied."""
        finish = self._finish
        if finish is not None and step > self.count:
            self._finish = None
            finish()

    def spot(self) -> DataPosition:
        """Where the data of the next step begins."""
        claims = self._trained.claims
        return DataPosition(claims[0].shard, claims[0].begin) if claims else self._spot

    def counts(self) -> list[int]:
        """Steps of each optimizer before the one in hand."""
        return [
            count - (id(one) in self._counted)
            for one, count in zip(self._rates.optimizers, self._rates.steps, strict=True)
        ]

    def begin_at(self, step: int, spot: DataPosition, counts: list[int]) -> None:
        """Go on after this step, with the sample of that spot: a newcomer to a group."""
        self._rates.steps = counts
        self.count = self._lookups.after_step = step
        self._spot = spot
        self._link.leases.tracker.skip_to(spot.shard, spot.first)

    def regroup(self, generation: int) -> None:
        """The group changes here, where no step is in hand."""
        if self.group is not None and self.group.place.generation == generation:
            self.group.form(self)
            if self.sharing is not None:
                self.sharing.restart(self.group.place)

    def retire(self) -> None:
        """The script has ended well."""
        if self.group is not None:
            self.group.rest(self)

    def _table_parts(self, stepped: Sequence[JobOptimizer], share: float) -> list[_native.StepRows]:
        for weight in self._rates.idle_weights(stepped):
            weight.grad = None  # whoever trains this table has not stepped: it is left out of the push
        parts = self._lookups.pending_parts()
        if not all(part.finite() for part in parts):
            check_finite(self._tables)
        if self._bsp and share != 1.0:
            for part in parts:
                torch.from_numpy(part.grads()).mul_(share)
        return parts

    def _await_push(self) -> None:
        """Wait until the last push is applied; then its batches are done."""
        if self._pending is not None:
            torn = self._torn(self._pending)
            self._pending = None
            claims, self._under_way = self._under_way, []
            if not torn:
                self._link.leases.tracker.acknowledge(claims)
                self.on_trained(claims)

    def _torn(self, pending: _native.Pending) -> bool:
        """Wait for a push. Whether it was refused, and rightly so: its batches are with another by now."""
        try:
            pending.wait()
        except errors.PartlyApplied as error:
            if not self.on_torn(self._under_way):
                raise
            log.info("a batch that is with another by now was not applied: %s", error)
            return True
        return False
