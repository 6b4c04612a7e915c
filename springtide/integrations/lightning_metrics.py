"""Metrics of a Lightning validation that the workers share: the values of `self.log` and the metrics of torchmetrics.

In: the states that each worker has after its part of the validation data. Out: on every worker, the states for all
data, before a module or a callback reads them. Next: integrations/lightning.py sends the states between workers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric

States = Mapping[str, Mapping[str, torch.Tensor]]


class MetricStates:
    """States of the metrics of torchmetrics in a module."""

    def __init__(self, module: LightningModule) -> None:
        self._metrics = {path: part for path, part in module.named_modules() if isinstance(part, Metric)}
        self._counts = {path: metric._update_count for path, metric in self._metrics.items()}

    @property
    def are_small(self) -> bool:
        """Whether no metric collects predictions, which could be too many to pass to the other workers."""
        return all(torch.is_tensor(value) for metric in self._metrics.values() for value in metric._defaults.values())

    def changed(self) -> States:
        """Return the states of the metrics that were updated since this object was created."""
        return {
            path: {name: getattr(metric, name) for name in metric._reductions}
            for path, metric in self._metrics.items()
            if metric._update_count > self._counts[path]
        }

    def put(self, parts: Sequence[States]) -> None:
        """Set each metric to the states of all workers together."""
        for path, metric in self._metrics.items():
            if given := [part[path] for part in parts if path in part]:
                for name, reduction in metric._reductions.items():
                    stacked = torch.stack([states[name].to(metric.device) for states in given])
                    setattr(metric, name, reduction(stacked) if callable(reduction) else stacked)
                metric._computed, metric._update_count = None, max(1, metric._update_count)


def logged(results: Mapping[str, Any]) -> States:
    """Return the sums and extremes behind the values of `self.log`."""
    found = {}
    for key, metric in results.items():
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset:
            names = ("value", "cumulated_batch_size") if metric.meta.is_mean_reduction else ("value",)
            found[key] = {name: getattr(metric, name) for name in names}
    return found


def put_logged(results: Mapping[str, Any], parts: Sequence[States]) -> None:
    """Set the values of `self.log` to those of all workers together."""
    for key, metric in results.items():
        if given := [part[key] for part in parts if key in part]:
            meta = metric.meta
            how = torch.amax if meta.is_max_reduction else torch.amin if meta.is_min_reduction else torch.sum
            for name in given[0]:
                own = getattr(metric, name)
                setattr(metric, name, how(torch.stack([states[name].to(own.device) for states in given]), dim=0))
        metric._computed = None  # also of a value that is a metric of torchmetrics
