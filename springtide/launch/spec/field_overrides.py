"""Sets fields of frozen dataclasses by name, for options such as `--planning` and for the `planning` of a spec.

A dot in a name leads to a field of a nested object. Names of fields in seconds may omit `_s`.
"""

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import msgspec

from springtide import errors
from springtide.domain.spec.planning_config import PlanningConfig

Noun = tuple[Any, Iterable[str]]
"""A frozen object, and those of its fields that may be set."""
POLICY = "policy"
NAMED = (POLICY, "priority", "data_workers")
"""Fields of `PlanningConfig` whose value is the name of a function."""

NUMBER, WHOLE = "a number", "a whole number"
VALUES: dict[Any, str] = {int: WHOLE, int | None: WHOLE, float: NUMBER, float | None: NUMBER, bool: "true or false"}


def planning_fields(*, policy: bool) -> tuple[str, ...]:
    return tuple(field.name for field in fields(PlanningConfig) if policy or field.name != POLICY)


def changed(given: Mapping[str, Any], *nouns: Noun, option: str = "--planning") -> list[Any]:
    """Set fields of the objects by name. Raise an error for an unknown name or a bad value."""
    known = {name: place for which, noun in enumerate(nouns) for name, place in _places(which, *noun)}
    new: list[dict[str, Any]] = [{} for _ in nouns]
    for name, value in given.items():
        name = name if name in known else f"{name}_s" if f"{name}_s" in known else name
        if name not in known:
            raise errors.UnknownName(f"{option.removeprefix('--').removesuffix('-setting')} setting", name, known)
        which, field, part = known[name]
        owner = nouns[which][0]
        inner = new[which].get(field, getattr(owner, field)) if part else owner
        kind = typing.get_type_hints(type(inner))[part or field]
        try:
            fits = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            expected = VALUES.get(kind, str(kind))
            raise errors.BadInput(f"{option} {name}: got {value!r}, expected {expected}") from error
        new[which][field] = replace(inner, **{part: fits}) if part else fits
    made = [replace(noun, **some) for (noun, _), some in zip(nouns, new, strict=True)]
    for override in made:
        if isinstance(override, PlanningConfig):
            check_names(override)
    return made


def check_names(config: PlanningConfig) -> None:
    """Look up policies and metrics now, because a wrong name would otherwise fail hours later."""
    usual = PlanningConfig()
    named = [name for name in NAMED if getattr(config, name) != getattr(usual, name)]
    if not named:
        return
    # import late, because these modules load slowly and are rarely needed
    from springtide.planning.allocate import choose
    from springtide.planning.dataworkers import allocation
    from springtide.planning.policy import registry

    look_up: dict[str, Callable[[str], Any]] = {
        POLICY: registry.found,
        "priority": choose.priority,
        "data_workers": allocation.load,
    }
    for name in named:
        look_up[name](getattr(config, name))


def _places(which: int, noun: Any, names: Iterable[str]) -> Iterable[tuple[str, tuple[int, str, str]]]:
    for name in names:
        value = getattr(noun, name)
        if is_dataclass(value):
            yield from ((f"{name}.{part.name}", (which, name, part.name)) for part in fields(value))
        else:
            yield name, (which, name, "")
