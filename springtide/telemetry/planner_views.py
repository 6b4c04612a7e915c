"""Saves and loads the view that a planner received, as `view.json` of a run or from a hand-written file.

The class `_File` defines the fields; `examples/plan_job.yaml` is a complete example. Sizes may be written as 16G, and
unbounded numbers as inf. An error names the line and the field. Next: `springtide plan`.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from springtide import errors, file_input, private_files
from springtide.domain.core.shape import UNBOUNDED, ResourceBudget
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import ClusterView, JobView, LaunchTime, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.file_input import InputFile
from springtide.telemetry import events
from springtide.telemetry.logs import RunFiles

MOST_KEPT = 32
"""Views of past plans to keep; each has some 20 kB, or more with many profiles."""
LEFT_OUT: Mapping[type, Mapping[str, Any]] = {
    ResourceBudget: {"cpu": math.inf, "memory": math.inf},
    Profile: {"at": 0.0},
}
"""Values for fields that have no default, used if the fields are missing in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerView:
    """Everything that a policy receives: the cluster and the planning configuration."""

    view: ClusterView
    config: PlanningConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """Layout of the file."""

    now: float | None = None
    """Time of the view; None means the latest time in the file."""
    planning: PlanningConfig = dataclasses.field(default_factory=PlanningConfig)
    capacity: ResourceBudget = UNBOUNDED
    jobs: tuple[JobView, ...]
    history: tuple[PastJob, ...] = ()
    launches: tuple[LaunchTime, ...] = ()


def write(path: pathlib.Path, shown: PlannerView) -> None:
    content = {**msgspec.to_builtins(shown.view), "planning": msgspec.to_builtins(shown.config)}
    with events.disk_errors(path):
        private_files.replace(path, msgspec.json.encode(_plain(content)))


def keep(files: RunFiles, epoch: int) -> None:
    """Record the present view as the basis of this epoch's plan, so that people can see the plan's alternatives later.
    A file system without hard links keeps none.
    """
    with contextlib.suppress(OSError):
        files.views.mkdir(mode=private_files.FOLDER, exist_ok=True)
        os.link(files.view, files.views / f"{epoch}.json")
        for old in sorted(files.views.glob("*.json"), key=lambda path: int(path.stem))[:-MOST_KEPT]:
            old.unlink()


def path_of(files: RunFiles, epoch: int | None = None) -> pathlib.Path:
    """Return the file with the last view of a run, or with the view behind the plan of an epoch."""
    path = files.view if epoch is None else files.views / f"{epoch}.json"
    if not path.exists():
        raise errors.MissingFile(
            f"job {files.root.name} has no {path.name}: its size is fixed, or the job has no measurements yet. "
            "Only jobs without --workers and --servers are planned. To plan without a job, give a file, such as "
            "examples/plan_job.yaml"
        )
    return path


def _plain(value: Any) -> Any:
    """Replace numbers that JSON cannot represent with text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def read(path: pathlib.Path) -> PlannerView:
    text = file_input.read(path, what="a view of jobs in YAML or JSON", hint="examples/plan_job.yaml is one")
    place = InputFile(path, text)
    found = place.build(_File, file_input.parse(path, text), left_out=LEFT_OUT)
    now = found.now if found.now is not None else max((_last(job) for job in found.jobs), default=0.0)
    try:
        view = ClusterView(
            now=now, capacity=found.capacity, jobs=found.jobs, history=found.history, launches=found.launches
        )
    except errors.BadInput as error:
        raise place.fail(("jobs",), str(error)) from None
    return PlannerView(view=view, config=found.planning)


def _last(job: JobView) -> float:
    progress = job.progress
    known = [
        progress.submitted_at,
        progress.started_at,
        progress.last_change_at,
        *(profile.at for profile in job.profiles),
    ]
    return max(at for at in known if at is not None)
