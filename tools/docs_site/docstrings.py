"""Docstrings of this package as Markdown: lines that begin with `argument:` become a list."""

import re
from typing import Any

import griffe


class ArgumentLists(griffe.Extension):
    """Called for every object that mkdocstrings reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = prose(obj.docstring.value)


def prose(words: str) -> str:
    lines: list[str] = []
    for line in words.removeprefix("Pure. ").replace("``", "`").splitlines():
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
