"""Every example runs unchanged and prints what its last comment says; so does the project that `init` writes."""

import pathlib

import pytest

from springtide.cli import app
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


@pytest.mark.process
def test_starter_project_trains_and_passes_its_tests(tmp_path, capsys):
    assert app.main(["init", str(tmp_path / "project")]) == 0
    script = tmp_path / "project" / "all_tests.py"
    script.write_text(
        "import test_train\n\ntest_train.test_reader_hashes_ids_into_the_tables()\ntest_train.test_model_learns()\n"
    )
    environment = {
        "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
    }
    code, out, errors = forked_script.run(script, folder=script.parent, environment=environment)
    assert code == 0, errors
    assert len(out.splitlines()) == 3  # a line for each epoch
