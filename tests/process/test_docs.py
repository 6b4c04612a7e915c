"""README and docs/ tell the truth: blocks marked `run` run, in page order, in one fresh folder a page.

```python file=train.py   is written to that file        ```python run   is run as a Python script
```sh run                 is run by bash -e, with our commands on the PATH
```python run needs=a,b   is left out where one of these modules is not installed
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.process import forked_command, forked_script

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<language>\w+)(?P<options>(?: [\w=.,/-]+)+)\n(?P<code>.*?)^```$", flags=re.M | re.S)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.exists() and any(re.search(r"\brun\b", match["options"]) for match in FENCE.finditer(page.read_text()))
]

LONG = {"docs/tutorials/daily.md", "docs/tutorials/your-model.md", "docs/how-to/running.md"}
"""Pages with many jobs, each of which takes seconds."""


def blocks(text):
    """The marked blocks of a page: line, language, options, code."""
    for match in FENCE.finditer(text):
        options = dict(option.partition("=")[::2] for option in match["options"].split())
        yield text.count("\n", 0, match.start()) + 1, match["language"], options, match["code"]


def is_runnable(options):
    """Whether a block is run, and the modules that it needs are installed."""
    modules = filter(None, options.get("needs", "").split(","))
    return "run" in options and all(importlib.util.find_spec(module) for module in modules)


def page_test(page):
    """A page, with its name and marks."""
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[pytest.mark.soak] if name in LONG else [])


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [page_test(page) for page in PAGES])
def test_marked_blocks_of_a_page_run(page, tmp_path):
    commands = tmp_path / "bin"
    path = os.pathsep.join([str(commands), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    with forked_command.shell_commands(commands):
        for line, language, options, code in blocks(page.read_text()):
            assert set(options) <= {"run", "file", "needs"}, f"{page}:{line}: unknown option among {sorted(options)}"
            if "file" in options:
                (tmp_path / options["file"]).write_text(code)
            if is_runnable(options):
                returned, out, errors = {"python": run_python, "sh": run_shell}[language](code, tmp_path, environment)
                assert returned == 0, f"{page}:{line}:\n{code}\n{out[-2000:]}\n{errors[-2000:]}"


def run_python(code, folder, environment):
    """Run a Python block. Return its exit code, standard output and standard error."""
    script = folder / "block.py"
    script.write_text(code)
    return forked_script.run(script, folder=folder, environment=environment)


def run_shell(code, folder, environment):
    """Run a shell block. Return its exit code, standard output and standard error."""
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_marked_blocks_are_found_with_their_options():
    page = "text\n```python file=a.py\nx = 1\n```\n```sh run\necho\n```\n```sh\nnot marked\n```\n"
    assert list(blocks(page)) == [
        (2, "python", {"file": "a.py"}, "x = 1\n"),
        (5, "sh", {"run": ""}, "echo\n"),
    ]
