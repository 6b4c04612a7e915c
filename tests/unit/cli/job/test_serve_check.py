"""`springtide serve-check`: its exit codes, its JSON and its reading of inputs."""

import json
import sys

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from springtide import errors, zoo
from springtide.cli import app
from springtide.cli.job.serve_check import model_builder, read_inputs
from tests.unit.export.exports import exported

MODEL = """
import torch
from torch import nn

import springtide as st

print("a module may print")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = st.EmbeddingBag(4, name="ids")
        self.top = nn.Linear(4, 1)

    def forward(self, ids):
        return self.top(self.bag(ids))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module, a batch, and two checkpoints with their exports."""
    (tmp_path / "served_model.py").write_text(MODEL)
    np.savez(tmp_path / "batch.npz", ids=np.array([[0, 3], [5, 5]]))
    for number in (1, 2):
        exported(tmp_path, number, {0: [1.0] * 4, 3: [float(number)] * 4})
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("served_model", None)


def command(*options, model="served_model:Model", inputs="batch.npz", checkpoints="./checkpoint-2"):
    return app.main(["serve-check", checkpoints, "exports", "--model", model, "--inputs", inputs, *options])


def test_equal_predictions_give_code_0_and_one_json_object(folder, capsys):
    assert command("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] and found["export"] == found["checkpoint"] == 2
    assert found["tables"] == {"ids": {"ids": 3, "untrained": 1}}

    assert command() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "are equal: the largest of 2 differences is 0" in said
    assert "ids: 3 ids looked up, 1 of them never trained" in said


def test_different_predictions_give_code_1_and_name_the_worst(folder, capsys):
    assert command("--export", "1", "--checkpoint", "2") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "export 1 and of job test at checkpoint 2 differ by up to" in said and "prediction 0 is" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "served_model"}, "expected MODULE:NAME"),
        ({"model": "served_model:Modell"}, "Did you mean 'Model'?"),
        ({"model": "no_such_module:Model"}, "module 'no_such_module' cannot be imported: ModuleNotFoundError"),
        ({"inputs": "batch.csv"}, "expected a file named *.npz, *.parquet, *.pt"),
        ({"inputs": "none.npz"}, "none.npz: no such file"),
        ({"checkpoints": "./checkpoint-1"}, "no checkpoint 2 in"),
    ],
)
def test_bad_input_is_one_line(folder, capsys, given, said):
    assert command(**given) == 2
    error = capsys.readouterr().err.removeprefix("a module may print\n")
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_inputs_are_read_by_name_from_each_format(tmp_path):
    ids, items = np.array([[1, 2], [3, 4]]), np.array([1.5, 2.5], dtype=np.float32)
    np.savez(tmp_path / "named.npz", ids=ids, items=items)
    np.savez(tmp_path / "unnamed.npz", ids, items)
    parquet.write_table(pyarrow.table({"ids": ids.tolist(), "items": items}), tmp_path / "named.parquet")
    torch.save({"ids": torch.from_numpy(ids), "items": torch.from_numpy(items)}, tmp_path / "named.pt")

    for name in ("named.npz", "named.parquet", "named.pt"):
        found = read_inputs(tmp_path / name)
        assert found["ids"].tolist() == ids.tolist() and found["items"].tolist() == items.tolist()
    unnamed = read_inputs(tmp_path / "unnamed.npz")
    assert isinstance(unnamed, tuple) and unnamed[1].tolist() == items.tolist()


def test_inputs_that_are_no_numbers_are_refused(tmp_path):
    parquet.write_table(pyarrow.table({"city": ["Bern", "Rome"]}), tmp_path / "text.parquet")
    parquet.write_table(pyarrow.table({"ids": [[1, 2], [3]]}), tmp_path / "ragged.parquet")
    (tmp_path / "torn.npz").write_bytes(b"PK torn")

    with pytest.raises(errors.BadInput, match="'city' is not an array of numbers"):
        read_inputs(tmp_path / "text.parquet")
    with pytest.raises(errors.BadInput, match=r"'ids' is not an array of numbers.*lists of one length"):
        read_inputs(tmp_path / "ragged.parquet")
    with pytest.raises(errors.BadInput, match=r"torn.npz cannot be read"):
        read_inputs(tmp_path / "torn.npz")


def test_model_of_a_package_that_imports_its_names_at_first_use_is_found():
    assert model_builder("springtide.zoo:ClickLog") is zoo.ClickLog
    with pytest.raises(errors.UnknownName, match=r"named 'Clicklog'.*ClickLog"):
        model_builder("springtide.zoo:Clicklog")
