"""Served nn.Embedding and nn.EmbeddingBag against the originals: outputs, gradients, updated weights."""

import copy

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from springtide import errors

ROWS = 11


@st.composite
def bags(draw):
    """A module and one input for it: every mode, 1-D with offsets or 2-D, empty bags, weights, padding."""
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    dim = draw(st.sampled_from([1, 3, 4, 8, 16, 17, 32, 64]))
    padding = draw(st.one_of(st.none(), st.integers(-ROWS, ROWS - 1)))
    closed = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    module = nn.EmbeddingBag(ROWS, dim, mode=mode, padding_idx=padding, include_last_offset=closed)
    with torch.no_grad():
        module.weight.copy_(torch.randint(-3, 4, (ROWS, dim), generator=generator) / 4)  # ties are common
    if draw(st.booleans()):
        batch, width = draw(st.integers(0, 5)), draw(st.integers(1, 4))
        ids, offsets = torch.randint(0, ROWS, (batch, width), generator=generator), None
    else:
        sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
        ends = torch.tensor([0, *sizes]).cumsum(0)
        ids = torch.randint(0, ROWS, (int(ends[-1]),), generator=generator)
        offsets = ends if closed else ends[:-1]
    weights = torch.randn(ids.shape, generator=generator) if mode == "sum" and draw(st.booleans()) else None
    if draw(st.booleans()):
        ids = ids.int()
        offsets = None if offsets is None else offsets.int()
    return module, ids, offsets, weights, generator


@hypothesis.given(bags())
def test_served_bag_equals_embedding_bag(make_pair, case):
    module, ids, offsets, weights, generator = case
    pair = make_pair(module)
    slopes = []
    outs = []
    for model in (pair.served.model, pair.plain):
        own = None if weights is None else weights.clone().requires_grad_()
        out = model(ids, offsets, own)
        outs.append(out)
        scale = torch.randn(out.shape, generator=copy.copy(generator.clone_state()))
        (out * scale).sum().backward()
        slopes.append(None if own is None else own.grad)
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-6, atol=1e-6)
    if weights is not None:
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-5, atol=1e-5)
    pair.served.step()
    pair.plain_optimizer.step()
    pair.assert_same(1e-5)


@hypothesis.given(
    shape=st.lists(st.integers(0, 3), min_size=0, max_size=3),
    dim=st.sampled_from([1, 5, 8, 16]),
    padding=st.one_of(st.none(), st.integers(-ROWS, ROWS - 1)),
    seed=st.integers(0, 2**31),
)
def test_served_embedding_equals_embedding(make_pair, shape, dim, padding, seed):
    torch.manual_seed(seed)
    pair = make_pair(nn.Embedding(ROWS, dim, padding_idx=padding))
    ids = torch.randint(0, ROWS, shape)
    ours, theirs = pair.train(lambda model: (model(ids) ** 2).sum())
    torch.testing.assert_close(ours, theirs)
    pair.assert_same()


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_results_do_not_depend_on_the_number_of_servers(make_served, servers):
    torch.manual_seed(3)
    model = nn.ModuleList([nn.EmbeddingBag(40, 8, mode="mean"), nn.EmbeddingBag(40, 16), nn.Embedding(9, 3)])
    alone, many = make_served(copy.deepcopy(model)), make_served(model, servers=servers)
    for _ in range(5):
        ids = torch.randint(0, 40, (12, 4))
        for served in (alone, many):
            one, two, three = served.model
            value = (one(ids) ** 2).sum() + (two(ids) ** 3).sum() + three(ids % 9).sin().sum()
            value.backward()
            served.step()
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(weight, many.model.state_dict()[name]), name


def test_strided_and_non_contiguous_ids_are_looked_up(make_pair):
    pair = make_pair(nn.EmbeddingBag(30, 4, mode="sum"))
    wide = torch.randint(0, 30, (8, 6))
    for ids in (wide[:, 2:3], wide[::2, 1:4], wide.t()[1:3], wide[:, 5:]):
        ours, theirs = pair.train(lambda model, ids=ids: (model(ids) ** 2).sum())
        torch.testing.assert_close(ours, theirs)
    pair.assert_same()


def test_gradients_of_any_layout_and_dtype_are_pushed(make_pair):
    pair = make_pair(nn.EmbeddingBag(30, 4, mode="sum"))
    ids = torch.randint(0, 30, (8, 2))
    for loss in (
        lambda model: model(ids).sum(),
        lambda model: model(ids).t().contiguous()[1].sum(),
        lambda model: model(ids).half().pow(2).sum().float(),
        lambda model: torch.cat([model(ids), model(ids)], 1).pow(2).sum(),
    ):
        pair.train(loss)
        pair.assert_same(1e-4)


