"""torch optimizers become table kernels: equal updates and rates, refusals with advice."""

import pytest
import torch
from torch import nn

import springtide
from springtide import errors
from tests.oracles.rws_adagrad import RWSAdagrad

EXACT = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd with decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd with nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9),
}


@pytest.mark.parametrize("kind", EXACT)
def test_optimizer_updates_equal_torch_when_every_row_is_touched(make_pair, kind):
    torch.manual_seed(0)
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(6, 4, mode="sum"), nn.Linear(4, 1)), EXACT[kind])
    for _ in range(6):
        ids = torch.cat([torch.arange(6).view(3, 2), torch.randint(0, 6, (4, 2))])
        pair.train(lambda model, ids=ids: model(ids).sin().sum())
        pair.assert_same(1e-5)


def test_sparse_adam_equals_torch_on_any_rows(make_pair):
    torch.manual_seed(0)
    pair = make_pair(
        nn.Sequential(nn.EmbeddingBag(9, 4, mode="sum", sparse=True)),
        lambda p: torch.optim.SparseAdam(list(p), lr=0.01),
    )
    for _ in range(10):
        ids = torch.randint(0, 9, (3, 2))
        pair.train(lambda model, ids=ids: model(ids).pow(2).sum())
        pair.assert_same(1e-5)


LAZY = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adam with decoupled decay": lambda p: torch.optim.Adam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_lazy_update_trains_each_row_like_a_parameter_of_its_own(make_served, make):
    """In PyTorch, a parameter without a gradient stays as it is, with its state."""
    torch.manual_seed(0)
    table = nn.Embedding(9, 4)
    rows = nn.ParameterList(table.weight.detach().clone().unbind())
    served, optimizer = make_served(table, make), make(rows.parameters())
    for ids in torch.randint(0, 9, (10, 3)):
        served.model(ids).sin().sum().backward()
        served.step()
        optimizer.zero_grad()
        torch.stack([rows[row] for row in ids.tolist()]).sin().sum().backward()
        optimizer.step()
    torch.testing.assert_close(served.model.state_dict()["weight"], torch.stack(list(rows)).detach())


ROWWISE = {
    "row-wise": springtide.RowWiseAdagrad,
    "row-wise with options": lambda p: springtide.RowWiseAdagrad(
        p, lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3, eps=1e-3
    ),
    "row-wise with decay": lambda p: springtide.RowWiseAdagrad(p, lr=0.1, weight_decay=0.1),
    "dlrm": lambda p: RWSAdagrad(p, lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3, eps=1e-3),
}


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("kind", ROWWISE)
def test_rowwise_adagrad_equals_its_own_step_on_any_rows(make_pair, kind, sparse):
    """With dense gradients, DLRM's class is plain Adagrad, and so is the kernel."""
    torch.manual_seed(0)
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(9, 20, mode="sum", sparse=sparse)), ROWWISE[kind])
    for _ in range(10):
        ids = torch.randint(0, 9, (3, 2))
        pair.train(lambda model, ids=ids: model(ids).sin().pow(3).sum())
        pair.assert_same(1e-5)
    rowwise = sparse or kind != "dlrm"
    assert pair.served.tables[0].spec.optim.kind == ("rowwise_adagrad" if rowwise else "adagrad")


def test_table_that_a_dense_module_shares_follows_the_dense_rule_of_dlrms_class(make_served):
    model = nn.ModuleList([nn.EmbeddingBag(4, 2, sparse=True), nn.EmbeddingBag(4, 2)])
    model[1].weight = model[0].weight
    assert make_served(model, RWSAdagrad).tables[0].spec.optim.kind == "adagrad"


def test_rowwise_adagrad_of_torchrec_trains_rows(make_pair):
    rowwise_adagrad = pytest.importorskip("torchrec.optim.rowwise_adagrad")
    torch.manual_seed(0)
    pair = make_pair(
        nn.Sequential(nn.EmbeddingBag(9, 20, mode="sum")),
        lambda p: rowwise_adagrad.RowWiseAdagrad(p, lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3),
    )
    for _ in range(5):
        ids = torch.randint(0, 9, (3, 2))
        pair.train(lambda model, ids=ids: model(ids).sin().pow(3).sum())
        pair.assert_same(1e-5)
    assert not pair.served.optimizer.state


def test_class_of_the_same_name_with_other_options_is_refused(make_served):
    class RWSAdagrad(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

    with pytest.raises(errors.BadInput, match="RWSAdagrad has no kernel"):
        make_served(nn.Sequential(nn.EmbeddingBag(4, 2, sparse=True)), RWSAdagrad)


def test_schedulers_change_the_rate_of_tables(make_pair):
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(6, 4, mode="sum")))
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for optimizer in (pair.served.optimizer, pair.plain_optimizer)
    ]
    ids = torch.tensor([[1, 2], [3, 3]])
    for _ in range(4):
        pair.train(lambda model: model(ids).pow(2).sum())
        for scheduler in schedulers:
            scheduler.step()
    pair.assert_same()


def test_each_parameter_group_has_its_rate(make_pair):
    def groups(parameters):
        first, second = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [second], "weight_decay": 0.1}], lr=0.1)

    pair = make_pair(nn.ModuleList([nn.EmbeddingBag(4, 2, mode="sum"), nn.EmbeddingBag(4, 2, mode="sum")]), groups)
    ids = torch.arange(4).view(2, 2)
    for _ in range(3):
        pair.train(lambda model: model[0](ids).pow(2).sum() + model[1](ids).pow(2).sum())
    pair.assert_same()


def test_module_may_name_its_own_optimizer_and_rate(make_served):
    served = make_served(
        nn.ModuleDict(
            {
                "a": springtide.EmbeddingBag(2, optimizer="ftrl", lr=0.3),
                "b": springtide.EmbeddingBag(2, optimizer="sparse_adam"),
                "c": springtide.EmbeddingBag(2),
            }
        )
    )
    assert [table.spec.optim.kind for table in served.tables] == ["ftrl", "adam", "sgd"]
    for step in (1, 2):
        assert sorted(served.rates.now(served.stepped)) == [(0, 0.3, 0.0, 0), (1, 0.1, 0.0, step), (2, 0.1, 0.0, 0)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda p: torch.optim.LBFGS(p),
            r"LBFGS has no kernel on servers .*RowWiseAdagrad.*bsp.*\[torch.optim.Adagrad",
        ),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "Adam with amsgrad=True has no kernel"),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9), "RMSprop with momentum=0.9"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "SGD with maximize=True"),
    ],
)
def test_optimizer_without_a_kernel_is_refused(make_served, make, says):
    with pytest.raises(errors.BadInput, match=says):
        make_served(nn.Sequential(nn.EmbeddingBag(4, 2)), make)


def test_rowwise_adagrad_refuses_what_has_no_rows_and_rates_below_zero():
    bias = nn.Parameter(torch.ones(3))
    bias.grad = torch.ones(3)
    with pytest.raises(errors.BadInput, match=r"a parameter of shape \(3,\), which has no rows"):
        springtide.RowWiseAdagrad([bias]).step()
    with pytest.raises(errors.BadInput, match="lr=-1: expected a number, 0 or more"):
        springtide.RowWiseAdagrad([bias], lr=-1)


def test_unknown_optimizer_name_gets_a_suggestion():
    with pytest.raises(errors.UnknownName, match="Did you mean 'adagrad'"):
        springtide.EmbeddingBag(4, optimizer="adagard")
