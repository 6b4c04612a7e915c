"""`job.prepare` refuses unusable arguments up front and says what is expected."""

import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors
from tests.unit.worker import clicks


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step_in_backward(model):
    """Mark the tables as torch.distributed.optim._apply_optimizer_in_backward does."""
    for weight in model.table_weights():
        weight._in_backward_optimizers = [torch.optim.Adagrad([weight])]
    return model


class OwnForward(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids)


def add(model, name, part):
    setattr(model, name, part)
    return model


def unheld(kind):
    with st.serving():
        return kind(8, 4)


def tie(rows):
    top = nn.Linear(4, 8)
    top.weight = rows.weight
    return nn.Sequential(rows, top)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model, opt, data: (nn.DataParallel(model), opt, data), "wrapped in DataParallel"),
        (
            lambda model, opt, data: (model.state_dict(), opt, data),
            "model is a OrderedDict: expected a torch.nn.Module",
        ),
        (
            lambda model, opt, data: (step_in_backward(model), opt, data),
            r"'bags.0.weight' has an optimizer that runs in backward .*: pass Adagrad\(\[parameters\]",
        ),
        (lambda model, opt, data: (model, [], data), "no optimizer was given"),
        (lambda model, opt, data: (model, ["adam"], data), "expected a torch.optim.Optimizer"),
        (lambda model, opt, data: (model, torch.optim.LBFGS(model.parameters()), data), "LBFGS evaluates the loss"),
        (
            lambda model, opt, data: (model, torch.optim.SparseAdam(list(model.parameters())), data),
            r"SparseAdam got the parameter 'mlp.0.weight', whose gradients are dense: .*SparseAdam\(table_weights\)",
        ),
        (lambda model, opt, data: (model, torch.optim.Rprop(model.parameters()), data), "no kernel on servers"),
        (lambda model, opt, data: (model, None, data), "optimizer is a NoneType: expected a torch.optim.Optimizer"),
        (lambda model, opt, data: (model, torch.optim.SGD, data), "optimizer is a type: expected a torch.optim.Optim"),
        (lambda model, opt, data: (model, {"a": opt}, data), "optimizer is a dict: expected a torch.optim.Optimizer"),
        (lambda model, opt, data: (model, opt, 7), "cannot train from a int"),
        (
            lambda model, opt, data: (on_meta := model.to("meta"), sgd(on_meta), data),
            "'mlp.0.weight' is on the meta dev",
        ),
        (
            lambda model, opt, data: (
                model,
                sgd(add(model, "scale", nn.Parameter(torch.ones(2, device="meta")))),
                data,
            ),
            "'scale' is on the meta device and has no values",
        ),
        (
            lambda model, opt, data: (add(model, "frozen", nn.Linear(2, 2, device="meta")), opt, data),
            "'frozen.weight' is on the meta device and has no values",
        ),
        (
            lambda model, opt, data: (add(model, "own", unheld(OwnForward)), opt, data),
            r"'own.weight' was built in `with st.serving\(\):`.*the log says why. Build this embedding outside",
        ),
        (
            lambda model, opt, data: (tied := nn.Sequential(model, tie(unheld(nn.Embedding))), sgd(tied), data),
            r"'1.0.weight' was built in `with st.serving",
        ),
    ],
)
def test_unusable_prepare_arguments_are_refused_with_advice(change, words):
    model, dataset = clicks.make()
    with pytest.raises(errors.BadInput, match=words):
        st.join().prepare(*change(model, sgd(model), dataset))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sync": "asink"}, "Did you mean 'async'"),
        ({"sync": True}, "no sync mode named True"),
        ({"scaling": "globalbatch"}, "Did you mean 'global_batch'"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"batch_size": "16"}, "batch_size='16': expected a whole number"),
        ({"batch_size": True}, "batch_size=True: expected a whole number"),
        ({"epochs": 1.5}, "epochs=1.5: expected a whole number"),
        ({"seed": "x"}, "seed='x': expected a whole number"),
        ({"accumulate": 1.5}, "accumulate=1.5: expected a whole number"),
        ({"num_workers": -1}, "num_workers=-1: expected a whole number of reader processes"),
        ({"collate_fn": 3}, "collate_fn=3: expected a function"),
        ({"shuffle": "no"}, "shuffle='no': expected True or False"),
        ({"drop_last": "no"}, "drop_last='no': expected True or False"),
        ({"cache_staleness": "x"}, "cache_staleness='x': expected a whole number"),
        ({"batch_size": 201, "drop_last": True}, "200 samples do not fill one batch of 201. Lower batch_size"),
        ({"max_staleness": -1}, "max_staleness=-1"),
        ({"max_staleness": 1.5}, "max_staleness=1.5: expected a whole number of pushes"),
    ],
)
def test_meaningless_prepare_options_are_refused(options, words):
    model, dataset = clicks.make()
    with pytest.raises(errors.BadInput, match=words):
        st.join().prepare(model, sgd(model), dataset, **options)
