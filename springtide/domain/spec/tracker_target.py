"""Pure. Names of the experiment trackers that a job logs to, as `--log-to` gives them. Next: `telemetry.trackers`."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from springtide import errors
from springtide.domain.core import validation

TrackerKind = Literal["tensorboard", "wandb", "mlflow"]
TRACKERS: tuple[TrackerKind, ...] = ("tensorboard", "wandb", "mlflow")


HYPERPARAMETERS = "hyperparameters"
"""Shared value with the hyper-parameters of the first worker, and the event that the master logs when it gets them."""


class TrackerTarget(NamedTuple):
    """One experiment tracker, and the place where it stores its runs."""

    kind: TrackerKind
    where: str = ""
    """Folder or URL of TensorBoard's files, project of Weights & Biases, or tracking URI of MLflow; empty for the
    tracker's default."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}" if self.where else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingRules:
    """Experiment trackers of one job."""

    log_to: str = ""
    """Trackers, as the user gives them."""
    resumed: str = ""
    """Run folder from which the job resumed, whose runs at the trackers it continues."""


def parse_targets(text: str) -> tuple[TrackerTarget, ...]:
    """Parse `tensorboard`, `mlflow:http://10.0.0.5:5000`, or several of them separated by commas."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        kind, _, where = part.partition(":")
        found.append(TrackerTarget(validation.choice(kind, "tracker", TRACKERS), where))
    kinds = [target.kind for target in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise errors.BadInput(f"{kind} is named twice in {text!r}; give each tracker once")
    return tuple(found)
