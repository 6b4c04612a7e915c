"""Hand out one trained batch again to a loop that would otherwise get none; its step changes nothing.

A slow worker may find that other workers have trained the whole epoch. A restarted worker may find nothing left of its
epoch. Its loop would then be empty, and code after the loop such as `total / n` would fail. So the loop gets one batch
of the epoch again. The script computes with it as usual, but the step changes nothing.

In: worker/input/batches.py. Next: worker/step/step.py drops the step.
"""

import logging
from typing import Any

import torch
from torch import nn

from springtide.data import shards
from springtide.data.source import SampleSource, as_batch, on_one_line
from springtide.domain.data.samples import DatasetCard
from springtide.worker.step.step import TrainingStep

log = logging.getLogger(__name__)


class Repeats:
    """Repeated batches of one `job.prepare`."""

    def __init__(
        self,
        source: SampleSource,
        card: DatasetCard,
        model: nn.Module,
        step: TrainingStep,
        *,
        parts: int = 1,
        unit: int = 1,
    ) -> None:
        self._source, self._card, self._model, self._step = source, card, model, step
        self._parts, self._unit = parts, unit
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hand_out(self, epoch: int) -> Any:
        """Return the first batch of an epoch, as this worker would get it; None if it cannot be read."""
        try:
            batch = self._first_of(epoch)
        except Exception as error:  # a user's data set may raise anything
            log.warning("no batch of epoch %d can be handed out again: %s", epoch, on_one_line(error))
            return None
        if batch is not None:
            self._buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
            self._step.hand_again(batch)
        return batch

    def take_back(self) -> None:
        self._step.take_again()
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._buffers = []

    def _first_of(self, epoch: int) -> Any:
        if self._source.samples is None and self._card.in_step:
            return None  # every rank takes part in every round, so no batch means no round
        if self._source.samples is None:
            return as_batch(next(iter(self._source.stream()), None))
        card = self._card
        indices = shards.indices(card, epoch=epoch, index=0, end=card.batch_size // self._parts)
        rank, workers = self._step.seat
        part = shards.rank_part(len(indices), rank=rank, workers=workers, unit=self._unit)
        return as_batch(self._source.fetch(indices[part]))
