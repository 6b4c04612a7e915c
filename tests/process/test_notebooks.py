"""The notebooks of examples/ run from their first cell to their last, and draw."""

import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_and_draws(path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    shown = [output.get("data", {}) for cell in book.cells for output in cell.get("outputs", ())]
    assert any("image/png" in data for data in shown)
