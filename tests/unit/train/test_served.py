"""A loop whose tables are on servers: the same as alone, for every optimizer, whatever the number of servers."""

import importlib.util
import pathlib

import pytest
import torch

_spec = importlib.util.spec_from_file_location("clicks", pathlib.Path(__file__).parent / "clicks.py")
clicks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(clicks)

OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "sparse adam, adam": lambda model: [
        torch.optim.SparseAdam(model.table_weights(), lr=0.01),
        torch.optim.Adam(model.dense_weights(), lr=0.01),
    ],
    "sparse adam, momentum": lambda model: [
        torch.optim.SparseAdam(model.table_weights(), lr=0.01),
        torch.optim.SGD(model.dense_weights(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ],
    "sparse adam, rmsprop": lambda model: [
        torch.optim.SparseAdam(model.table_weights(), lr=0.01),
        torch.optim.RMSprop(model.dense_weights(), lr=0.01),
    ],
    "sparse adam, adamw": lambda model: [
        torch.optim.SparseAdam(model.table_weights(), lr=0.01),
        torch.optim.AdamW(model.dense_weights(), lr=0.01, weight_decay=0.1),
    ],
}


def plainly(optimizer, sparse):
    model, dataset = clicks.make(sparse=sparse)
    return clicks.train(model, optimizer(model), clicks.plain(dataset, 20)), model.state_dict()


def served(job, optimizer, sparse, **options):
    model, dataset = clicks.make(sparse=sparse)
    model, made, batches = job.prepare(model, optimizer(model), dataset, batch_size=20, shuffle=False, **options)
    return clicks.train(model, made, batches), model.state_dict()


@pytest.mark.parametrize("sync", ["bsp", "async"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_on_servers_gives_what_plain_pytorch_gives(served_job, name, sync):
    sparse = "sparse" in name
    losses, state = served(served_job(servers=2, sync=sync), OPTIMIZERS[name], sparse, max_staleness=0)
    plain_losses, plain_state = plainly(OPTIMIZERS[name], sparse)
    assert losses == pytest.approx(plain_losses, abs=2e-6)
    for key, value in state.items():
        torch.testing.assert_close(value, plain_state[key], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("sync", ["bsp", "async"])
def test_the_number_of_servers_changes_no_bit(served_job, sync):
    results = [
        served(served_job(servers=count, sync=sync), OPTIMIZERS["adagrad"], False, max_staleness=0)
        for count in (1, 2, 3, 5)
    ]
    for losses, state in results[1:]:
        assert losses == results[0][0]
        assert all(torch.equal(value, results[0][1][key]) for key, value in state.items())


def test_reading_ahead_lags_by_one_step_and_ends_with_everything_applied(served_job):
    job = served_job(servers=2)
    losses, state = served(job, OPTIMIZERS["sgd"], False)
    plain_losses, _ = plainly(OPTIMIZERS["sgd"], False)
    assert losses[0] == pytest.approx(plain_losses[0], abs=1e-6)
    assert losses[-1] == pytest.approx(plain_losses[-1], abs=0.05)
    moved = {key: (value - clicks.make()[0].state_dict()[key]).abs().sum() for key, value in state.items()}
    assert all(float(value) > 0 for value in moved.values())
    total = job.meter.collect()
    assert total.steps == 10
    assert min(total.update_s, total.synchronization_s, total.lookup_s, total.gradient_s) > 0
