"""Write docs/reference/api.md from the signatures and docstrings of public names. A test fails when the page is behind.

A module with `__all__` is public. The tool reads sources and imports nothing, so it needs no optional package.
"""

import ast
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = """# API reference

This page lists every public name with its signature, for users who know what they look for. [The training
loop](../how-to/training-loop.md) explains the most important names with examples. `tools/api_page.py` writes
this page from the docstrings. Names that are not on this page may change without notice, except for these, which have
pages of their own:

* [errors](errors.md), as `springtide.errors`
* [settings](settings.md) of `st.join(...)`, as fields of `springtide.config.Settings`
* [fields of a spec](spec.md), as `springtide.domain.spec.elastic_job.ElasticJob`
* [scaling policies](../design/policies.md) of your own

The modules and their names:

"""
RETURNED = {
    "springtide": {
        "Batches": "springtide.worker.input.batches",
        "TableOptions": "springtide.embedding.modules.modules",
    },
    "springtide.launch.job_lookup": {"JobHandle": "springtide.platforms.agent.job_handle"},
    "springtide.export": {"ExportedModel": "springtide.export.table_files"},
}
"""Names that a user gets or gives without importing them, by module."""
NOT_CALLED = {"Job", "Batches"}
"""Classes that a user never creates."""
GUIDES = {
    "springtide": "how-to/training-loop",
    "springtide.checkpoint": "how-to/checkpointer",
    "springtide.data": "how-to/data-workers",
    "springtide.data.stream.decode": "how-to/streams",
    "springtide.export": "how-to/export",
    "springtide.integrations.accelerate": "how-to/accelerate",
    "springtide.integrations.lightning": "how-to/lightning",
    "springtide.integrations.transformers": "how-to/transformers",
    "springtide.launch.job_lookup": "how-to/submitting",
    "springtide.launch.submit": "how-to/submitting",
    "springtide.data.stream.log.layout": "how-to/streams",
    "springtide.data.stream.log.stream": "how-to/streams",
    "springtide.planning.online.seasonal": "how-to/forecasting",
    "springtide.ray": "how-to/ray",
    "springtide.zoo": "reference/zoo",
    "springtide.zoo.clicklog.generator": "reference/zoo",
    "springtide.zoo.metrics": "reference/zoo",
}
"""Page that shows how to use a module, where there is one."""
WIDTH = 100
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def page() -> str:
    modules = {dotted(path): path for path in sorted((ROOT / "springtide").rglob("*.py"))}
    public = {name: homes for name, path in modules.items() if (homes := homes_of(path, name))}
    index = [f"* [`{module}`](#{module.replace('.', '')}): `{'`, `'.join(names)}`" for module, names in public.items()]
    sections = [section(name, homes, first_paragraph(modules[name])) for name, homes in public.items()]
    return HEAD + "\n".join(index) + "\n\n" + "\n".join(sections)


def dotted(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def source_of(module: str) -> ast.Module:
    place = ROOT / module.replace(".", "/")
    return ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text())


def first_paragraph(path: pathlib.Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0].replace("\n", " ")