def test_second_order_gradients_are_refused(make_served):
    bag = make_served(nn.EmbeddingBag(30, 4, mode="sum")).model
    weights = torch.ones(3, 2, requires_grad=True)
    loss = (bag(torch.arange(6).reshape(3, 2), per_sample_weights=weights) ** 2).sum()
    (grad,) = torch.autograd.grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        grad.sum().backward()


def test_half_precision_tables_keep_their_dtype(make_pair):
    pair = make_pair(nn.EmbeddingBag(10, 4, mode="sum", dtype=torch.bfloat16))
    ids = torch.tensor([[1, 2], [3, 3]])
    assert pair.served.model(ids).dtype == torch.bfloat16
    torch.testing.assert_close(pair.served.model(ids), pair.plain(ids))
    pair.assert_same()


def test_served_module_keeps_its_identity_and_parameters(make_served):
    bag = nn.EmbeddingBag(10, 4)
    weight = bag.weight
    served = make_served(nn.Sequential(bag))
    assert served.model[0] is bag and bag.weight is weight
    assert isinstance(bag, nn.EmbeddingBag)
    assert [name for name, _ in served.model.named_parameters()] == ["0.weight"]


@pytest.mark.parametrize(
    ("ids", "offsets", "weights", "says"),
    [
        (torch.tensor([[1, 10]]), None, None, r"feature '0': id 10 at position 1 .* \[0, 10\)"),
        (torch.tensor([[-1, 1]]), None, None, "id -1 at position 0"),
        (torch.tensor([[1.0]]), None, None, "ids are torch.float32; expected int64"),
        (torch.tensor([[[1]]]), None, None, "expected 1-D with offsets, or 2-D"),
        (torch.tensor([1]), None, None, "1-D ids need offsets"),
        (torch.tensor([[1, 2]]).to_sparse(), None, None, "ids are torch.sparse_coo; expected a plain tensor"),
        (torch.tensor([[1]]), torch.tensor([0]), None, "offsets have no meaning with 2-D ids"),
        (torch.tensor([1, 2]), torch.tensor([1]), None, r"offsets\[0\] is 1; it must be 0"),
        (torch.tensor([1, 2]), torch.tensor([0, 3]), None, r"offsets\[1\] is 3 but there are 2 ids"),
        (torch.tensor([1, 2]), torch.tensor([0, 2, 1]), None, r"offsets\[2\] is 1, less than 2 before it"),
        (torch.tensor([1, 2]), torch.tensor([0.0]), None, "offsets are torch.float32"),
        (torch.tensor([1, 2]), torch.tensor([[0]]), None, "expected 1-D"),
        (torch.tensor([[1, 2]]), None, torch.ones(2), "per_sample_weights have shape"),
        ([[1, 2]], None, None, "ids are a list; expected a tensor"),
        (torch.tensor([[1, 2]]).numpy(), None, None, "ids are a ndarray; expected a tensor"),
        (torch.tensor([1, 2]), [0, 1], None, "offsets are a list; expected a tensor"),
        (torch.tensor([[1, 2]]), None, [[1.0, 1.0]], "per_sample_weights are a list; expected a tensor"),
    ],
)
def test_invalid_bag_input_names_the_error(make_served, ids, offsets, weights, says):
    served = make_served(nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum")))
    with pytest.raises(errors.BadInput, match=says):
        served.model[0](ids, offsets, weights)


def test_weights_need_mode_sum(make_served):
    served = make_served(nn.Sequential(nn.EmbeddingBag(10, 4, mode="mean")))
    with pytest.raises(errors.BadInput, match="need mode 'sum'"):
        served.model[0](torch.tensor([[1]]), None, torch.ones(1, 1))


def test_nan_in_a_gradient_pushes_nothing(make_served):
    served = make_served(nn.Sequential(nn.EmbeddingBag(10, 4)))
    before = served.model.state_dict()["0.weight"]
    (served.model[0](torch.tensor([[1, 7]])) * float("nan")).sum().backward()
    with pytest.raises(errors.NonFiniteGradient, match=r"table '0', key 1, holds NaN"):
        served.step()
    assert torch.equal(served.model.state_dict()["0.weight"], before)
