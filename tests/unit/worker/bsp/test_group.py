"""A bsp group's model stored as rows on servers is read back bit-identical."""

import types

import pytest
import torch
from torch import nn

from springtide import errors
from springtide.checkpoint.format import group_model
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.bsp import group


def held_model(*sizes, dtype=torch.float32):
    """A model of such layers with an optimizer that has stepped, held as by group.py."""
    model = nn.Sequential(*[nn.Linear(4, size) for size in sizes], nn.BatchNorm1d(2)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for param in model.parameters():
        param.grad = torch.full_like(param, 0.5)
    optimizer.step()
    return types.SimpleNamespace(optimizers=[optimizer], tensors=lambda: [*model.parameters(), *model.buffers()])


@pytest.fixture
def client():
    local = TableClient.local(slots=64, seed=1)
    local.declare([TableSpec(id=0, name=group_model.TABLE, dim=group_model.ROW)])
    return local


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_group_model_is_read_back_bit_identical(client, dtype):
    place, one, other = (
        group_model.GroupPosition(7, 3, 40, [7]),
        held_model(3, 2000, dtype=dtype),
        held_model(3, 2000, dtype=dtype),
    )
    one.tensors()[0].data[0, 0] = float("nan")
    group.put_model(client, group.pack_model(one, place))
    assert group.load_model(other, group.get_model(client)) == place
    for mine, theirs in zip(one.tensors(), other.tensors(), strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine.nan_to_num(9), theirs.nan_to_num(9))
    states = [dict(each.optimizers[0].state_dict()["state"]) for each in (one, other)]
    assert states[0].keys() == states[1].keys()
    for number, kept in states[0].items():
        assert all(torch.equal(value, states[1][number][name]) for name, value in kept.items())


def test_shorter_group_model_replaces_a_longer_one(client):
    for body in (b"x" * 10_000, b"", b"y" * 4096):
        group.put_model(client, body)
        assert group.get_model(client) == body


def test_missing_group_model_and_group_model_of_another_script_differ_in_error(client):
    with pytest.raises(errors.JobFailed, match='was not made with sync="bsp"'):
        group.get_model(client)
    body = group.pack_model(held_model(3), group_model.GroupPosition(1, 0, 0, [1]))
    with pytest.raises(errors.BadInput, match="use the script that made"):
        group.load_model(held_model(5), body)
