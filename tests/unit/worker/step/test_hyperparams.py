"""Each table follows the parameter group of its weight; untrained tables are recognized."""

import logging

import pytest
import torch
from torch import nn

import springtide
from springtide import errors
from springtide.embedding.lookup import table_client
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.modules import convert
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step.hyperparams import TableRates


def serve_model(model):
    return convert.convert(model, Lookups(table_client.TableClient.local(slots=64, seed=0)))


def job_optimizer(optimizer):
    return JobOptimizer(optimizer, lambda _: None, fixed=False)


def test_weight_in_no_group_is_not_trained_like_in_plain_pytorch():
    model = nn.ModuleList([nn.EmbeddingBag(4, 2), nn.EmbeddingBag(4, 2)])
    tables = serve_model(model)
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    rates = TableRates([optimizer], tables)
    assert rates.now([job_optimizer(optimizer)]) == [(tables[0].spec.id, 0.1, 0.0, 0)]
    assert rates.idle_weights([job_optimizer(optimizer)]) == [model[1].weight]


def test_table_with_an_optimizer_but_in_no_group_is_refused():
    tables = serve_model(nn.Sequential(springtide.EmbeddingBag(2, optimizer="ftrl")))
    with pytest.raises(errors.BadInput, match="'0' names an optimizer, but its weight is in no parameter group"):
        TableRates([torch.optim.SGD([torch.zeros(1)], lr=0.1)], tables)


@pytest.mark.parametrize(
    ("optimizer", "follows"),
    [
        (lambda weights: torch.optim.Adagrad(weights, lr=0.1, lr_decay=0.5), True),
        (lambda weights: torch.optim.Adagrad(weights, lr=0.1), False),
        (lambda weights: torch.optim.SparseAdam(weights, lr=0.1), True),
        (lambda weights: torch.optim.Adam(weights, lr=0.1), False),
    ],
)
def test_rates_that_follow_the_number_of_steps_are_known(optimizer, follows):
    tables = serve_model(nn.Sequential(nn.EmbeddingBag(4, 2, sparse=True)))
    assert TableRates([optimizer([tables[0].weight])], tables).follow_steps == follows


def test_tables_of_an_unstepped_optimizer_are_idle():
    model = nn.ModuleList([nn.EmbeddingBag(4, 2), nn.EmbeddingBag(4, 2)])
    tables = serve_model(model)
    first, second = (torch.optim.SGD([table.weight], lr=0.1) for table in tables)
    rates = TableRates([first, second], tables)
    assert rates.idle_weights([job_optimizer(first)]) == [tables[1].weight]
    assert [hyper[0] for hyper in rates.now([job_optimizer(first)])] == [tables[0].spec.id]


def test_changed_learning_rate_is_sent_with_the_next_push():
    model = nn.Sequential(nn.EmbeddingBag(4, 2))
    tables = serve_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = TableRates([optimizer], tables)
    assert rates.now([job_optimizer(optimizer)])[0][1] == 0.1
    optimizer.param_groups[0]["lr"] = 0.05
    assert rates.now([job_optimizer(optimizer)])[0][1] == 0.05


@pytest.mark.parametrize("table", [nn.EmbeddingBag(4, 2), springtide.EmbeddingBag(2, lr=0.5)])
def test_scheduled_momentum_change_is_refused(table):
    model = nn.Sequential(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    rates = TableRates([optimizer], serve_model(model))
    rates.now([job_optimizer(optimizer)])
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=9)
    with pytest.raises(
        errors.BadInput, match=r"momentum .* was 0\.5 at job\.prepare and is 0\.95 now.*cycle_momentum=False"
    ):
        rates.now([job_optimizer(optimizer)])


