"""Kernels for rows in plain torch calls. These kernels define every result, and are tested without a GPU.

On a GPU without Triton they run too, but then `update` waits for the device, and all rows must be in GPU memory.
"""

import torch

from springtide.embedding.device import update_rules
from springtide.embedding.device.backing import Backing
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


def fetch(ordered: torch.Tensor, keys: torch.Tensor, backing: Backing) -> tuple[torch.Tensor, torch.Tensor]:
    rows = ordered.long() >> 1
    missing = backing.cells[rows] >= backing.capacity
    missing[1:] &= rows[1:] != rows[:-1]
    at = missing.nonzero().squeeze(1)
    fetched = backing.weights.new_zeros(len(rows), backing.weights.shape[1])
    fetched[at] = backing.weights[rows[at]]
    backing.cells[rows[at]] = (backing.capacity + at).int()
    cells = backing.cells[keys.long() >> 1]
    backing.missed += (cells >= backing.capacity).sum()
    return cells * 2 + (keys & 1), fetched


def pool(
    keys: torch.Tensor,
    batch: IdBatch,
    weights: torch.Tensor,
    scale: torch.Tensor | None,
    *,
    mean: bool,
    read_skipped: bool,
    fetched: torch.Tensor | None = None,
) -> torch.Tensor:
    bag = bags_of(batch)
    used = (bag >= 0) & (read_skipped | (keys & 1 == 0))
    rows = (weights if fetched is None else torch.cat([weights, fetched]))[keys.long() >> 1].float()
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
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    bag = bags_of(batch)[order].clamp(min=0)
    first = bag // grads.rows * grads.outer + bag % grads.rows * grads.inner
    at = first[:, None] + torch.arange(dim, device=keys.device)
    flat = grads.values.as_strided((int(grads.values.untyped_storage().nbytes() // 4),), (1,), 0)
    rows = flat[grads.values.storage_offset() + at]
    if scale is not None:
        rows = rows * scale[order][:, None]
    rows = torch.where((keys & 1 == 0)[:, None], rows, 0.0)
    if out is None:
        new = torch.ones_like(keys, dtype=torch.bool)
        new[1:] = keys[1:] != keys[:-1]
        here = torch.arange(len(keys), device=keys.device)
        target = torch.where(new, here, 0).cummax(0).values
        out = torch.zeros(len(keys), dim, device=keys.device)
    else:
        target = keys.long() >> 1
        out[target[keys & 1 == 0]] = 0.0
    out.index_add_(0, target, rows)
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
    backing: Backing | None = None,
    fetched: torch.Tensor | None = None,
) -> None:
    trained = keys & 1 == 0
    trained[1:] &= keys[1:] != keys[:-1]
    trained &= bad == 0
    places = (keys[trained] >> 1).long()
    stored = [weights, *vectors, *([] if number is None else [number])]
    rows = [tensor[places] for tensor in stored] if backing is None else _read(stored, backing, places)
    if backing is not None and fetched is not None:
        here = (backing.cells[places] < backing.capacity)[:, None]
        rows[0] = rows[0].where(here, fetched[trained])
    state = rows[1 : 1 + len(vectors)]
    count = None if number is None else rows[-1]
    rows[0] = update_rules.step(update, rows[0].float(), state, count, grads[trained]).to(weights.dtype)
    if backing is not None:
        _write(rows, stored, backing, places)
        backing.uses[places] += 1
    else:
        for tensor, values in zip(stored, rows, strict=True):
            tensor[places] = values
    if changed is not None:
        changed[places] = True


def _read(in_gpu: list[torch.Tensor], backing: Backing, places: torch.Tensor) -> list[torch.Tensor]:
    here, cells = backing.held(places)
    rows = [tensor[places] for tensor in backing.tensors]
    for values, tensor in zip(rows, in_gpu, strict=True):
        values[here] = tensor[cells]
    return rows


def _write(rows: list[torch.Tensor], in_gpu: list[torch.Tensor], backing: Backing, places: torch.Tensor) -> None:
    here, cells = backing.held(places)
    for values, tensor, behind in zip(rows, in_gpu, backing.tensors, strict=True):
        tensor[cells] = values[here]
        behind[places[~here]] = values[~here]


def exchange(
    entering: torch.Tensor,
    leaving: torch.Tensor,
    cells: torch.Tensor,
    in_gpu: list[torch.Tensor],
    in_cpu: list[torch.Tensor],
) -> None:
    taken = entering >= 0
    entering, leaving, cells = entering[taken], leaving[taken], cells[taken]
    for tensor, behind in zip(in_gpu, in_cpu, strict=True):
        behind[leaving] = tensor[cells]
        tensor[cells] = behind[entering]


def bags_of(batch: IdBatch) -> torch.Tensor:
    """Return the bag of each id; -1 for an id without a bag."""
    if batch.bag_of is not None:
        return batch.bag_of
    return torch.arange(batch.total, device=batch.ids.device) // batch.per_bag
