"""Limits that keep the code maintainable: class width, import cycles, unique class names, formatter exceptions.

Each limit is one constant: lower it when a change makes that possible, never raise it.
"""

import ast
import collections
import functools
import pathlib

from tests.architecture import sources

ATTRIBUTES = 15
CIRCLES = 0
REPEATED_CLASS_NAMES = 4
FORMAT_SKIPS = 0
GERUNDS = 0
LATE_CALLBACKS = 0

SKIP = "# fmt: " + "skip"
PLAIN_NOUNS = {"planning", "testing", "sampling", "batching", "lightning"}
"""Names that end in "ing" and are nouns of the field."""


def attributes(node: ast.ClassDef) -> set[str]:
    """Annotated fields of a class, and what its methods set on `self`."""
    fields = {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    stored = {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    }
    return fields | stored


@functools.cache
def classes(*tops: str) -> tuple[tuple[pathlib.Path, str, frozenset[str]], ...]:
    """File, name and attributes of each class."""
    return tuple(
        (path, node.name, frozenset(attributes(node)))
        for path in sources.python(*tops)
        for node in sources.nodes(path)
        if isinstance(node, ast.ClassDef)
    )


def test_class_has_at_most_fifteen_attributes():
    wide = {
        f"{sources.short(path)}: {name}": len(fields)
        for path, name, fields in classes("springtide", "lab")
        if len(fields) > ATTRIBUTES
    }
    assert not wide, f"over {ATTRIBUTES} attributes: {wide}"


def test_class_name_is_defined_once():
    names = collections.Counter(name for _, name, _ in classes("springtide"))
    repeated = sorted(name for name, count in names.items() if count > 1)
    assert len(repeated) <= REPEATED_CLASS_NAMES, f"{len(repeated)} class names are defined twice or more: {repeated}"


def late_callbacks(tree: ast.AST, declared: set[str]) -> list[str]:
    """Assignments of a function, or of `self`, to an attribute of another object of ours, by their source.

    `declared` are the attributes of our classes. Attributes of modules and hooks of torch do not count.
    """
    found = []
    modules = {
        alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    skipped = modules | {"self", "cls"}
    methods = {
        method.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.decorator_list
    }
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = [node for node in ast.walk(scope) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        functions = {node.name for node in inner if node is not scope} | {"self"} | {f"self.{name}" for name in methods}
        for statement in scope.body:
            for node in ast.walk(statement) if not isinstance(statement, _SCOPES) else ():
                found += [
                    f"{ast.unparse(target)} = {ast.unparse(value)}"
                    for target, value in _assigned(node)
                    if isinstance(target, ast.Attribute)
                    and target.attr in declared
                    and ast.unparse(target.value) not in skipped
                    and (isinstance(value, ast.Lambda) or ast.unparse(value) in functions)
                ]
    return found


_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Targets of an assignment, each with its value."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs += zip(target.elts, node.value.elts, strict=False)
        else:
            pairs.append((target, node.value))
    return pairs


def _sets_an_attribute_of_another(node: ast.AST) -> bool:
    """Whether a node may be a late callback: seen fast, for few files have one."""
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Attribute)
        and not (isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"})
        and isinstance(value, ast.Lambda | ast.Name | ast.Attribute)
        for target, value in _assigned(node)
    )


def test_callbacks_are_constructor_arguments():
    own = set().union(*(fields for _, _, fields in classes("springtide", "lab")))
    declared = {name for name in own if not name.startswith("springtide_")}  # marks on tensors of users
    found = [
        f"{sources.short(path)}: {line}"
        for path in sources.python("springtide", "lab")
        if any(_sets_an_attribute_of_another(node) for node in sources.nodes(path))
        for line in late_callbacks(sources.tree(path), declared)
    ]
    assert len(found) <= LATE_CALLBACKS, f"callbacks that are set from outside: {found}"


def test_callback_assigned_after_construction_is_detected():
    tree = ast.parse(
        """
import sys

def wire(part, model):
    def heard(): ...
    part.on_report = heard
    part.clock, part.size = lambda: 0.0, 3
    part.size = size
    model.forward = sys.clock = heard

class Feed:
    def join(self, sharing):
        sharing.picker = self
        sharing.clock = self.join
        self.picker = self
"""
    )
    found = late_callbacks(tree, {"on_report", "clock", "size", "picker"})
    assert found == [
        "part.on_report = heard",
        "part.clock = lambda: 0.0",
        "sharing.picker = self",
        "sharing.clock = self.join",
    ]


@functools.cache
def module_graph() -> dict[str, set[str]]:
    """Which module of the product and the lab imports which: under TYPE_CHECKING and inside functions too."""
    names = {}
    for path in sources.python("springtide", "lab"):
        parts = path.relative_to(sources.ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "lab" else parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for node in sources.nodes(path):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    graph[name].add(inner if inner in names else node.module)
        graph[name] = (graph[name] & names.keys()) - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other: what remains after removing modules without a way in or out."""
    reached = {name: _reachable(graph, name) for name in _core(graph)}
    groups = {
        tuple(sorted({name, *(other for other in reach if name in reached.get(other, ()))}))
        for name, reach in reached.items()
        if name in reach
    }
    return sorted(map(list, groups))


def _core(graph: dict[str, set[str]]) -> set[str]:
    """Modules that may lie on a circle."""
    left = set(graph)
    while True:
        imported = set().union(*(graph[name] & left for name in left)) if left else set()
        kept = {name for name in left if graph[name] & left and name in imported}
        if kept == left:
            return left
        left = kept


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    return seen


def test_imports_have_no_cycles():
    found = circles(module_graph())
    assert len(found) <= CIRCLES, f"{len(found)} import circles: {found}"


def test_import_cycles_are_detected():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_formatter_is_rarely_disabled():
    skips = {
        sources.short(path): count
        for path in sources.python("springtide", "lab", "tests", "tools", "examples")
        if (count := path.read_text().count(SKIP))
    }
    assert sum(skips.values()) <= FORMAT_SKIPS, f"{sum(skips.values())} lines are kept from the formatter: {skips}"


def test_modules_of_a_top_level_package_are_nouns():
    gerunds = sorted(
        sources.short(path)
        for path in sources.python("springtide")
        if len(path.relative_to(sources.ROOT).parts) == 3
        and path.stem.endswith("ing")
        and "_" not in path.stem
        and path.stem not in PLAIN_NOUNS
    )
    assert len(gerunds) <= GERUNDS, f"name these for the thing, not for the doing: {gerunds}"
