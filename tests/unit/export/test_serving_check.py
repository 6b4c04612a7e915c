"""Predictions of an export are compared with those of the job at a checkpoint."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors, export
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FolderStore
from springtide.domain.model.tables import Init
from springtide.export import serving_check
from tests.unit.checkpoint import stores
from tests.unit.export.exports import exported


class Plain(nn.Module):
    """The model of `exports.PLAIN`."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 4, mode="sum")
        self.twin = nn.Embedding(6, 4)
        self.twin.weight = self.bag.weight
        self.top = nn.Linear(4, 1)

    def forward(self, ids, twins):
        return self.top(self.bag(ids) + self.twin(twins)).squeeze(1)


class Open(Plain):
    """The same model, whose table has no row count."""

    def __init__(self):
        super().__init__()
        self.bag = st.EmbeddingBag(4, name="ids")
        self.twin = nn.Identity()

    def forward(self, ids, twins):
        return self.top(self.bag(ids) + self.bag(twins.unsqueeze(1))).squeeze(1)


BATCH = {"ids": torch.tensor([[0, 3], [5, 5], [1, 2]]), "twins": torch.tensor([3, 0, 4])}


@pytest.fixture
def uniform(monkeypatch):
    """Rows that were never trained are not zero."""
    monkeypatch.setattr(stores, "TABLE", dataclasses.replace(stores.TABLE, init=Init(kind="uniform", a=1.0, b=2.0)))


def rows(**keys):
    return {int(key[1:]): [float(value)] * 4 for key, value in keys.items()}


def check(folder, build=Plain, *, inputs=BATCH, number=1, against=None, tolerance=1e-5):
    place = FolderStore(folder / f"checkpoint-{against or number}")
    manifest = checkpoint_io.read(place, against or number)
    found = export.read(str(folder / "exports"), number)
    return serving_check.compare(build, inputs, place=place, manifest=manifest, found=found, tolerance=tolerance)


@pytest.mark.usefixtures("uniform")
def test_export_predicts_as_its_job_with_rows_that_were_never_trained(tmp_path):
    exported(tmp_path, 1, rows(k0=1, k3=3))
    checked = check(tmp_path, Open)

    assert checked.equal and checked.largest_difference == 0 and checked.predictions == 3
    assert checked.tables["ids"] == serving_check.LookedUpIds(ids=6, untrained=4)
    assert checked.left_out == ("steps",)


@pytest.mark.usefixtures("uniform")
def test_export_of_an_older_checkpoint_differs(tmp_path):
    exported(tmp_path, 1, rows(k0=1, k3=3))
    exported(tmp_path, 2, rows(k0=1, k3=3.5))
    checked = check(tmp_path, Open, against=2)

    assert not checked.equal and (checked.export, checked.checkpoint) == (1, 2)
    assert checked.largest_difference == pytest.approx(abs(checked.of_job - checked.of_export)) != 0
    assert check(tmp_path, Open, against=2, tolerance=1e3).equal


@pytest.mark.usefixtures("uniform")
def test_rows_that_an_export_starts_otherwise_are_found(tmp_path, monkeypatch):
    exported(tmp_path, 1, rows(k0=1, k3=3))
    look_up = serving_check.export_folder.ExportedTable.look_up
    monkeypatch.setattr(
        serving_check.export_folder.ExportedTable,
        "look_up",
        lambda table, ids: np.where(np.isin(ids, table.keys)[:, None], look_up(table, ids), 0),
    )
    checked = check(tmp_path, Open)

    assert not checked.equal and checked.largest_difference > 1


@pytest.mark.parametrize(
    ("batch", "called"),
    [
        ({"ids": 1, "twins": 2}, (1, 2)),
        ((1, 2), (1, 2)),
        ({"user": 1}, ({"user": 1}, None)),
        (3, (3, None)),
    ],
)
def test_model_is_called_as_the_batch_says(batch, called):
    class Echo(nn.Module):
        def forward(self, ids, twins=None):
            return ids, twins

    assert serving_check.call(Echo(), batch) == called


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: 3, errors.BadInput, "built a int; expected a torch.nn.Module"),
        (lambda: Plain(1), errors.UserCodeFailed, "cannot be built: TypeError"),
        (Plain, errors.BadInput, "the model has a table 'bag', which is not among the tables of the export: ids"),
        (lambda: nn.Sequential(st.EmbeddingBag(8, name="ids")), errors.BadInput, "dim 4 in the export and 8"),
        (lambda: nn.Sequential(st.EmbeddingBag(4, name="ids")), errors.BadInput, "the model lacks: top.bias"),
    ],
)
def test_model_that_the_job_did_not_train_is_refused(tmp_path, build, error, said):
    exported(tmp_path, 1, rows(k0=1))
    with pytest.raises(error, match=said):
        check(tmp_path, build)


def test_error_of_the_model_names_the_inputs(tmp_path):
    exported(tmp_path, 1, rows(k0=1))
    with pytest.raises(errors.UserCodeFailed, match=r"failed on the inputs: TypeError.*--inputs needs one batch"):
        check(tmp_path, Open, inputs={"ids": torch.zeros(1, 1, dtype=torch.int64)})


def test_nan_and_infinity_are_equal_only_to_themselves():
    one, other = np.array([np.nan, np.inf, np.nan, 1.0, 1.0]), np.array([np.nan, np.inf, 1.0, np.inf, 1.5])

    assert serving_check.differences(one, other).tolist() == [0, 0, np.inf, np.inf, 0.5]
