"""Pure. Order in which a bsp step sums gradients.

In: `job.prepare`. Next: `worker.bsp.batch_order` assigns units and sums them. Design: docs/design/batch-order.md.
"""

from springtide import errors

BY_RANK = 0
"""Sum each worker's samples first, then worker by worker. This is fastest, and the default."""
WANTED = 'wanted "rank-order" (the default), "batch-order" (sample after sample) or "batch-order:8" (eight at a time)'


def unit_of(reduction: str | None) -> int:
    """Return the samples per unit, whose gradients are summed in batch order; 0 means rank order."""
    if reduction is None or reduction == "rank-order":
        return BY_RANK
    name, colon, samples = reduction.partition(":")
    if name != "batch-order" or (colon and not (samples.isascii() and samples.isdigit() and int(samples))):
        raise errors.BadInput(f"reduction={reduction!r}: {WANTED}")
    return int(samples) if colon else 1
