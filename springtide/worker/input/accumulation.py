"""Split a step's batch into parts for gradient accumulation; leases and pushes treat it as one batch.

In: orders of `batch_size * accumulate` samples. Out: `accumulate` smaller orders each; the last part completes the
step. Leases end at whole batches, and pushes name whole batches. A worker that repeats a batch therefore sums the same
samples. Next: batches.py.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from springtide import errors
from springtide.domain.core import validation
from springtide.worker.input.batch_plan import BatchOrder
from springtide.worker.input.read_batch import ReadBatch


def check(accumulate: int, *, in_step: bool) -> None:
    validation.number(accumulate, "accumulate", "a whole number of batches a step, 1 or more", least=1)
    if accumulate > 1 and in_step:
        raise errors.BadInput(
            f'accumulate={accumulate} with sync="bsp": a group takes its steps together, and adds up gradients as the '
            "loop likes. Leave accumulate out, and call optimizer.step() after as many batches as you want"
        )


def split(orders: Iterable[BatchOrder], size: int) -> Iterator[BatchOrder]:
    """Split each order into parts of `size` samples; the last part may be smaller. Orders without a batch pass
    unchanged.
    """
    for order in orders:
        yield from parts_of(order, size)


def parts_of(order: BatchOrder, size: int) -> list[BatchOrder]:
    """Split one order. Each part has its own range, and all parts share the claim of the batch."""
    if not order.ranges:
        return [order]
    (whole,) = order.ranges
    firsts = range(0, whole.count, size)
    return [
        dataclasses.replace(
            order,
            indices=order.indices[first : first + size],
            whole=None,
            ranges=(dataclasses.replace(whole, first=whole.first + first, count=min(size, whole.count - first)),),
            last=first == firsts[-1],
        )
        for first in firsts
    ]


def complete(feed: Iterable[ReadBatch]) -> Iterator[ReadBatch]:
    """Yield the parts of batches whose parts were all read; drop incomplete batches.

    If a part cannot be read, or the lease is revoked meanwhile, the whole batch goes to another worker.
    """
    waiting: list[ReadBatch] = []
    for handed in feed:
        if waiting and handed.order.claim != waiting[0].order.claim:
            waiting = []
        if handed.batch is None and not handed.empty:
            yield handed
            continue
        waiting.append(handed)
        if handed.order.last:
            if sum(part.order.samples for part in waiting) == whole_samples(waiting[0]):
                yield from without_empty(waiting)
            waiting = []


def without_empty(parts: Sequence[ReadBatch]) -> list[ReadBatch]:
    """Return the parts for the loop. Neighbouring parts take over the ranges of parts without a trainable sample."""
    kept = [part for part in parts if not part.empty] or list(parts[:1])
    begins = [one.order.ranges[0].first for one in (parts[0], *kept[1:])]
    ends = [*begins[1:], begins[0] + sum(part.order.samples for part in parts)]
    return [
        dataclasses.replace(part, order=named(part.order, begin, end, last=part is kept[-1]))
        for part, begin, end in zip(kept, begins, ends, strict=True)
    ]


def named(order: BatchOrder, begin: int, end: int, *, last: bool) -> BatchOrder:
    (own,) = order.ranges
    return dataclasses.replace(order, ranges=(dataclasses.replace(own, first=begin, count=end - begin),), last=last)


def whole_samples(part: ReadBatch) -> int:
    claim = part.order.claim
    return part.order.samples if claim is None else claim.end - claim.begin
