"""Every example runs unchanged and prints what its last comment says."""

import pathlib

import pytest

from tests.process import forked_script

EXAMPLES = sorted(pathlib.Path(__file__).parents[2].glob("examples/[0-9]*.py"))


def expected(text):
    after = text.split("# Expected output:\n")[1]
    return [line.removeprefix("# ") for line in after.splitlines() if line.startswith("#")]


@pytest.mark.process
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_the_output_it_documents(path, tmp_path):
    text = path.read_text()
    assert len(text.splitlines()) < 80
    environment = {"PYTHONPATH": str(path.parents[1]), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    code, out, errors = forked_script.run(path, folder=tmp_path, environment=environment)
    assert code == 0, errors
    assert out.splitlines() == expected(text)
