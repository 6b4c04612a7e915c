"""A step: what the loop did since the last one goes out as a single push, named by the batches that it trains.

In: batches.py says which batch the loop has, optimizer.py that it steps. Out: gradients to tables and dense parameters,
new values back. Next: dense.py or local_dense.py (dense), embedding/lookup.py (rows), meter.py (times).
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from springtide import _native
from springtide.embedding.client import TableClient
from springtide.embedding.lookup import Handle, Lookups
from springtide.embedding.tables import ServedTable
from springtide.train import link as links
from springtide.train.batches import Handed
from springtide.train.finite import check_finite
from springtide.train.hands import Claim
from springtide.train.meter import Meter
from springtide.train.optimizer import JobOptimizer
from springtide.train.rates import Rates


class Dense(Protocol):
    """Where dense parameters are updated."""

    def agree(self, *, share: float, skip: bool) -> bool:
        """Before anything is applied: the group's gradient, and whether the step is skipped."""
        ...

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        """What of it goes out with the push."""
        ...

    def update(self, stepped: Sequence[JobOptimizer], tables: Sequence[nn.Parameter]) -> None:
        """After the push is sent."""
        ...

    def settle(self) -> None:
        """The latest values into the model, waiting for them."""
        ...


@dataclass(slots=True)
class Trained:
    """Batches handed out since the last push."""

    ranges: list[tuple[int, int, int, int]] = field(default_factory=list)
    samples: int = 0
    group_samples: float = 0.0
    claims: list[Claim] = field(default_factory=list)

    def add(self, handed: Handed) -> None:
        """The loop has this batch now."""
        order = handed.order
        self.ranges += [(one.epoch, one.shard, one.first, one.count) for one in order.ranges]
        self.samples += order.samples
        self.group_samples += order.samples / order.share
        if order.claim is not None:
            self.claims.append(order.claim)

    @property
    def share(self) -> float:
        """Part of the group's samples that is ours."""
        return self.samples / self.group_samples if self.group_samples else 1.0


