"""Saves and loads the view that a planner received, as `view.json` of a run or from a hand-written file.

The class `_File` defines the fields; `examples/plan_job.yaml` is a complete example. Sizes may be written as 16G, and
unbounded numbers as inf. An error names the line and the field. Next: `springtide plan`.
"""

import dataclasses
import math
import pathlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from springtide import errors, file_input, private_files
from springtide.domain.core import resources
from springtide.domain.core.shape import UNBOUNDED, ResourceBudget
from springtide.domain.plan.profile import Profile
from springtide.domain.plan.view import ClusterView, JobView, LaunchTime, PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.file_input import InputFile, Trail
from springtide.telemetry import events

LEFT_OUT: Mapping[type, Mapping[str, float]] = {
    ResourceBudget: {"cpu": math.inf, "memory": math.inf},
    Profile: {"at": 0.0},
}
"""Values for fields that have no default and are missing in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerView:
    """Everything that a policy receives: the cluster and the planning configuration."""

    view: ClusterView
    config: PlanningConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """Layout of the file."""

    now: float | None = None
    """Time of the view; None for the latest time in the file."""
    planning: PlanningConfig = dataclasses.field(default_factory=PlanningConfig)
    capacity: ResourceBudget = UNBOUNDED
    jobs: tuple[JobView, ...]
    history: tuple[PastJob, ...] = ()
    launches: tuple[LaunchTime, ...] = ()


def write(path: pathlib.Path, shown: PlannerView) -> None:
    view = shown.view
    laid_out = _File(
        now=view.now,
        planning=shown.config,
        capacity=view.capacity,
        jobs=view.jobs,
        history=view.history,
        launches=view.launches,
    )
    with events.disk_errors(path):
        private_files.replace(path, msgspec.json.encode(_plain(msgspec.to_builtins(laid_out))))


def _plain(value: Any) -> Any:
    """Replace numbers that JSON cannot represent by text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def read(path: pathlib.Path) -> PlannerView:
    text = file_input.read(path, what="a view of jobs in YAML or JSON", hint="examples/plan_job.yaml is one")
    place = InputFile(path, text)
    found = _made(place, (), file_input.parse(path, text, what="a job"), _File)
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
    known = [progress.submitted_at, progress.started_at, progress.last_change_at, *(one.at for one in job.profiles)]
    return max(at for at in known if at is not None)


def _made(place: InputFile, trail: Trail, value: Any, wanted: Any) -> Any:
    """Convert a value to the wanted type: a dataclass, a tuple of dataclasses, or a plain type."""
    if isinstance(wanted, types.UnionType) or typing.get_origin(wanted) is typing.Union:
        if value is None and types.NoneType in typing.get_args(wanted):
            return None
        nouns = [each for each in typing.get_args(wanted) if dataclasses.is_dataclass(each)]
        wanted = nouns[0] if nouns else wanted
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _noun(place, trail, value, wanted)
    if typing.get_origin(wanted) is tuple and typing.get_args(wanted)[-1] is Ellipsis:
        if not isinstance(value, list):
            raise place.fail(trail, f"expected a list, got {file_input.kind(value)}")
        item = typing.get_args(wanted)[0]
        return tuple(_made(place, (*trail, index), each, item) for index, each in enumerate(value))
    if isinstance(wanted, type) and issubclass(wanted, StrEnum) and value not in list(wanted):
        raise place.fail(trail, f"{value!r}; expected one of {', '.join(wanted)}")
    try:
        return msgspec.convert(_number(trail, value, wanted), wanted)
    except (msgspec.ValidationError, ValueError, errors.BadInput) as error:
        raise place.fail(trail, f"{error}") from None


def _number(trail: Trail, value: Any, wanted: Any) -> Any:
    """Parse numbers as people write them: 16G, inf, 4e9."""
    takes = {wanted, *typing.get_args(wanted)}
    if not isinstance(value, str) or str in takes or not takes & {int, float}:
        return value
    if str(trail[-1]).endswith(("memory", "memory_used")) and not value.lstrip("-+").lower().startswith(("inf", "nan")):
        return resources.parse_memory(value)
    return float(value)


def _noun(place: InputFile, trail: Trail, value: Any, wanted: type) -> Any:
    if not isinstance(value, Mapping):
        raise place.fail(trail, f"expected the fields of {_name(wanted)}, got {file_input.kind(value)}")
    known = {each.name: each for each in dataclasses.fields(wanted)}
    for name in value:
        if name not in known:
            raise place.fail((*trail, str(name)), str(errors.UnknownName("field", str(name), known)))
    hints = typing.get_type_hints(wanted)
    made: dict[str, Any] = dict(LEFT_OUT.get(wanted, {}))
    made |= {name: _made(place, (*trail, name), each, hints[name]) for name, each in value.items()}
    lacking = [
        name
        for name, each in known.items()
        if name not in made and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    if lacking:
        raise place.fail(trail, f"{_name(wanted)} needs {', '.join(lacking)} too")
    try:
        return wanted(**made)
    except errors.BadInput as error:
        raise place.fail(trail, str(error)) from None


def _name(wanted: type) -> str:
    return "the file" if wanted is _File else f"a {wanted.__name__}"
