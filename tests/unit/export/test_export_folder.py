"""Write and read exports and deltas; damage and gaps are reported."""

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from springtide import errors, export
from springtide.domain.model.tables import Init
from springtide.export import export_folder, table_files
from tests.unit.checkpoint import stores
from tests.unit.export.exports import exported


def rows(**keys):
    return {int(key[1:]): [float(value)] * 4 for key, value in keys.items()}


def table_of(found):
    return dict(zip(found.tables["ids"].keys.tolist(), found.tables["ids"].rows.tolist(), strict=True))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 4, mode="sum")
        self.twin = nn.Embedding(6, 4)
        self.top = nn.Linear(4, 1)


@pytest.mark.parametrize("format", table_files.FORMATS)
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_export_and_its_delta_are_read_as_one(tmp_path, format, scheme):
    url = f"{scheme}{tmp_path}/exports"
    old, new = rows(k0=1, k3=2, k4=3), rows(k0=1, k3=2.5, k5=4)
    exported(tmp_path, 1, old, url=url, format=format)
    card = exported(tmp_path, 2, new, url=url, format=format, since=1)

    assert (card.rows, card.tables[0].removed) == (2, 1)
    assert export_folder.numbers(url) == [2, 1]
    for number, made in ((1, old), (None, new)):
        found = export.read(url, number)
        assert table_of(found) == made
        assert found.dense["top.weight"].tolist() == [[float(number or 2)] * 4] and found.left_out == ("steps",)
    assert not list(tmp_path.glob("exports/.export-*")), "nothing is left of what was on its way"


def test_plain_model_is_filled_wherever_a_table_is_used(tmp_path):
    exported(tmp_path, 1, rows(k0=1, k3=3))
    plain = Plain()
    found = export.into(plain, str(tmp_path / "exports"))

    assert plain.bag.weight[3].tolist() == plain.twin.weight[3].tolist() == [3, 3, 3, 3]
    assert plain.top.weight.tolist() == [[1, 1, 1, 1]]
    assert plain.bag.weight.tolist() == found.tables["ids"].look_up(range(6)).tolist()


def test_row_that_was_never_trained_is_read_as_in_the_job(tmp_path, monkeypatch):
    init = Init(kind="uniform", a=1.0, b=2.0)
    monkeypatch.setattr(stores, "TABLE", dataclasses.replace(stores.TABLE, init=init))
    monkeypatch.setattr(export_folder, "FILLED_ROWS", 4)
    store = stores.store()
    served = np.empty((6, 4), dtype=np.float32)
    store.pull(np.full(6, stores.TABLE.id, dtype=np.uint16), np.arange(6), served.reshape(-1))
    served[3] = 3
    exported(tmp_path, 1, rows(k3=3))
    exported(tmp_path, 2, rows(k3=3), since=1)
    plain = Plain()
    found = export.into(plain, str(tmp_path / "exports"))

    np.testing.assert_array_equal(plain.twin.weight.detach().numpy(), served)
    np.testing.assert_array_equal(found.tables["ids"].look_up([5, 3, 5]), served[[5, 3, 5]])


def test_export_without_initial_values_leaves_rows_and_refuses_to_look_them_up(tmp_path):
    card = exported(tmp_path, 1, rows(k0=1))
    url = str(tmp_path / "exports")
    without = msgspec.structs.replace(card.tables[0], untrained=None)
    export_folder.publish(export_folder.place_for(url, 1), msgspec.structs.replace(card, tables=(without,)))
    plain = Plain()
    before = plain.bag.weight[1].tolist()
    table = export.into(plain, url).tables["ids"]

    assert plain.bag.weight[1].tolist() == before
    assert table.look_up([0]).tolist() == [[1, 1, 1, 1]]
    with pytest.raises(errors.BadInput, match="Export the checkpoint again"):
        table.look_up([0, 1])


def test_model_of_another_shape_is_refused_and_not_changed(tmp_path):
    exported(tmp_path, 1, rows(k0=1, k5=3))
    small = Plain()
    small.twin = nn.Embedding(4, 4)
    before = small.bag.weight.tolist()

    with pytest.raises(errors.BadInput, match=r"ids up to 5; the model's 'twin' is \(4, 4\)"):
        export.into(small, str(tmp_path / "exports"))
    assert small.bag.weight.tolist() == before
    with pytest.raises(errors.BadInput, match="no table at 'bag'"):
        export.into(nn.Linear(2, 1), str(tmp_path / "exports"))


def test_damaged_missing_or_partial_exports_are_reported(tmp_path):
    url = str(tmp_path / "exports")
    with pytest.raises(errors.MissingFile, match="no exports at"):
        export.read(url)
    exported(tmp_path, 1, rows(k0=1))
    with pytest.raises(errors.MissingFile, match=r"no export 7 at .*; exports there: 1"):
        export.read(url, 7)
    (tmp_path / "exports" / "export-000009").mkdir()
    assert export_folder.numbers(url) == [1]
    content = tmp_path / "exports" / "export-000001" / "table-0.safetensors"
    content.write_bytes(content.read_bytes()[:-1] + b"!")
    with pytest.raises(errors.BadInput, match="torn or was changed"):
        export.read(url)


def test_unusable_base_is_refused_and_leaves_no_card(tmp_path):
    url = str(tmp_path / "exports")
    exported(tmp_path, 1, rows(k0=1))
    index = tmp_path / "exports" / "export-000001" / table_files.NAME
    whole = index.read_bytes()
    for content, match in ((whole[:-1] + b"?", "torn"), (b"?" + whole[1:], "checksum"), (whole[:2], "torn")):
        index.write_bytes(content)
        with pytest.raises(table_files.UnusableBase, match=match):
            exported(tmp_path, 2, rows(k0=2), since=1)
        assert export_folder.numbers(url) == [1]
    index.unlink()
    with pytest.raises(table_files.UnusableBase, match=r"no index.*without --since"):
        exported(tmp_path, 2, rows(k0=2), since=1)


def test_first_format_export_is_readable_but_no_base(tmp_path):
    url = str(tmp_path / "exports")
    card = exported(tmp_path, 1, rows(k0=1))
    older = msgspec.structs.replace(card, version=1, slots=0, index_crc=None)
    export_folder.publish(export_folder.place_for(url, 1), older)
    assert table_of(export.read(url)) == rows(k0=1)
    with pytest.raises(table_files.UnusableBase, match="no index"):
        exported(tmp_path, 2, rows(k0=2), since=1)
    assert torch.equal(export.read(url).dense["top.bias"], torch.zeros(1))


def test_delta_since_its_own_checkpoint_is_refused(tmp_path):
    exported(tmp_path, 1, {7: [1.0] * 4})
    with pytest.raises(errors.SpringtideError, match="--since 1: the checkpoint is 1"):
        exported(tmp_path, 1, {7: [1.0] * 4}, since=1)
    assert export.read(str(tmp_path / "exports"), 1).tables