class Step:
    """Collects what the loop does and sends it. One a `job.prepare`."""

    def __init__(
        self,
        lookups: Lookups,
        tables: Sequence[ServedTable],
        dense: Dense,
        rates: Rates,
        link: links.Link,
        meter: Meter,
        *,
        group: int,
        ahead: bool,
        bound: int | None = None,
        named: bool = True,
        on_step: Callable[[], None],
    ) -> None:
        self.optimizers: list[JobOptimizer] = []
        self.count = 0
        """Pushes so far."""
        self._client: TableClient = lookups.client
        self._lookups = lookups
        self._tables = [(f"table {table.name!r}", table.weight) for table in tables]
        self._weights = [table.weight for table in tables]
        self._dense = dense
        self._rates = rates
        self._link = link
        self._meter = meter
        self._bsp, self._group = group > 0, group
        self._ahead = ahead
        self._bound = bound
        """How many pushes the values behind a push may lack; None: any."""
        self._inside = False
        self.named = named
        """Whether pushes name their batches."""
        self._on_step = on_step
        self._trained = Trained()
        self._stepped: list[JobOptimizer] = []
        self._skip = False
        self._expected: tuple[Any, Handle] | None = None
        self._pending: _native.Pending | None = None
        self._under_way: list[Claim] = []

    # ---- what batches.py tells ----

    def hand_out(self, now: Handed, following: Handed | None) -> None:
        """The loop is about to get `now`: its rows are asked for unless they were, then those of the batch after it."""
        self._trained.add(now)
        began = self._meter.clock()
        self._enter()
        if self._expected is not None and self._expected[0] is now.batch:
            handle = self._expected[1]
        else:
            handle = self._lookups.prefetch(now.batch, after_step=self._lookups.after_step)
        self._expected = None
        if self._ahead and following is not None:
            self._expected = (following.batch, self._lookups.prefetch(following.batch))
        self._lookups.begin(handle)
        self._meter.looked_up(self._meter.clock() - began)
        self._meter.handed_out()

    def taken_back(self) -> None:
        """Of several optimizers only some have stepped on this batch: they are not kept waiting for the others."""
        if self._stepped:
            self._send()

    def pause(self) -> None:
        """What was handed out is pushed and reported done, so that the tail of a pass can end for everyone.

        Ranks of a group wait for no one's shards, and must all push alike: there it is only the master that is slow.
        """
        if not self._bsp:
            self._finish_batches()

    def close_pass(self, *, early: bool) -> None:
        """Everything is applied before this returns, batches that were not stepped on being named in an empty push.

        Where the loop was left early, the batch it had in hand is not named: nobody has trained it.
        """
        if early and not self._stepped:
            self._trained = Trained()
        self._finish_batches()
        self._expected = None
        self._leave()
        if self._group > 1 and not early:
            self._link.barrier("springtide: every rank's last step of this pass is applied")
        self._dense.settle()
        self._link.hands.give_back()

    def _finish_batches(self) -> None:
        if self._stepped or self._trained.ranges:
            self._send()
        self._await_push()

    # ---- bounded staleness ----

    def _enter(self) -> None:
        """Values are read from here on, tables' rows too; what was handed out before without a step is of one push."""
        if self._bound is not None and not self._inside:
            self._link.enter(self._bound)
            self._inside = True
            self._dense.settle()

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._link.leave()

    # ---- what optimizer.py tells ----

    def apply(self, optimizer: JobOptimizer) -> None:
        """One optimizer steps; with the last of them the push goes out."""
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
        with contextlib.ExitStack() as gradients:
            for optimizer in stepped:
                gradients.enter_context(optimizer.gradients())
            self._send_for(stepped)

    def _send_for(self, stepped: list[JobOptimizer]) -> None:
        skip, self._skip = self._skip, False
        trained = self._trained
        skip = self._dense.agree(share=trained.share, skip=skip) or not stepped
        self._await_push()
        rows = [] if skip else self._table_parts(stepped, trained.share)
        parts = rows if skip else [*rows, *self._dense.parts(stepped)]
        self._pending = self._client.push(
            parts,
            step=self.count + 1,
            hyper=[] if skip else self._rates.now(stepped),
            bsp=self._bsp,
            batches=trained.ranges if self.named else (),
            clock=self.count + 1,
        )
        self.count += 1
        self._trained = Trained()
        self._under_way = trained.claims
        if self._bsp:
            self._lookups.after_step = self.count
        if not skip:
            self._dense.update(stepped, self._weights)
        if self._inside:
            self._await_push()
            self._leave()
        self._lookups.clear()
        self._meter.step_done(samples=trained.samples)
        self._on_step()

    def _table_parts(self, stepped: Sequence[JobOptimizer], share: float) -> list[_native.StepRows]:
        for weight in self._rates.idle_weights(stepped):
            weight.grad = None  # whoever trains this table has not stepped: it is left out of the push
        parts = self._lookups.pending_parts()
        for part in parts:
            # a sum is the quickest look; it may overflow for large values, so a suspicion is looked into by name
            if not math.isfinite(float(torch.from_numpy(part.grads()).sum())):
                check_finite(self._tables)
        if self._bsp and share != 1.0:
            for part in parts:
                torch.from_numpy(part.grads()).mul_(share)
        return parts

    def _await_push(self) -> None:
        """Wait until the last push is applied; then its batches are done."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            self._link.hands.acknowledge(self._under_way)
            self._under_way = []


def unscale(optimizer: JobOptimizer) -> bool:
    """Do what torch.amp.GradScaler leaves to the optimizer: returns whether it found an infinity, else unscales."""
    found = getattr(optimizer, "found_inf", None)
    if found is not None and bool(found):
        return True
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(grads, float(scale))
    return False