def test_table_with_its_own_optimizer_ignores_the_groups_momentum():
    model = nn.Sequential(springtide.EmbeddingBag(2, optimizer="adagrad"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = TableRates([optimizer], serve_model(model))
    optimizer.param_groups[0]["momentum"] = 0.9
    assert len(rates.now([job_optimizer(optimizer)])) == 1


def test_table_in_two_optimizers_is_refused():
    model = nn.Sequential(nn.EmbeddingBag(4, 2))
    both = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adagrad(model.parameters())]
    with pytest.raises(errors.BadInput, match=r"table '0' is in two optimizers, SGD and Adagrad, .*take it out of one"):
        TableRates(both, serve_model(model))


LAZY = {
    "adam": (torch.optim.Adam, False, 1),
    "adamw": (torch.optim.AdamW, False, 1),
    "rmsprop": (torch.optim.RMSprop, False, 1),
    "momentum": (lambda p: torch.optim.SGD(p, momentum=0.9), True, 1),
    "weight decay": (lambda p: torch.optim.Adagrad(p, weight_decay=0.1), False, 1),
    "sgd": (torch.optim.SGD, False, 0),
    "adagrad": (torch.optim.Adagrad, False, 0),
    "sparse adam": (torch.optim.SparseAdam, True, 0),
    "row-wise adagrad": (springtide.RowWiseAdagrad, True, 0),
}


@pytest.mark.parametrize(("make", "sparse", "lines"), LAZY.values(), ids=LAZY)
def test_optimizer_that_leaves_rows_alone_which_pytorch_moves_says_so(caplog, make, sparse, lines):
    model = nn.ModuleList([nn.EmbeddingBag(4, 2, sparse=sparse), nn.EmbeddingBag(4, 2, sparse=sparse)])
    with caplog.at_level(logging.WARNING):
        TableRates([make(model.parameters())], serve_model(model))
    assert len(caplog.messages) == lines
    assert all("trains 2 tables ('0', ...) lazily" in message for message in caplog.messages)


def test_counts_of_steps_are_those_of_each_optimizer_and_can_be_set():
    model = nn.ModuleList([nn.EmbeddingBag(4, 2), nn.EmbeddingBag(4, 2)])
    tables = serve_model(model)
    first, second = (torch.optim.SGD([table.weight], lr=0.1) for table in tables)
    rates = TableRates([first, second], tables)
    rates.now([job_optimizer(second)])
    assert rates.steps == [0, 1]
    rates.steps = [5, 7]
    rates.now([job_optimizer(first)])
    assert rates.steps == [6, 7]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        rates.steps = [5]


def test_table_with_its_own_rate_keeps_it_while_the_others_follow_their_groups():
    model = nn.ModuleList([nn.EmbeddingBag(4, 2), springtide.EmbeddingBag(2, lr=0.5), nn.EmbeddingBag(4, 2)])
    tables = serve_model(model)
    groups = [{"params": [model[0].weight, model[1].weight]}, {"params": [model[2].weight], "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    rates, (first, own, other) = TableRates([optimizer], tables), [table.spec.id for table in tables]
    assert sorted(rates.now([job_optimizer(optimizer)])) == [
        (first, 0.1, 0.0, 0),
        (own, 0.5, 0.0, 0),
        (other, 0.3, 0.0, 0),
    ]
    optimizer.param_groups[0]["lr"] = 0.2
    assert sorted(rates.now([job_optimizer(optimizer)])) == [
        (first, 0.2, 0.0, 0),
        (own, 0.5, 0.0, 0),
        (other, 0.3, 0.0, 0),
    ]


@pytest.mark.parametrize(("kind", "counts"), [("sparse_adam", [1, 2]), ("adam", [0, 0])])
def test_only_an_own_optimizer_that_needs_the_step_number_gets_it(kind, counts):
    model = nn.ModuleList([springtide.EmbeddingBag(2, optimizer=kind), nn.EmbeddingBag(4, 2)])
    tables = serve_model(model)
    own, other = (torch.optim.SGD([table.weight], lr=0.1) for table in tables)
    rates = TableRates([own, other], tables)
    assert rates.follow_steps is (kind == "sparse_adam")
    sent = [rates.now([job_optimizer(own), job_optimizer(other)]) for _ in range(2)]
    assert [[hyper[3] for hyper in push] for push in sent] == [[counts[0], 0], [counts[1], 0]]


def test_tables_of_sparse_adam_get_its_step_number_also_with_their_own_rate():
    model = nn.ModuleList([nn.EmbeddingBag(4, 2, sparse=True), springtide.EmbeddingBag(2, lr=0.5)])
    tables = serve_model(model)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    rates = TableRates([optimizer], tables)
    rates.now([job_optimizer(optimizer)])
    assert [hyper[3] for hyper in rates.now([job_optimizer(optimizer)])] == [2, 2]


def test_optimizer_keeps_no_state_of_a_table():
    model = nn.ModuleList([nn.EmbeddingBag(4, 2), nn.Linear(2, 1)])
    optimizer = torch.optim.Adagrad(model.parameters())
    TableRates([optimizer], serve_model(model))
    assert set(optimizer.state) == set(model[1].parameters())


def test_table_beside_other_parameters_of_a_second_optimizer_is_refused():
    model = nn.Sequential(nn.EmbeddingBag(4, 2))
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    second = torch.optim.SGD([torch.zeros(1), model[0].weight], lr=0.1)
    with pytest.raises(errors.BadInput, match="in two optimizers"):
        TableRates([first, second], serve_model(model))


def test_dense_parameters_on_servers_follow_their_group():
    dense = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [dense.weight]}, {"params": [dense.bias], "lr": 0.3}], lr=0.1, momentum=0.5)
    rates = TableRates([optimizer], [])
    rates.follow_dense(optimizer, 1, 7)
    rates.follow_dense(optimizer, 0, 8)
    rates.follow_dense(optimizer, 1, 9)
    assert rates.now([job_optimizer(optimizer)]) == [(7, 0.3, 0.0, 0), (9, 0.3, 0.0, 0), (8, 0.1, 0.0, 0)]
    assert rates.idle_weights([]) == []
    optimizer.param_groups[1]["momentum"] = 0.9
    with pytest.raises(errors.BadInput, match=r"momentum .* was 0\.5"):
        rates.now([job_optimizer(optimizer)])
