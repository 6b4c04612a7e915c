"""A loop with tables on servers equals a single process, for every optimizer and number of servers."""

import msgspec
import pytest
import torch

import springtide as st
from springtide import errors
from tests.oracles.rws_adagrad import RWSAdagrad
from tests.unit.worker import clicks

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
    "row-wise sparse": lambda model: [
        st.RowWiseAdagrad(model.table_weights(), lr=0.1, lr_decay=0.1),
        torch.optim.Adagrad(model.dense_weights(), lr=0.1),
    ],
    "DLRM's, sparse": lambda model: RWSAdagrad(
        [{"params": model.table_weights(), "lr": 0.2}, {"params": model.dense_weights()}],
        lr=0.1,
        lr_decay=0.1,
        initial_accumulator_value=0.1,
    ),
}


def plainly(optimizer, sparse):
    model, dataset = clicks.make(sparse=sparse)
    return clicks.train(model, optimizer(model), clicks.plain(dataset, 20)), model.state_dict()


def train_served(job, optimizer, sparse, **options):
    model, dataset = clicks.make(sparse=sparse)
    model, made, batches = job.prepare(model, optimizer(model), dataset, batch_size=20, shuffle=False, **options)
    return clicks.train(model, made, batches), model.state_dict()


@pytest.mark.parametrize("sync", ["bsp", "async"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_single_worker_on_servers_equals_plain_pytorch(served_job, name, sync):
    sparse = "sparse" in name
    losses, state = train_served(served_job(servers=2, sync=sync), OPTIMIZERS[name], sparse, max_staleness=0)
    plain_losses, plain_state = plainly(OPTIMIZERS[name], sparse)
    assert losses == pytest.approx(plain_losses, abs=2e-6)
    for key, value in state.items():
        torch.testing.assert_close(value, plain_state[key], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("sync", ["bsp", "async"])
def test_number_of_servers_leaves_the_model_bit_identical(served_job, sync):
    results = [
        train_served(served_job(servers=count, sync=sync), OPTIMIZERS["adagrad"], False, max_staleness=0)
        for count in (1, 2, 3, 5)
    ]
    for losses, state in results[1:]:
        assert losses == results[0][0]
        assert all(torch.equal(value, results[0][1][key]) for key, value in state.items())


def test_prefetch_lags_one_step_and_ends_with_every_push_applied(served_job):
    job = served_job(servers=2)
    losses, state = train_served(job, OPTIMIZERS["sgd"], False)
    plain_losses, _ = plainly(OPTIMIZERS["sgd"], False)
    assert losses[0] == pytest.approx(plain_losses[0], abs=1e-6)
    assert losses[-1] == pytest.approx(plain_losses[-1], abs=0.05)
    moved = {key: (value - clicks.make()[0].state_dict()[key]).abs().sum() for key, value in state.items()}
    assert all(float(value) > 0 for value in moved.values())
    total = job.meter.collect()
    assert total.steps == 10
    waited = total.update_s + total.synchronization_s + total.lookup_s
    assert waited == pytest.approx(total.pull_wait_s + total.push_wait_s)
    assert total.forward_s + total.backward_s < total.gradient_s < total.total_s


def test_reader_processes_forked_after_join_use_no_server_connection(served_job):
    model, dataset = clicks.make()
    job = served_job(servers=2)
    model, optimizer, batches = job.prepare(
        model, OPTIMIZERS["sgd"](model), dataset, batch_size=20, shuffle=False, num_workers=2, max_staleness=0
    )
    assert clicks.train(model, optimizer, batches) == pytest.approx(plainly(OPTIMIZERS["sgd"], False)[0], abs=2e-6)


def test_parameters_without_gradient_are_omitted_from_a_push(served_job):
    """Momentum would move a parameter that is pushed with a gradient of zero."""

    def run(model, optimizer, batches):
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            clicks.loss_of(model, x, y).backward()
            if number % 2:
                model.mlp[0].weight.grad = None
                model.rows.weight.grad = None
            optimizer.step()
        return model.state_dict()

    def momentum(model):
        tables = {"params": model.table_weights(), "momentum": 0.0}
        return torch.optim.SGD([tables, {"params": model.dense_weights()}], lr=0.1, momentum=0.9)

    model, dataset = clicks.make()
    expected = run(model, momentum(model), clicks.plain(dataset, 20))
    model, _ = clicks.make()
    prepared = served_job(servers=2).prepare(
        model, momentum(model), dataset, batch_size=20, shuffle=False, max_staleness=0
    )
    for key, value in run(*prepared).items():
        torch.testing.assert_close(value, expected[key], atol=2e-6, rtol=1e-5)


def test_optimizer_unknown_to_servers_needs_bsp(served_job):
    def radam(model):
        return [torch.optim.SGD(model.table_weights(), lr=0.1), torch.optim.RAdam(model.dense_weights(), lr=0.01)]

    model, dataset = clicks.make()
    with pytest.raises(errors.BadInput, match=r'RAdam has no kernel on servers.*sync="bsp"'):
        served_job().prepare(model, radam(model), dataset)
    losses, state = train_served(served_job(sync="bsp"), radam, False)
    plain_losses, plain_state = plainly(radam, False)
    assert losses == pytest.approx(plain_losses, abs=2e-6)
    torch.testing.assert_close(state["mlp.0.weight"], plain_state["mlp.0.weight"], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("sync", ["bsp", "async"])
def test_rows_of_an_optimizer_without_a_kernel_are_refused(served_job, sync):
    model, dataset = clicks.make()
    with pytest.raises(errors.BadInput, match=r"NAdam has no kernel on servers for rows .*\[torch\.optim\.Adagrad"):
        served_job(sync=sync).prepare(model, torch.optim.NAdam(model.parameters()), dataset)


def test_dlrms_optimizer_continues_with_the_sums_of_a_loaded_state():
    """A worker that joins a bsp group, and a resumed job, load the state of an earlier process."""
    states = []
    for parts in ([0, 1], [0], [1]):
        model, dataset = clicks.make()
        made = [torch.optim.SGD(model.table_weights(), lr=0.1), RWSAdagrad(model.dense_weights(), lr=0.1)]
        model, optimizers, batches = st.join().prepare(model, made, dataset, batch_size=20, shuffle=False)
        if parts == [1]:
            model.load_state_dict(states[1][0])
            optimizers[1].load_state_dict(states[1][1])
        clicks.train(model, optimizers, [batch for number, batch in enumerate(batches) if number // 5 in parts])
        states.append((model.state_dict(), optimizers[1].state_dict()))
    torch.testing.assert_close(states[2][0]["mlp.0.weight"], states[0][0]["mlp.0.weight"])


@pytest.mark.parametrize("sync", ["bsp", "async"])
def test_step_hooks_of_the_users_optimizer_change_gradients_of_tables(served_job, sync):
    def halving(model):
        def halve(*_):
            torch._foreach_mul_([param.grad for param in model.parameters()], 0.5)

        made = torch.optim.Adagrad(model.parameters(), lr=0.1, eps=0.1)
        made.register_step_pre_hook(halve)
        return made

    _, state = train_served(served_job(servers=2, sync=sync), halving, False, max_staleness=0)
    for key, value in plainly(halving, False)[1].items():
        torch.testing.assert_close(state[key], value, atol=2e-6, rtol=1e-5)


def test_double_precision_model_is_refused_in_async_mode(served_job):
    model, dataset = clicks.make()
    model.mlp.double()
    with pytest.raises(errors.BadInput, match=r"'mlp.0.weight' is torch.float64"):
        served_job().prepare(model, OPTIMIZERS["sgd"](model), dataset)


def test_nan_in_a_dense_gradient_is_refused_by_name(served_job):
    model, dataset = clicks.make()
    model, optimizer, batches = served_job().prepare(model, OPTIMIZERS["sgd"](model), dataset, batch_size=20)
    for x, y in batches:
        clicks.loss_of(model, x, y).backward()
        model.mlp[2].bias.grad[0] = float("inf")
        with pytest.raises(errors.NonFiniteGradient, match=r"parameter 'mlp.2.bias'"):
            optimizer.step()
        break


def test_adding_a_parameter_group_is_refused_when_servers_hold_dense_parameters(served_job):
    model, dataset = clicks.make()
    _, optimizer, _ = served_job().prepare(model, OPTIMIZERS["sgd"](model), dataset)
    with pytest.raises(errors.BadInput, match=r"added after job.prepare"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own look at outputs
def test_compiled_model_trains(served_job):
    model, dataset = clicks.make()
    model, optimizer, batches = served_job().prepare(
        model, OPTIMIZERS["sgd"](model), dataset, batch_size=20, shuffle=False, max_staleness=0
    )
    compiled = torch.compile(model, backend="eager")
    assert clicks.train(compiled, optimizer, batches) == pytest.approx(plainly(OPTIMIZERS["sgd"], False)[0], abs=2e-6)


def test_unfreezing_a_parameter_unknown_to_servers_is_refused(served_job):
    model, dataset = clicks.make()
    model.mlp[0].bias.requires_grad_(False)
    model, optimizer, batches = served_job().prepare(model, OPTIMIZERS["sgd"](model), dataset, batch_size=20)
    model.mlp[0].bias.requires_grad_(True)
    for x, y in batches:
        clicks.loss_of(model, x, y).backward()
        with pytest.raises(errors.BadInput, match=r"'mlp.0.bias' was frozen at job.prepare"):
            optimizer.step()
        break


def test_parameter_of_two_optimizers_is_refused_on_servers(served_job):
    model, dataset = clicks.make()
    both = [OPTIMIZERS["sgd"](model), torch.optim.SGD(model.mlp[2].parameters(), lr=0.1)]
    with pytest.raises(errors.BadInput, match=r"'mlp.2.weight' is in two optimizers"):
        served_job().prepare(model, both, dataset)


@pytest.mark.parametrize("allowed", [False, True])
def test_bsp_group_in_a_tls_job_refuses_plaintext_unless_allowed(served_job, allowed):
    job = served_job(sync="bsp", plain_groups=allowed)
    job._welcome = msgspec.structs.replace(job._welcome, certificates="somewhere")
    if allowed:
        assert job._mode(None) == "bsp"
    else:
        with pytest.raises(errors.BadInput, match="gloo, which has no TLS"):
            job._mode(None)
    assert job._mode("async") == "async"
