"""What the workers of `bench straggler` train: batches that cost the same processor time, or models of the zoo.

In: the name of a kind of work, in the script of straggler_job.py. Out: its model, its data and the loss of a batch.
The models are trained as they come on a generated click log that is short and read over and over.
"""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.data.source import Indices
from springtide.embedding.modules.modules import EmbeddingBag
from springtide.zoo.clicklog.dataset import ClickLog
from springtide.zoo.clicklog.population import LogSpec
from springtide.zoo.models import WideDeep, XDeepFM

SPEC = LogSpec(seed=7)
LOG = 20_000  # samples


class Numbers(torch.utils.data.Dataset[Tensor]):
    """Samples that are their own indices."""

    def __init__(self, folder: pathlib.Path, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices) -> Tensor:
        return torch.from_numpy(indices)[:, None] % 1000


class StragglerClicks(torch.utils.data.Dataset[Any]):
    """So many samples of a log that begins anew after its last one; in files that all workers and jobs share."""

    def __init__(self, folder: pathlib.Path, samples: int) -> None:
        self._samples, self._log = samples, ClickLog(LOG, spec=SPEC, folder=folder / "clicks")

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices) -> Any:
        return self._log.batch(indices % LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kind."""

    batch: int
    """Samples of a batch: it takes about 10 ms of a core."""
    batch_s: float = 0.0
    """Processor time that a batch takes at least."""
    data: Callable[[pathlib.Path, int], torch.utils.data.Dataset[Any]]
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]


def sum_of(model: nn.Module, ids: Any) -> Tensor:
    total: Tensor = model(ids).sum()
    return total


def click_loss(model: nn.Module, batch: Any) -> Tensor:
    return binary_cross_entropy_with_logits(model(batch.x), batch.y)


KINDS = {
    "even": Work(batch=16, batch_s=0.01, data=Numbers, model=lambda: EmbeddingBag(4), loss=sum_of),
    "WideDeep": Work(
        batch=128, data=StragglerClicks, model=lambda: WideDeep(SPEC.cardinalities, sparse=True), loss=click_loss
    ),
    "xDeepFM": Work(
        batch=16, data=StragglerClicks, model=lambda: XDeepFM(SPEC.cardinalities, sparse=True), loss=click_loss
    ),
}
