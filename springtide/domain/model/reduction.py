"""Pure. Order in which a bsp step sums gradients.

In: `job.prepare`. Next: `worker.bsp.batch_order` assigns units and sums them. Design: docs/design/batch-order.md.
"""

from springtide import errors

BY_RANK = 0
"""Each worker's samples at once, then worker after worker: what is quickest, and the default."""
WANTED = 'wanted "rank-order" (the default), "batch-order" (sample after sample) or "batch-order:8" (eight at a time)'


def unit_of(reduction: str | None) -> int:
    """Samples that are trained at a time, their gradients summed in the order of the batch; 0: in rank order."""
    if reduction is None or reduction == "rank-order":
        return BY_RANK
    name, colon, samples = reduction.partition(":")
    if name != "batch-order" or (colon and not (samples.isascii() and samples.isdigit() and int(samples))):
        raise errors.BadInput(f"reduction={reduction!r}: {WANTED}")
    return int(samples) if colon else 1
