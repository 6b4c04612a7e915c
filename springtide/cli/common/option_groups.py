"""Options of a command that belong together, as one dataclass: declared once, in a file of their own.

In: a dataclass whose fields are annotated as Typer wants them. Out: `taking(Group)`, a decorator: the command has these
options after its own, and gets them as one value, its argument of that name. Next: `cli.app` declares commands.
"""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

Command = Callable[..., int]


def taking(**groups: type) -> Callable[[Command], Command]:
    """Turn each field of the given dataclasses into an option; pass one dataclass per group to the command."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters
        hints = typing.get_type_hints(command, include_extras=True)
        parameters = [
            one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in own.items()
            if name not in groups
        ]
        for group in groups.values():
            parameters += _parameters(group)

        @functools.wraps(command)
        def called(**given: Any) -> int:
            made = {
                name: group(**{each.name: given.pop(each.name) for each in fields(group)})
                for name, group in groups.items()
            }
            return command(**given, **made)

        setattr(called, "__signature__", inspect.Signature(parameters))  # noqa: B010 - mypy knows of none
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        del called.__wrapped__  # else its own signature would be looked at
        return called

    return decorate


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    found = []
    for each in fields(group):
        assert each.default is not MISSING, f"option {each.name}: wanted a default"
        found.append(
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
            )
        )
    return found
