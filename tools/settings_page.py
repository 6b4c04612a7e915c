"""Write docs/reference/settings.md from the docstrings of config.Settings. A test fails when the page is behind."""

import ast
import inspect
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from springtide import config  # noqa: E402

HEAD = """# Settings

Defaults, then the environment, then what the code gives to `st.join(...)`. `springtide run` sets what a process of a
job needs. This page is written by `tools/settings_page.py` from `springtide/config.py`.

"""


def page() -> str:
    return HEAD + "\n".join(entry for part in config.Settings.__bases__ for entry in entries(part))


def entries(part: type) -> list[str]:
    """One section per field of a part of `Settings`."""
    (settings,) = ast.parse(inspect.getsource(part)).body
    assert isinstance(settings, ast.ClassDef)
    sections = []
    for field, words in zip(settings.body, settings.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant):
            name, default = ast.unparse(field.target), ast.unparse(field.value) if field.value else "none"
            text = inspect.cleandoc(str(words.value.value)).replace("\n", " ")
            sections.append(
                f"## `{name}`\n\n`{config.PREFIX}{name.upper()}`, {ast.unparse(field.annotation)}, "
                f"default `{default}`\n\n{text}\n"
            )
    return sections


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "settings.md").write_text(page())
