"""Pure. Validates numbers that users pass, and rejects everything else with an error that names the argument."""

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from springtide import errors

Word = TypeVar("Word", bound=str)
LARGEST = 2**63 - 1
SEED = "a whole number from 0 to 2^63 - 1"


UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for malformed bytes. A name that is not UTF-8 is not a MsgspecError."""


class FileVersion(msgspec.Struct):
    """The version of a file's format, which is read before the fields that depend on it."""

    format: int | str | None = None
    version: int | None = None


def number(value: Any, name: str, wanted: str, *, least: int | None = 0, most: int = LARGEST) -> int:
    """Return `value` as an int, or raise BadInput. Booleans are rejected. `least=None`: no lower bound."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool) or (least is not None and whole < least) or whole > most:
        raise errors.BadInput(f"{name}={value!r}: expected {wanted}")
    return whole


def check_range(
    holder: object, *names: str, least: float | None = None, above: float | None = None, unit: str = "", of: str = ""
) -> None:
    """Raise BadInput unless each named field is None or a finite number in range: greater than `above` if `above` is
    given, otherwise at least `least`.
    """
    for name in names:
        value = getattr(holder, name)
        inside = value is None or ((value > above if above is not None else value >= (least or 0)) and value < math.inf)
        if not inside:
            bound = f"above {above:g}" if above is not None else f"{least or 0:g} or more"
            raise errors.BadInput(f"{of}{name} {value:g}: must be {f'{unit}, ' if unit else ''}{bound}")


def choice(text: str, what: str, known: Sequence[Word]) -> Word:
    for word in known:
        if text == word:
            return word
    raise errors.UnknownName(what, text, known)


_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(what: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 20m or 1.5h. `what` names the duration in the error message."""
    found = _TIME.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise errors.BadInput(f"{what} {text}: expected a time above 0, such as 90s, 20m or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def plain(value: Any) -> Any:
    """Convert NumPy and torch scalars to Python numbers, also inside tuples, lists and dicts."""
    kind = type(value)
    if kind in (tuple, list):
        return kind(map(plain, value))
    if kind is dict:
        return {name: plain(part) for name, part in value.items()}
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        return value.item()
    return value


def takes_numbers(*leave: str) -> Callable[[Function], Function]:
    """Decorate a function so that its numeric arguments are Python numbers. Arguments named in `leave` are passed
    unchanged.
    """

    def decorate(function: Function) -> Function:
        names = list(inspect.signature(function).parameters)
        left = {number for number, name in enumerate(names) if name in leave}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            own = [arg if number in left else plain(arg) for number, arg in enumerate(args)]
            return function(*own, **{name: arg if name in leave else plain(arg) for name, arg in kwargs.items()})

        return call  # type: ignore[return-value]

    return decorate


def holds_numbers(kind: Class) -> Class:
    kind.__init__ = takes_numbers("self")(kind.__init__)  # type: ignore[misc]
    return kind
