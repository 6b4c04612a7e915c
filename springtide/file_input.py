"""Reads hand-written YAML, JSON and text files, and reports errors with line and field. JSON needs no PyYAML."""

import json
import pathlib
from typing import Any

from springtide import errors

Trail = tuple[str | int, ...]
"""Path to a field inside a file: mapping keys and list indices."""


class InputFile:
    """A file and its text, for error messages that name a line and a field."""

    def __init__(self, path: pathlib.Path, text: str) -> None:
        self.path, self.text = path, text

    def fail(self, trail: Trail, message: str) -> errors.BadInput:
        line = line_of(self.text, trail)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in trail).lstrip(".")
        return errors.BadInput(f"{where}: {name or 'the file'}: {message}")


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


def parse(path: pathlib.Path, text: str, *, what: str) -> Any:
    """Parse JSON (by file name) or YAML. `what` goes into error messages."""
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise errors.BadInput(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    try:
        import yaml
    except ImportError:
        raise errors.MissingExtra(f"{what} in YAML ({path}; JSON needs nothing)", "sim") from None
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise errors.BadInput(f"{path}:{line}: not YAML: {error.problem}") from None


def line_of(text: str, trail: Trail) -> int | None:
    """Return the line of a field; None without PyYAML."""
    try:
        import yaml
    except ImportError:
        return None
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
