"""Reads a YAML or JSON spec into an `ElasticJob`, and reports all mistakes at once with line and column.

`domain.spec.schema` defines names and types. This module defines the YAML rules: text stays as written (`off`, `1.10`),
keys must be unique, and tabs and a second document get specific error messages.
"""

import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from springtide import errors, file_input
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob
from springtide.domain.spec.schema import Path, Scalar, SpecProblem

MOST_BYTES = 1 << 20  # largest file in bytes; a cluster would not store larger objects
MOST_NODES = 100_000  # most nodes in a file, because YAML aliases can expand a small file enormously
SHOWN = 20
MERGE = "tag:yaml.org,2002:merge"
PLAIN_TAGS = {"tag:yaml.org,2002:" + kind for kind in ("int", "float", "bool", "null")}
TEXT_TAGS = {"tag:yaml.org,2002:" + kind for kind in ("str", "timestamp", "value", "merge")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSpec:
    """A spec that was read from a file."""

    job: ElasticJob
    path: pathlib.Path
    namespace: str = ""
    """Kubernetes namespace in the file; empty for none."""
    given: frozenset[Path]
    """Paths of the fields in the file; all other fields are open."""
    folder: pathlib.Path
    """Folder of the code: the working folder that the file names, or else the folder of the file."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Line and column in the file, from 1."""

    line: int
    column: int


class _Tree:
    """A file as plain data, with the position of every node."""

    def __init__(self) -> None:
        self.keys: dict[Path, _Mark] = {}
        self.values: dict[Path, _Mark] = {}
        self.problems: list[tuple[_Mark, str]] = []
        self.nodes = 0

    def tell(self, node: Any, path: Path, message: str) -> None:
        self.problems.append((_mark(node), str(SpecProblem(path, message))))

    def place(self, problem: SpecProblem) -> _Mark:
        path = problem.path
        while path:
            places = (self.keys, self.values) if problem.at_key or path != problem.path else (self.values, self.keys)
            for known in places:
                if path in known:
                    return known[path]
            path = path[:-1]
        return _Mark(1, 1)


def read(path: pathlib.Path) -> ParsedSpec:
    hint = f"{nearest(path)}docs/reference/spec.md describes its fields"
    return parse(file_input.read(path, what="the spec of a job", hint=hint, most_bytes=MOST_BYTES), path)


def nearest(path: pathlib.Path) -> str:
    if os.path.isfile(path):
        return ""
    folder = path if os.path.isdir(path) else path.parent
    found = sorted(str(file) for file in folder.glob("*.y*ml"))
    return f"there is {', '.join(found[:3])}; " if found else ""


def parse(text: str, path: pathlib.Path) -> ParsedSpec:
    tree = _Tree()
    plain = _plain(_document(text, path), (), tree, ())
    job, problems = schema.check(plain)
    mistakes = [*tree.problems, *((tree.place(problem), str(problem)) for problem in problems)]
    if job is None or mistakes:
        raise errors.BadInput(_list(path, mistakes))
    metadata = plain.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return ParsedSpec(
        job=job,
        path=path,
        namespace=namespace.text if isinstance(namespace, Scalar) else "",
        given=frozenset(_bare(value) for value in tree.values),
        folder=path.parent / job.working_dir,
    )


def _bare(path: Path) -> Path:
    return path[1:] if path[:1] in (("spec",), ("metadata",)) else path


def _list(path: pathlib.Path, mistakes: list[tuple[_Mark, str]]) -> str:
    mistakes = sorted(mistakes, key=lambda mistake: (mistake[0].line, mistake[0].column))
    lines = [f"{path}:{mark.line}:{mark.column}: {message}" for mark, message in mistakes[:SHOWN]]
    if len(mistakes) > SHOWN:
        lines.append(f"and {len(mistakes) - SHOWN} more mistakes")
    return "\n".join(lines)


def _document(text: str, path: pathlib.Path) -> Any:
    import yaml  # imported late, because the import takes 20 ms and only readers of a spec need it

    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise errors.BadInput(f"{path}:{line}:{column}: {_why(error, text, line)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        raise errors.BadInput(f"{path}:{line}:{column}: an invalid character in YAML: {error.character!r}") from None
    found = [document for document in documents if document is not None and document.tag != "tag:yaml.org,2002:null"]
    if not found:
        raise errors.BadInput(f"{path}:1:1: empty; expected the spec of a job, at least `script: train.py`")
    if len(found) > 1:
        mark = found[1].start_mark
        raise errors.BadInput(
            f"{path}:{mark.line + 1}:{mark.column + 1}: a second document begins here; expected one job a file"
        )
    return found[0]


def _why(error: Any, text: str, line: int) -> str:
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())] or "'\\t'" in str(error.problem):
        return "a tab; YAML is indented by spaces only"
    if "mapping values are not allowed" in str(error.problem):
        return "a second ': ' on one line; put the value in quotes, or check the indentation of the line before"
    if "could not find expected ':'" in str(error.problem):
        return "no ':' after a name; expected `name: value`"
    where = f" {error.context}" if error.context and "while" not in str(error.context) else ""
    return f"not YAML: {error.problem}{where}"


def _plain(node: Any, path: Path, tree: _Tree, above: tuple[int, ...]) -> Any:
    import yaml

    tree.nodes += 1
    if id(node) in above:
        tree.tell(node, path, "an alias inside the value that it refers to")
        return None
    if tree.nodes > MOST_NODES:
        if tree.nodes == MOST_NODES + 1:
            tree.tell(node, path, "aliases expand the file to more than 100,000 values")
        return None
    tree.values[path] = _mark(node)
    inside = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, tree, inside)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, place), tree, inside) for place, item in enumerate(node.value)]
    return _scalar(node, path, tree)


def _mapping(node: Any, path: Path, tree: _Tree, above: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in _pairs(node, path, tree, above):
        at = (*path, key.value)
        if key.value in found:
            first = tree.keys[at]
            tree.tell(key, at, f"given twice, first in line {first.line}; leave one out")
            continue
        tree.keys[at] = _mark(key)
        found[key.value] = _plain(value, at, tree, above)
    return found


def _pairs(node: Any, path: Path, tree: _Tree, above: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """Yield a mapping's own pairs, and then the pairs that `<<` merges and that the mapping does not override."""
    import yaml

    own: list[tuple[Any, Any]] = []
    merged: list[Any] = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            tree.tell(key, path, "a name that is not text; expected `name: value`")
        elif key.tag == MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        else:
            own.append((key, value))
    yield from own
    known = {key.value for key, _ in own}
    for mapping in merged:
        if not isinstance(mapping, yaml.MappingNode) or id(mapping) in above:
            tree.tell(mapping, path, "`<<` needs an alias of a mapping")
            continue
        for key, value in _pairs(mapping, path, tree, (*above, id(mapping))):
            if key.value not in known:
                known.add(key.value)
                yield key, value


def _scalar(node: Any, path: Path, tree: _Tree) -> Any:
    import yaml

    if node.tag not in PLAIN_TAGS:
        if node.tag not in TEXT_TAGS:
            tree.tell(node, path, f"a tag, {node.tag}; expected a plain value")
        return Scalar(node.value, node.value, quoted=bool(node.style))
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except (ValueError, yaml.YAMLError):  # for example, !!int with text that is not a number
        value = node.value
    return None if value is None else Scalar(node.value, value)


def _mark(node: Any) -> _Mark:
    return _Mark(node.start_mark.line + 1, node.start_mark.column + 1)
