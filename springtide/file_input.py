"""Reads hand-written YAML, JSON and text files, and reports errors with line and field.

`InputFile.build` converts the content to dataclasses. Numbers may be written as 16G (memory), inf or 4e9.
"""

import dataclasses
import json
import pathlib
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.domain.core import resources

Noun = TypeVar("Noun")
LeftOut = Mapping[type, Mapping[str, Any]]
"""Values for fields that have no default, used if the fields are missing in a file, by class."""
Trail = tuple[str | int, ...]
"""Path to a field inside a file: mapping keys and list indices."""


class InputFile:
    """A file and its text. Error messages name a line and a field of the text."""

    def __init__(self, path: pathlib.Path, text: str) -> None:
        self.path, self.text = path, text

    def fail(self, trail: Trail, message: str) -> errors.BadInput:
        line = line_of(self.text, trail)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in trail).lstrip(".")
        return errors.BadInput(f"{where}: {name or 'the file'}: {message}")

    def build(self, kind: type[Noun], content: Any, *, left_out: LeftOut | None = None) -> Noun:
        """Convert the parsed content of the file to a dataclass. Raise BadInput for an unknown, missing or wrong
        field."""
        made: Noun = self._convert((), content, kind, left_out or {})
        return made

    def _convert(self, trail: Trail, value: Any, wanted: Any, left_out: LeftOut) -> Any:
        """Convert a value to the wanted type: a dataclass, a tuple of dataclasses, or a plain type."""
        if isinstance(wanted, types.UnionType) or typing.get_origin(wanted) is typing.Union:
            if value is None and types.NoneType in typing.get_args(wanted):
                return None
            nouns = [choice for choice in typing.get_args(wanted) if dataclasses.is_dataclass(choice)]
            wanted = nouns[0] if nouns else wanted
        if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
            return self._fields(trail, value, wanted, left_out)
        if typing.get_origin(wanted) is tuple and typing.get_args(wanted)[-1] is Ellipsis:
            if not isinstance(value, list):
                raise self.fail(trail, f"expected a list, got {kind(value)}")
            item = typing.get_args(wanted)[0]
            return tuple(self._convert((*trail, index), part, item, left_out) for index, part in enumerate(value))
        if isinstance(wanted, type) and issubclass(wanted, StrEnum) and value not in list(wanted):
            raise self.fail(trail, f"{value!r}; expected one of {', '.join(wanted)}")
        try:
            return msgspec.convert(_number(trail, value, wanted), wanted)
        except (msgspec.ValidationError, ValueError, errors.BadInput) as error:
            raise self.fail(trail, f"{error}") from None

    def _fields(self, trail: Trail, value: Any, wanted: type, left_out: LeftOut) -> Any:
        name = f"a {wanted.__name__}" if trail else "the file"
        if not isinstance(value, Mapping):
            raise self.fail(trail, f"expected the fields of {name}, got {kind(value)}")
        known = {field.name: field for field in dataclasses.fields(wanted)}
        for key in value:
            if key not in known:
                raise self.fail((*trail, str(key)), str(errors.UnknownName("field", str(key), known)))
        hints = typing.get_type_hints(wanted)
        made: dict[str, Any] = dict(left_out.get(wanted, {}))
        made |= {key: self._convert((*trail, key), part, hints[key], left_out) for key, part in value.items()}
        lacking = [
            field.name
            for field in known.values()
            if field.name not in made
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        if lacking:
            raise self.fail(trail, f"{name} needs {', '.join(lacking)} too")
        try:
            return wanted(**made)
        except errors.BadInput as error:
            first = str(error).partition(" ")[0].rstrip(":")  # many messages begin with the name of the wrong field
            raise self.fail((*trail, first) if first in value else trail, str(error)) from None


def _number(trail: Trail, value: Any, wanted: Any) -> Any:
    """Parse numbers as people write them: 16G, inf, 4e9."""
    takes = {wanted, *typing.get_args(wanted)}
    if not isinstance(value, str) or str in takes or not takes & {int, float}:
        return value
    if str(trail[-1]).endswith(("memory", "memory_used")) and not value.lstrip("-+").lower().startswith(("inf", "nan")):
        return resources.parse_memory(value)
    return float(value)


def read(path: pathlib.Path, *, what: str, hint: str = "", most_bytes: int | None = None) -> str:
    """Read a text file. `what` ("a kubeconfig") and `hint` go into error messages."""
    expected = f"expected {what}; {hint}" if hint else f"expected {what}"
    try:
        with path.open("rb") as file:
            content = file.read() if most_bytes is None else file.read(most_bytes + 1)
        if most_bytes is not None and len(content) > most_bytes:
            raise errors.BadInput(f"{path}: larger than {most_bytes >> 20} MiB; {expected}")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise errors.MissingFile(f"no file {path}; {expected}") from None
    except IsADirectoryError:
        raise errors.MissingFile(f"{path} is a directory; {expected}") from None
    except OSError as error:
        raise errors.BadInput(f"{path}: cannot be read: {error.strerror}; {expected}") from None
    except UnicodeDecodeError as error:
        raise errors.BadInput(f"{path}: not UTF-8 at byte {error.start}; {expected}") from None


def parse(path: pathlib.Path, text: str) -> Any:
    """Parse JSON (by file name) or YAML."""
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise errors.BadInput(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets in brackets
            raise errors.BadInput(f"{path}: not JSON: {error}") from None
    import yaml  # imported late, because the import takes 20 ms

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise errors.BadInput(f"{path}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a control character, or a day 99
        raise errors.BadInput(f"{path}: not YAML: {error}".replace("\n", " ")) from None


def line_of(text: str, trail: Trail) -> int | None:
    """Return the line of a field; None if the text is not YAML."""
    import yaml

    try:
        node = yaml.compose(text)
    except yaml.YAMLError:
        return None
    mark = node.start_mark if node is not None else None
    for part in trail:
        if isinstance(part, int) and isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
        elif isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            mark, node = found[0].start_mark, found[1]
    return int(mark.line) + 1 if mark is not None else None


def kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
