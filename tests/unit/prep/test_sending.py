"""A model that is sent to another process arrives as one that is split alike: without rows, hooks and connections."""

import io

import pytest
import torch
from torch import nn

import springtide as st
from springtide.embedding import modules
from springtide.embedding.served import Binding
from springtide.prep import sending, split
from springtide.prep.searching import Question
from tests.unit.prep.test_beside import calls
from tests.unit.train import hashed


def sent(question):
    """As it comes out of the memory that both processes have."""
    file = io.BytesIO()
    torch.save(question, file, pickle_module=sending._pickling(question.model))
    file.seek(0)
    return torch.load(file, weights_only=False), file.getbuffer().nbytes


def test_it_is_split_as_it_would_be_here():
    model, given = hashed.make(), calls(8, 8, 4)
    there, _ = sent(Question(model, given[0], given[1:]))
    ours = split.split(model, *given[0], more=given[1:])
    theirs = split.split(there.model, *there.given, more=there.more)
    assert isinstance(ours, split.Split) and ours.digest == theirs.digest


def test_tables_go_without_their_rows_and_everything_else_as_it_is():
    model = hashed.make()
    model.bag = nn.EmbeddingBag(1_000_000, 4, mode="sum")
    there, size = sent(Question(model, calls(4)[0]))
    assert size < 50_000
    assert there.model.bag.weight.shape == (1_000_000, 4) and there.model.bag.weight.requires_grad
    assert torch.equal(there.model.top.weight, model.top.weight) and there.model.salt == model.salt


def test_served_tables_go_without_their_connection_and_the_model_without_hooks(monkeypatch):
    model = hashed.make()
    model.bag = modules.EmbeddingBag(4, dtype="float16")
    binding = object.__new__(Binding)  # it cannot be pickled, as its connections cannot
    binding.dtype = torch.float16
    model.bag.springtide_binding = binding
    model.register_forward_pre_hook(lambda module, args: pytest.fail("called there"))
    there, _ = sent(Question(model, calls(4)[0]))
    assert there.model.bag.springtide_binding.dtype is torch.float16 and not there.model._forward_pre_hooks
    assert isinstance(split.split(there.model, *there.given), split.Split)
    assert model._forward_pre_hooks and model.bag.springtide_binding is binding


def test_a_weight_of_a_served_table_goes_without_its_rows_wherever_the_model_holds_it():
    model = hashed.make()
    model.bag = nn.EmbeddingBag(1_000_000, 4, mode="sum", device="meta")
    model.penalized = [("bag", model.bag.weight)]  # as DeepCTR keeps what it penalizes
    data = torch.utils.data.TensorDataset(torch.zeros(4))
    job = st.join(whole_table_bytes=0)  # no table is read whole
    model, _, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    there, size = sent(Question(model, calls(4)[0]))
    assert size < 50_000 and there.model.penalized[0][1].shape == (1_000_000, 4)


def test_parameters_that_are_one_stay_one():
    model = hashed.make()
    model.again = nn.Linear(6, 1)
    model.again.weight = model.top.weight
    there, _ = sent(Question(model, calls(4)[0]))
    assert there.model.again.weight is there.model.top.weight


def test_a_gpu_without_room_for_a_second_model_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**8, 10**11))
    with pytest.raises(sending.NoRoom, match=r"0\.1 GB left"):
        sending.start(Question(hashed.make(), calls(4)[0]), answer=-1)
