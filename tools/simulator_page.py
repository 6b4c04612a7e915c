"""Writes the tables of docs/design/simulator.md from `springtide.sim`: run it after changing a parameter or a model."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from springtide.sim.world import parameters  # noqa: E402

PAGE = ROOT / "docs" / "design" / "simulator.md"
MODELS_HEAD = "| model | coefficients |\n|---|---|\n"
PARAMETERS_HEAD = "| parameter | value | unit | source |\n|---|---|---|---|\n"


def page(text: str) -> str:
    """The page with its tables as the code has them."""
    listed = "".join(f"| `{model.name}` | {model.source} |\n" for model in parameters.MODELS.values())
    rows = "".join(
        f"| `{row.name}` | {row.default:g} | {row.metadata['unit']} | {row.metadata['source']} |\n"
        for _, row in parameters.CONSTANTS.values()
    )
    text = _filled(text, MODELS_HEAD, listed + "\n")
    return _filled(text, PARAMETERS_HEAD, rows)


def _filled(text: str, head: str, rows: str) -> str:
    before, after = text.split(head)
    return before + head + rows + re.sub(r"\A(?:\|.*\n|\n)*", "", after)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
