"""Runs the program of a page, with changed lines."""

import pathlib
import re

GUIDES = pathlib.Path(__file__).resolve().parents[3] / "docs" / "how-to"


def run(page, folder, monkeypatch, *changes):
    """Run the page's train.py in a folder, with (old, new) texts replaced; return its variables."""
    monkeypatch.chdir(folder)
    [text] = re.findall(r"```python file=train.py\n(.*?)```", (GUIDES / page).read_text(), flags=re.S)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    variables = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), variables)
    return variables
