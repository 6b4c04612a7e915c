"""Check that commands in README and docs exist and have the options shown."""

import re
import subprocess
import sys

import pytest

from tests.architecture import sources
from tests.commands import KNOWN

PAGES = [page for page in sources.tracked() if page.suffix == ".md" and page.name != "CHANGELOG.md"]
VERBS = "|".join(sorted(KNOWN, key=len, reverse=True))
GIVEN = re.compile(rf"(?<![\w/])springtide +((?:{VERBS})\b[^\n`|#]*)")


@pytest.mark.parametrize("page", PAGES, ids=sources.short)
def test_docs_use_only_options_the_command_has(page):
    wrong = []
    for line in GIVEN.findall(page.read_text()):
        command = max((each for each in KNOWN if re.match(rf"{each}\b(?!-)", line)), key=len, default="")
        options = re.findall(r"(?<!\S)--[a-z][a-z-]*", line.partition(" -- ")[0])
        wrong += [
            f"springtide {line}: {each}" for each in options if command and each not in KNOWN[command] | {"--help"}
        ]
    assert not wrong, wrong


def test_commands_of_the_front_page_are_found():
    front = GIVEN.findall((sources.ROOT / "README.md").read_text())
    assert any(line.startswith("run train.py --servers 2") for line in front) and len(front) > 2


LARGE = ("numpy", "scipy", "torch", "networkx", "sqlalchemy", "starlette", "rich", "yaml", "springtide._native")
LEFT_OUT = {  # in the order of imports: what each module must not load, because its processes start often
    "springtide.cli.show.status": (*LARGE, "asyncio", "ssl"),
    "springtide.cli.show.events": (*LARGE, "asyncio", "ssl"),
    "springtide.cli.job.run": (*LARGE, "springtide.brain.service"),
    "springtide.master.main": ("scipy", "torch", "networkx", "sqlalchemy", "starlette", "rich", "yaml"),
}


def test_commands_and_the_master_start_without_large_modules():
    code = (
        f"import importlib, sys\nfor module, others in {LEFT_OUT}.items():\n    importlib.import_module(module)\n"
        "    for other in sys.modules.keys() & set(others):\n        print(module, 'imports', other)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=sources.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