def homes_of(path: pathlib.Path, module: str) -> dict[str, str]:
    """The module that defines each public name of a module; empty if the module is not public."""
    text = path.read_text()
    if "\n__all__ = " not in text:
        return {}
    values = {
        node.targets[0].id: node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    if "_HOME" in values:
        return dict(sorted(ast.literal_eval(values["_HOME"]).items()))
    return {name: module for name in sorted(ast.literal_eval(values["__all__"]))}


def section(module: str, homes: dict[str, str], words: str) -> str:
    entries = [entry(name, home) for name, home in (homes | RETURNED.get(module, {})).items()]
    guide = f" [How to use it](../{GUIDES[module]}.md)." if module in GUIDES else ""
    return f"## `{module}`\n\n{words.removeprefix('Pure. ')}{guide}\n\n" + "\n".join(entries)


def find(name: str, module: str) -> tuple[Definition, str]:
    """The definition of a name, and the docstring of an assignment. Imports are followed."""
    body = source_of(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return find(name, node.module)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node, ast.get_docstring(node) or ""
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node, literal(after)  # type: ignore[return-value]
    raise SystemExit(f"{module} does not define {name}")


def entry(name: str, module: str) -> str:
    node, words = find(name, module)
    if not words:
        raise SystemExit(f"{module}.{name} is public and has no docstring")
    if isinstance(node, ast.FunctionDef):
        return f"### `{name}`\n\n{code(signature(node, module))}\n{prose(words)}\n"
    if not isinstance(node, ast.ClassDef):
        return f"### `{name}`\n\n{prose(words)}\n"
    return f"### `{name}`\n\n{class_text(node, words, module)}\n"


def class_text(node: ast.ClassDef, words: str, module: str) -> str:
    parts, members, own_fields = [prose(words)], [], fields_of_bases(node, module)
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            if node.name not in NOT_CALLED:
                parts.insert(0, code(signature(member, module, node.name)).rstrip("\n"))
                parts.append(prose(ast.get_docstring(member) or ""))
            own_fields += attributes(member)
        elif isinstance(member, ast.FunctionDef) and module.startswith("springtide.integrations."):
            continue  # methods that a framework calls
        elif isinstance(member, ast.FunctionDef) and (about := ast.get_docstring(member)):
            members += (
                [] if member.name.startswith("_") and member.name != "__len__" else [method(member, about, module)]
            )
        elif isinstance(member, ast.AnnAssign) and not shown(member).startswith("_"):
            own_fields.append((member, literal(after)))
    lines = [f"* `{shown(field)}`{f': {one_line(about)}' if about else ''}" for field, about in own_fields]
    return "\n\n".join(part for part in [*parts, "\n".join(lines), *members] if part)


def fields_of_bases(node: ast.ClassDef, module: str) -> list[tuple[ast.stmt, str]]:
    """The fields that a data class inherits."""
    fields = []
    for base in node.bases if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list) else []:
        above, _ = find(ast.unparse(base), module)
        assert isinstance(above, ast.ClassDef)
        pairs = zip(above.body, [*above.body[1:], None], strict=True)
        fields += fields_of_bases(above, module) + [
            (member, literal(after)) for member, after in pairs if isinstance(member, ast.AnnAssign)
        ]
    return fields


def attributes(init: ast.FunctionDef) -> list[tuple[ast.stmt, str]]:
    """Attributes that `__init__` sets and explains in a docstring after the assignment."""
    pairs = zip(init.body, init.body[1:], strict=False)
    return [(node, literal(after)) for node, after in pairs if literal(after) and not shown(node).startswith("_")]


def shown(node: ast.stmt) -> str:
    """A field or an attribute: name, type, and a default if it is one of a class."""
    target = getattr(node, "target", None) or node.targets[0]  # type: ignore[attr-defined]
    name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
    if not isinstance(node, ast.AnnAssign):
        return name
    given = node.value if isinstance(target, ast.Name) and not isinstance(node.value, ast.Call) else None
    return argument(ast.arg(name, node.annotation), given)


def method(node: ast.FunctionDef, words: str, module: str) -> str:
    if any(ast.unparse(mark) == "property" for mark in node.decorator_list):
        return f"#### `.{node.name}`\n\n{code(argument(ast.arg(node.name, node.returns)))}\n{prose(words)}"
    return f"#### `.{node.name}()`\n\n{code(signature(node, module))}\n{prose(words)}"


def signature(node: ast.FunctionDef, module: str, name: str = "") -> str:
    """A function as it is defined, without `self`. Constants of its module are replaced by their values."""
    given, parts = node.args, []
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    for place, (each, default) in enumerate(zip(given.args, defaults, strict=True)):
        parts += [argument(each, default, module)] if place or each.arg != "self" else []
    if given.vararg or given.kwonlyargs:
        parts.append(f"*{argument(given.vararg)}" if given.vararg else "*")
    parts += [argument(*pair, module) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    parts += [f"**{argument(given.kwarg)}"] if given.kwarg else []
    back = f" -> {kind(node.returns)}" if node.returns and not name else ""
    if any(ast.unparse(mark) == "contextmanager" for mark in node.decorator_list):
        return f"with {node.name}({', '.join(parts)}):"
    whole = f"{name or node.name}({', '.join(parts)}){back}"
    if len(whole) <= WIDTH:
        return whole
    return f"{name or node.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){back}"


def argument(node: ast.arg, default: ast.expr | None = None, module: str = "") -> str:
    if module and isinstance(default, ast.Name) and default.id.isupper():
        default = getattr(find(default.id, module)[0], "value", default)
    value = "" if default is None else f" = {ast.unparse(default)}" if node.annotation else f"={ast.unparse(default)}"
    return f"{node.arg}: {kind(node.annotation)}{value}" if node.annotation else f"{node.arg}{value}"


def kind(annotation: ast.expr) -> str:
    """A type as a user would write it, without the quotes of a forward reference."""
    return annotation.value if isinstance(annotation, ast.Constant) and annotation.value else ast.unparse(annotation)


def code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def literal(node: ast.stmt | None) -> str:
    """The text of a string that stands alone, which documents the assignment before it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def one_line(words: str) -> str:
    return re.sub(r"\s+", " ", words).replace("``", "`")


def prose(words: str) -> str:
    """A docstring as Markdown: lines that begin with `argument:` become a list."""
    lines: list[str] = []
    for line in words.replace("``", "`").splitlines():
        argument = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        if argument and argument[1][0].islower():
            if lines and lines[-1] and not lines[-1].startswith(("*", "  ")):
                lines.append("")
            lines.append(f"* `{argument[1].replace(', ', '`, `')}`: {argument[2]}")
        elif line.startswith("    ") and lines and lines[-1].startswith(("* `", "  ")):
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "api.md").write_text(page())
