"""Every example runs unchanged and prints what its last comment says."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted(pathlib.Path(__file__).parents[2].glob("examples/[0-9]*.py"))


def expected(text):
    after = text.split("# Expected output:\n")[1]
    return [line.removeprefix("# ") for line in after.splitlines() if line.startswith("#")]


@pytest.mark.process
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_the_output_it_documents(path):
    text = path.read_text()
    assert len(text.splitlines()) < 80
    run = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=path.parents[1],
        env={"PYTHONPATH": str(path.parents[1]), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == expected(text)
