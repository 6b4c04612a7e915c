"""Write docs/reference/spec.md from the docstrings of domain.elastic_job. A test fails when the page is behind."""

import pathlib
import sys
import typing
from dataclasses import is_dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from springtide.domain.spec import schema  # noqa: E402
from springtide.domain.spec.elastic_job import ElasticJob  # noqa: E402

HEAD = """# A job's spec

This page lists the fields of a job spec. `springtide submit` reads it, a program builds it as
`springtide.domain.spec.elastic_job.ElasticJob`, and a Kubernetes cluster stores it as the `spec` of an `ElasticJob`.
[Submitting](../how-to/submitting.md) shows how to use it. Only `script` is required.
`tools/spec_page.py` writes this page from `springtide/domain/spec/elastic_job.py`.

```yaml
apiVersion: springtide.dev/v1alpha1   # optional: without these three lines, all keys
kind: ElasticJob                      # are fields of the spec, and `name` too
metadata: {name: ctr}
spec:
  script: train.py
```

"""
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", typing.Any: "anything"}


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(section(kind, title) for title, kind in classes(ElasticJob, "spec"))


def classes(kind: type, title: str) -> "list[tuple[str, type]]":
    """A class, then those of its fields, each once."""
    found = [(title, kind)]
    for field in schema.fields_of(kind):
        for inner in (field.kind, *typing.get_args(field.kind)):
            if is_dataclass(inner) and inner not in {known for _, known in found}:
                below = f"{title}.{field.key}".removeprefix("spec.")
                found += classes(inner, below if inner is field.kind else f"{below}.NAME")
    return found


def section(kind: type, title: str) -> str:
    """One class: its words and a row a field."""
    if title in ("workers", "servers"):
        title = "workers, servers"
    lines = [f"## `{title}`", "", (kind.__doc__ or "").strip(), "", "| field | what | default |", "|---|---|---|"]
    for field in schema.fields_of(kind):
        if kind is ElasticJob and field.key == schema.NAME:
            continue
        lines.append(f"| `{field.key}`: {words(field.kind)} | {field.words} | {default(field)} |".replace("  ", " "))
    return "\n".join([*lines, ""])


def words(kind: typing.Any) -> str:
    """A type for people."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin is tuple:
        return f"list of {words(inner[0])}"
    if origin is not None:
        return f"mapping of names to {words(inner[1])}"
    return WORDS.get(kind, "mapping, see below")


def default(field: schema.Field) -> str:
    """Text for fields without a value."""
    if field.required:
        return "must be given"
    value = field.default
    if value in (None, "", (), {}) or is_dataclass(value):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value:{'g' if isinstance(value, float) else ''}}`"


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "spec.md").write_text(page())
