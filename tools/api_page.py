"""Write docs/reference/api.md, the list of public names. mkdocstrings adds signatures and docstrings to the site.

A module with `__all__` is public. The tool reads sources and imports nothing, so it needs no optional package. A test
fails when the page is behind.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "api.md"
HEAD = """# API reference

This page lists every public name, for users who know what they look for. [The training
loop](../how-to/training-loop.md) explains the most important names with examples. `make docs-site` shows the signature
and the description of every name here; `help(st.Job)` does too. Names that are not on this page may change without
notice, except for these, which have pages of their own:

* [errors](errors.md), as `springtide.errors`
* [settings](settings.md) of `st.join(...)`, as fields of `springtide.config.Settings`
* [fields of a spec](spec.md), as `springtide.domain.spec.elastic_job.ElasticJob`
* [scaling policies](../design/policies.md) of your own

`tools/api_page.py` writes this page. The modules and their names:

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
    "springtide.integrations.recbole": "how-to/recbole",
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


def entry(name: str, module: str) -> str:
    """What mkdocstrings is to show of a name."""
    home = definition(name, module)
    options = f"heading: {name}, toc_label: {name}"
    if name in NOT_CALLED:
        options += ", show_signature: false"
    elif home.startswith("springtide.integrations."):
        options += ", members: false"  # methods that a framework calls
    return f"::: {home}.{name}\n    options: {{{options}}}\n"


def definition(name: str, module: str) -> str:
    """The module that defines a documented name. Imports are followed."""
    body = source_of(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return definition(name, node.module)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            documented = ast.get_docstring(node)
        elif name in assigned(node):
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
        else:
            continue
        if not documented:
            raise SystemExit(f"{module}.{name} is public and has no docstring")
        return module
    raise SystemExit(f"{module} does not define {name}")


def assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


if __name__ == "__main__":
    PAGE.write_text(page())
