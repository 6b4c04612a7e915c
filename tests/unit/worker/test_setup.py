"""Weights loaded after prepare are refused in a job; those loaded before become the first values."""

import copy
import pickle

import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors
from springtide.worker.setup import LoadGuard
from tests.unit.worker import clicks


def model():
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))


def test_loading_model_weights_after_prepare_is_refused():
    watched, other = model(), model()
    before = copy.deepcopy(watched.state_dict())
    LoadGuard(watched)
    with pytest.raises(errors.BadInput, match=r"Call load_state_dict\(\) before job"):
        watched.load_state_dict(other.state_dict())
    with pytest.raises(errors.BadInput, match=r"Call load_state_dict\(\) before job"):
        watched[2].load_state_dict(other[2].state_dict())
    assert all(torch.equal(before[name], value) for name, value in watched.state_dict().items())


def test_copies_of_the_model_accept_weights_after_prepare():
    watched, other = model(), model()
    LoadGuard(watched)
    for free in (copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
        free.load_state_dict(other.state_dict())
        assert torch.equal(free[0].weight, other[0].weight)


def test_table_of_a_job_refuses_weights_after_prepare():
    trained, dataset = clicks.make(seed=5)
    served, _ = clicks.make(seed=6)
    served, _, _ = st.join().prepare(served, torch.optim.SGD(served.parameters(), lr=0.1), dataset)
    served.rows.load_state_dict(trained.rows.state_dict())  # alone
    served.rows.springtide_binding.client.loads = False
    with pytest.raises(errors.BadInput, match=r"Call load_state_dict\(\) before job"):
        served.rows.load_state_dict(trained.rows.state_dict())


class Open(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = st.EmbeddingBag(2)
        self.many = st.EmbeddingBags({"a": 2, "b": 3})


STATE = {
    "one.keys": torch.tensor([7, -1]),
    "one.rows": torch.ones(2, 2),
    "many.a.keys": torch.tensor([5]),
    "many.a.rows": torch.full((1, 2), 2.0),
    "many.b.keys": torch.tensor([2**62]),
    "many.b.rows": torch.full((1, 3), 3.0),
}


def test_open_tables_start_with_weights_loaded_before_prepare():
    data = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    made = Open()
    made.load_state_dict({name: STATE[name] for name in sorted(STATE)})
    made, _, _ = st.join().prepare(made, torch.optim.SGD(made.parameters(), lr=0.1), data, batch_size=2)
    found = made.state_dict()
    order = STATE["one.keys"].argsort()
    assert found["one.keys"].tolist() == STATE["one.keys"][order].tolist()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE if name != "one.keys")


def test_loaded_rows_of_another_length_are_refused_before_prepare():
    with pytest.raises(RuntimeError, match=r"one.rows: the checkpoint has \(2, 3\), the model needs \(2, 2\)"):
        Open().load_state_dict(STATE | {"one.rows": torch.ones(2, 3)})
