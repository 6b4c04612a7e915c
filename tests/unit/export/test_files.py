"""Exports are written and read again, whole or as what changed; damage and gaps are told."""

import pathlib

import numpy as np
import pytest
import torch
from torch import nn

from springtide import errors, export
from springtide.domain.outline import TableOutline
from springtide.export import delta, files
from springtide.export.model import Model, Table, in_order

OUTLINE = TableOutline(name="bag", paths=("bag", "twin"), rows=6)


def model(number: int, rows: dict[int, list[float]]) -> Model:
    keys = np.array(list(rows), dtype=np.int64)
    table = in_order(OUTLINE, "float32", keys, np.array(list(rows.values()), dtype=np.float32).reshape(-1, 2))
    dense = {"top.weight": torch.full((1, 2), float(number)), "top.bias": torch.zeros(1)}
    return Model(
        job="demo", number=number, samples=10 * number, tables={"bag": table}, dense=dense, left_out=("steps",)
    )


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 2, mode="sum")
        self.twin = nn.Embedding(6, 2)
        self.top = nn.Linear(2, 1)


def table_of(found: Model) -> Table:
    return found.tables["bag"]


@pytest.mark.parametrize("format", files.FORMATS)
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_an_export_and_a_delta_after_it_are_read_as_one(
    tmp_path: pathlib.Path, format: files.Format, scheme: str
) -> None:
    url = f"{scheme}{tmp_path}/exports"
    old, new = model(1, {0: [1, 2], 3: [3, 4], 4: [5, 6]}), model(2, {0: [1, 2], 3: [3, 5], 5: [7, 8]})
    files.write(url, old, format=format, deltas=None, since=None)
    step = delta.between(table_of(old), table_of(new))
    card = files.write(url, new, format=format, deltas={"bag": step}, since=1)

    assert (card.rows, card.tables[0].removed) == (2, 1)
    assert files.numbers(url) == [2, 1]
    for number, made in ((1, old), (None, new)):
        found = export.read(url, number)
        np.testing.assert_array_equal(table_of(found).keys, table_of(made).keys)
        np.testing.assert_array_equal(table_of(found).rows, table_of(made).rows)
        assert torch.equal(found.dense["top.weight"], made.dense["top.weight"]) and found.left_out == ("steps",)


def test_a_plain_model_is_filled_in_every_place_of_a_table(tmp_path: pathlib.Path) -> None:
    made = model(1, {0: [1, 2], 3: [3, 4]})
    files.write(str(tmp_path), made, format="safetensors", deltas=None, since=None)
    plain = Plain()
    before = plain.bag.weight[1].tolist()
    export.into(plain, str(tmp_path))

    assert plain.bag.weight[3].tolist() == plain.twin.weight[3].tolist() == [3, 4]
    assert plain.bag.weight[1].tolist() == before
    assert plain.top.weight.tolist() == [[1, 1]]


def test_a_model_of_another_shape_is_refused_and_not_changed(tmp_path: pathlib.Path) -> None:
    files.write(str(tmp_path), model(1, {0: [1, 2], 5: [3, 4]}), format="safetensors", deltas=None, since=None)
    small = Plain()
    small.twin = nn.Embedding(4, 2)
    before = small.bag.weight.tolist()

    with pytest.raises(errors.BadInput, match=r"ids up to 5; the model's 'twin' is \(4, 2\)"):
        export.into(small, str(tmp_path))
    assert small.bag.weight.tolist() == before
    with pytest.raises(errors.BadInput, match="no table at 'bag'"):
        export.into(nn.Linear(2, 1), str(tmp_path))


def test_damage_gaps_and_half_an_export_are_told(tmp_path: pathlib.Path) -> None:
    url = str(tmp_path)
    with pytest.raises(errors.MissingFile, match="no exports at"):
        export.read(url)
    files.write(url, model(1, {0: [1, 2]}), format="safetensors", deltas=None, since=None)
    with pytest.raises(errors.MissingFile, match=r"no export 7 at .*; exports there: 1"):
        export.read(url, 7)
    (tmp_path / "export-000009").mkdir()
    assert files.numbers(url) == [1]
    content = tmp_path / "export-000001" / "table-0.safetensors"
    content.write_bytes(content.read_bytes()[:-1] + b"?")
    with pytest.raises(errors.BadInput, match="torn or was changed"):
        export.read(url)
