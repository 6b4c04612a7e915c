"""Kernels for rows in plain torch calls. They define every result, and are tested without a GPU.

They also run on a GPU without Triton; in this case, `update` waits for the device.
"""

import torch

from springtide.embedding.device import update_rules
from springtide.embedding.device.kernels import BagGradients, IdBatch
from springtide.embedding.device.update_rules import Update


def keys(batch: IdBatch, status: torch.Tensor) -> torch.Tensor:
    parts = []
    for feature, count in zip(batch.features.tolist(), batch.counts, strict=True):
        first, _, per_bag, bag_stride, id_stride, place, rows, padding, _, number = feature
        at = torch.arange(count, device=batch.ids.device)
        ids = batch.ids[first + at // per_bag * bag_stride + at % per_bag * id_stride].long()
        good = (ids >= 0) & (ids < rows)
        status[0] = torch.where(good.all(), status[0], number + 1)
        skipped = ~good | (ids == padding)
        parts.append((place + ids.where(good, 0)) * 2 + skipped)
    made = torch.cat(parts)
    if batch.bag_of is not None:
        made |= batch.bag_of < 0
    return made.int()


def pool(
    keys: torch.Tensor,
    batch: IdBatch,
    weights: torch.Tensor,
    scale: torch.Tensor | None,
    *,
    mean: bool,
    read_skipped: bool,
) -> torch.Tensor:
    bag = bags_of(batch)
    used = (bag >= 0) & (read_skipped | (keys & 1 == 0))
    rows = weights[keys.long() >> 1].float()
    if scale is not None:
        rows *= scale[:, None]
    rows = torch.where(used[:, None], rows, 0.0)
    out = torch.zeros(batch.bags, weights.shape[1], device=weights.device).index_add_(0, bag.clamp(min=0), rows)
    if mean:
        count = torch.zeros(batch.bags, device=weights.device).index_add_(0, bag.clamp(min=0), used.float())
        out /= count.clamp_(min=1)[:, None]
    return out


def reduce(
    keys: torch.Tensor,
    order: torch.Tensor,
    batch: IdBatch,
    grads: BagGradients,
    scale: torch.Tensor | None,
    bad: torch.Tensor,
    dim: int,
) -> torch.Tensor:
    bag = bags_of(batch)[order].clamp(min=0)
    first = bag // grads.rows * grads.outer + bag % grads.rows * grads.inner
    at = first[:, None] + torch.arange(dim, device=keys.device)
    flat = grads.values.as_strided((int(grads.values.untyped_storage().nbytes() // 4),), (1,), 0)
    rows = flat[grads.values.storage_offset() + at]
    if scale is not None:
        rows = rows * scale[order][:, None]
    rows = torch.where((keys & 1 == 0)[:, None], rows, 0.0)
    new = torch.ones_like(keys, dtype=torch.bool)
    new[1:] = keys[1:] != keys[:-1]
    here = torch.arange(len(keys), device=keys.device)
    head = torch.where(new, here, 0).cummax(0).values
    out = torch.zeros(len(keys), dim, device=keys.device).index_add_(0, head, rows)
    torch.maximum(bad, (~out.isfinite().all()).float(), out=bad)
    return out


def update(
    keys: torch.Tensor,
    grads: torch.Tensor,
    weights: torch.Tensor,
    vectors: list[torch.Tensor],
    number: torch.Tensor | None,
    update: Update,
    bad: torch.Tensor,
    changed: torch.Tensor | None = None,
) -> None:
    trained = keys & 1 == 0
    trained[1:] &= keys[1:] != keys[:-1]
    trained &= bad == 0
    places = (keys[trained] >> 1).long()
    state = [vector[places] for vector in vectors]
    count = None if number is None else number[places]
    weights[places] = update_rules.step(update, weights[places].float(), state, count, grads[trained]).to(weights.dtype)
    for vector, rows in zip(vectors, state, strict=True):
        vector[places] = rows
    if number is not None and count is not None:
        number[places] = count
    if changed is not None:
        changed[places] = True


def bags_of(batch: IdBatch) -> torch.Tensor:
    """Return the bag of each id; -1 for an id without a bag."""
    if batch.bag_of is not None:
        return batch.bag_of
    return torch.arange(batch.total, device=batch.ids.device) // batch.per_bag
