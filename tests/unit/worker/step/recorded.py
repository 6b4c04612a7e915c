"""Fakes of everything that a step calls. They record each call in one list, in order."""

from types import SimpleNamespace

import numpy as np
import torch

from springtide.domain.data.samples import SampleRange
from springtide.worker.input.batch_plan import BatchOrder, ReadBatch
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.step.step import StepContext, StepListener


class Pending:
    """A push under way."""

    def __init__(self, calls, step, error):
        self._calls, self._step, self._error = calls, step, error

    def wait(self):
        self._calls.append(("wait", self._step))
        if self._error:
            raise self._error


class Client:
    """Of a worker with no rows in device memory."""

    ahead_of_servers = False

    def __init__(self, calls):
        self._calls, self.pushes, self.errors, self.age = calls, [], [], 0
        self.tables = SimpleNamespace(apply_step=lambda number: calls.append(("apply", number)) or f"applied {number}")

    def push(self, parts, **named):
        self._calls.append(("push", named["step"]))
        self.pushes.append(SimpleNamespace(parts=list(parts), **named))
        return Pending(self._calls, named["step"], self.errors.pop(0) if self.errors else None)

    def train(self, on_device, hyper):
        assert not on_device


class Lookups:
    all_on_device = False

    def __init__(self, calls):
        self._calls, self.client, self.after_step, self.parts = calls, Client(calls), 0, []

    def prefetch(self, seen, after_step=None):
        self._calls.append(("prefetch", seen, after_step))
        return f"rows of {seen}"

    def begin(self, handle):
        self._calls.append(("begin", handle))

    def clear(self):
        self._calls.append("clear rows")

    def release(self):
        """Do nothing: no rows are in device memory."""

    def learn(self, batch):
        self._calls.append(("learn", batch))

    def pending_parts(self):
        return list(self.parts)


class Rows:
    """Gradients of table rows."""

    def __init__(self, finite=True):
        self.values = np.ones(2, np.float32)
        self.finite, self.grads = lambda: finite, lambda: self.values


class Rates:
    def __init__(self, own):
        self.optimizers, self.steps, self.weights, self.idle = own, [0] * len(own), [], []

    def now(self, stepped):
        return [("rates", len(stepped))]

    def idle_weights(self, stepped):
        return self.idle


class Dense:
    """`skips` are the verdicts of the group; without one, this rank's wish counts."""

    def __init__(self, calls):
        self._calls, self.skips = calls, []

    def agree(self, *, share, skip, again=False):
        self._calls.append(("agree", share, skip, again))
        verdict = self.skips.pop(0) if self.skips else skip
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def parts(self, stepped):
        return ["dense"]

    def update(self, stepped, tables):
        self._calls.append(("update", len(stepped)))

    def settle(self):
        self._calls.append("settle")


class Listener(StepListener):
    def __init__(self, calls):
        self._calls, self.torn, self.clock = calls, False, None

    def on_trained(self, claims):
        self._calls.append(("trained", list(claims)))

    def on_torn(self, claims):
        self._calls.append(("torn", list(claims)))
        return self.torn

    def row_clock(self):
        return self.clock


class Meter:
    def __init__(self, calls):
        self._calls, self._now = calls, 0.0

    def clock(self):
        self._now += 1.0
        return self._now

    def looked_up(self, seconds):
        self._calls.append(("looked up", seconds))

    def handed_out(self):
        self._calls.append("handed out")

    def step_began(self):
        self._calls.append("step began")

    def step_done(self, *, samples):
        self._calls.append(("step done", samples))


class Recorder:
    """A context of fakes, with one SGD optimizer per parameter."""

    def __init__(self, optimizers=1):
        self.calls = calls = []
        self.params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(optimizers)]
        self.own = [torch.optim.SGD([param], lr=0.1) for param in self.params]
        self.lookups, self.dense, self.rates = Lookups(calls), Dense(calls), Rates(self.own)
        self.client, self.listener = self.lookups.client, Listener(calls)
        record = SimpleNamespace
        tracker = record(
            acknowledge=lambda claims: calls.append(("acknowledge", list(claims))),
            release_all=lambda: calls.append("release"),
            skip_to=lambda shard, first: calls.append(("skip to", shard, first)),
        )
        group = record(enter=lambda bound: calls.append(("enter", bound)), leave=lambda: calls.append("leave"))
        self.context = StepContext(
            self.lookups,
            [],
            self.dense,
            self.rates,
            record(leases=record(tracker=tracker), group=group),
            Meter(calls),
            lambda: calls.append("on step"),
            self.listener,
        )

    def take(self, *kinds):
        """The calls since the last take; with `kinds`, only those."""
        calls, self.calls[:] = list(self.calls), []
        return [call for call in calls if not kinds or (call if isinstance(call, str) else call[0]) in kinds]


def claim(first, count, shard=0):
    return BatchClaim(shard, 0, first, first + count)


def batch(first, count, *, shard=0, share=1.0, claims=True, **options):
    """A batch of these samples. Its samples are a text."""
    part = SampleRange(epoch=0, shard=shard, first=first, count=count, shard_samples=100)
    own = claim(first, count, shard) if claims else None
    kept = {name: options.pop(name) for name in ("unit", "following") if name in options}
    order = BatchOrder(indices=np.arange(count), ranges=(part,), share=share, claim=own, **options)
    return ReadBatch(order, f"batch {first}", **kept)
