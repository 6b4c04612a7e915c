"""Penalties on a table's weight: exact on whole tables, free if multiplied by zero, lazy as weight decay."""

import copy
import logging

import pytest
import torch
from torch import nn

import springtide
from springtide import errors

ROWS, DIM = 30, 4
FREE = {
    "SASRec's": lambda w: 0.0 * torch.norm(w),
    "sum of squares": lambda w: 0.0 * torch.sum(w**2),
    "zero as a whole number": lambda w: w.pow(2).sum() * 0,
    "DeepCTR's": lambda w: torch.sum(0.0 * torch.square(w)),
    "DeepCTR's other": lambda w: torch.sum(0.0 * w * w),
    "sum of sizes": lambda w: w.abs().mean().mul(0.0),
    "sum over tables": lambda w: 0.0 * sum(part.norm() for part in (w, w)),
}
PENALTIES = {
    "SASRec's": lambda w: 0.3 * torch.norm(w),
    "norm of linalg": lambda w: 0.3 * torch.linalg.norm(w, ord="fro"),
    "norm of rows": lambda w: 0.3 * w.norm(p=1, dim=1).sum(),
    "sum of squares": lambda w: 0.3 * torch.sum(w**2),
    "DeepCTR's": lambda w: torch.sum(0.3 * torch.square(w)),
    "DeepCTR's other": lambda w: torch.sum(0.3 * w * w),
    "DeepCTR's first order": lambda w: torch.sum(0.3 * torch.abs(w)),
    "half": lambda w: (w.pow(2).sum() / 2).sqrt(),
    "by a tensor": lambda w: torch.tensor(0.3) * (w**2).sum(),
    "sum over tables": lambda w: 0.3 * (sum(part.norm() for part in (w, w)) - w.abs().sum()),
    "normalized rows": lambda w: (w / w.norm(dim=1, keepdim=True)).T[0].sum(),
    "minus": lambda w: -(-w.square()).mean(),
}


def model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))


@pytest.mark.parametrize("penalty", FREE.values(), ids=FREE)
def test_penalty_times_zero_adds_zero_and_reads_nothing(make_served, penalty):
    tables = nn.ModuleList([nn.Embedding(ROWS, DIM), springtide.EmbeddingBag(DIM)])
    served = make_served(tables)
    served.client.whole_table_bytes = 0  # no read is allowed
    for table in tables:
        assert torch.equal(torch.tensor(2.0) + penalty(table.weight), torch.tensor(2.0))


def test_penalty_times_zero_leaves_the_training_of_the_step_rows_alone(make_pair):
    pair = make_pair(model(), lambda p: torch.optim.Adagrad(p, lr=0.1))
    pair.served.client.whole_table_bytes = 0
    for ids in torch.arange(9).split(3):
        losses = pair.train(lambda m, ids=ids: m(ids).square().sum() + 0.0 * torch.sum(m[0].weight ** 2))
        torch.testing.assert_close(*losses)
    pair.served.client.whole_table_bytes = 1 << 20
    pair.assert_same()


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
def test_penalty_trains_all_rows_like_plain_pytorch(make_pair, penalty):
    pair = make_pair(model(), lambda p: torch.optim.Adam(p, lr=0.01), servers=2)
    for ids in torch.arange(9).split(3):
        losses = pair.train(lambda m, ids=ids: m(ids).square().sum() + penalty(m[0].weight))
        torch.testing.assert_close(*losses)
    pair.assert_same()


def test_penalty_reads_each_table_once_per_function(make_pair):
    pair = make_pair(model())
    reads = []
    run = pair.served.lookups.run
    pair.served.lookups.run = lambda *args, **kwargs: reads.append(args) or run(*args, **kwargs)
    penalty = torch.sum(0.1 * (pair.served.model[0].weight * pair.served.model[0].weight))
    assert not reads
    assert (penalty + 1).item() == (penalty + 1).item()
    assert len(reads) == 1


USES = {
    "item": lambda p: p.item(),
    "print": lambda p: f"{p:.4f}",
    "compare": lambda p: bool(p > 1),
    "detach": lambda p: p.detach().tolist(),
    "numpy": lambda p: p.detach().cpu().numpy().tolist(),
    "shape": lambda p: (p.shape, p.dtype, p.requires_grad, p.dim()),
    "stack": lambda p: torch.stack([p, p]).tolist(),
    "copy": lambda p: p.detach().clone().item(),
    "in place": lambda p: (torch.zeros(1).add_(p)).item(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_penalty_that_is_used_as_a_tensor_has_its_value(make_pair, use):
    pair = make_pair(model())
    ours, theirs = (use(torch.sum(m[0].weight ** 2)) for m in (pair.served.model, pair.plain))
    assert ours == (pytest.approx(theirs) if isinstance(theirs, float) else theirs)


def test_penalty_alone_is_a_loss(make_pair):
    pair = make_pair(model())
    for _ in range(2):
        pair.train(lambda m: m[0].weight.square().sum())
    pair.assert_same()


def test_penalty_on_a_table_over_the_limit_names_weight_decay(make_served):
    served = make_served(model())
    served.client.whole_table_bytes = 100
    with pytest.raises(errors.BadInput, match=r"whole_table_bytes=100.*set weight_decay=2 \* l2 in the table's"):
        torch.zeros(()) + 0.1 * torch.sum(served.model[0].weight ** 2)


def test_costly_penalty_is_noted_once(make_served, caplog):
    served = make_served(nn.Sequential(nn.Embedding(70_000, 4)))
    with caplog.at_level(logging.WARNING):
        torch.zeros(70_000, 1) + served.model[0].weight.norm(dim=1, keepdim=True)  # an output layer, not a penalty
        assert not caplog.records
        for _ in range(2):
            torch.zeros(()) + torch.sum(served.model[0].weight ** 2)
    (record,) = caplog.records
    assert (
        "reads the whole table '0', 70000 rows" in record.getMessage() and "weight_decay=2 * l2" in record.getMessage()
    )


DECAYING = {
    "sgd": lambda p, **decay: torch.optim.SGD(p, lr=0.1, **decay),
    "adagrad": lambda p, **decay: torch.optim.Adagrad(p, lr=0.1, **decay),
    "row-wise adagrad": lambda p, **decay: springtide.RowWiseAdagrad(p, lr=0.1, **decay),
}


@pytest.mark.parametrize("make", DECAYING.values(), ids=DECAYING)
def test_weight_decay_equals_a_penalty_on_the_rows_of_the_step(make_served, make):
    plain, l2 = model()[0], 0.05
    served = make_served(copy.deepcopy(plain), lambda p: make(p, weight_decay=2 * l2))
    optimizer = make(plain.parameters())
    for ids in torch.randint(0, ROWS, (5, 6)):
        served.model(ids).sin().sum().backward()
        served.step()
        optimizer.zero_grad()
        (plain(ids).sin().sum() + l2 * torch.sum(plain.weight[ids.unique()] ** 2)).backward()
        optimizer.step()
    torch.testing.assert_close(served.model.state_dict()["weight"], plain.weight.detach())


def test_penalty_on_the_looked_up_rows_trains_them_together_with_the_loss(make_pair):
    """For optimizers whose weight decay is not an L2 penalty."""
    sparse = nn.Embedding(ROWS, DIM, sparse=True)
    pair = make_pair(sparse, lambda p: torch.optim.SparseAdam(list(p), lr=0.01))
    for ids in torch.randint(0, ROWS, (5, 6)):
        pair.train(lambda m, ids=ids: m(ids).sin().sum() + 0.1 * torch.sum(m(ids.unique()) ** 2))
    pair.assert_same()
