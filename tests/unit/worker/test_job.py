import copy
import io
import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import springtide as st
from springtide import errors
from tests.unit.worker import clicks


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def both(optimizer=sgd, *, steps=None, sparse=False, batch_size=20, **options):
    """Losses and state dicts of a plain loop and of a prepared one."""
    results = []
    for served in (False, True):
        model, dataset = clicks.make(sparse=sparse)
        made = optimizer(model)
        batches = clicks.plain(dataset, batch_size)
        if served:
            model, made, batches = st.join().prepare(
                model, made, dataset, batch_size=batch_size, shuffle=False, **options
            )
        results.append((clicks.train(model, made, batches), model.state_dict()))
    return results


def assert_same(results, tolerance=1e-6):
    (plain_losses, plain_state), (losses, state) = results
    assert losses == pytest.approx(plain_losses, abs=tolerance)
    assert state.keys() == plain_state.keys()
    for name in state:
        torch.testing.assert_close(state[name], plain_state[name], atol=tolerance, rtol=1e-5)


OPTIMIZERS = {
    "sgd": sgd,
    "momentum as one group": lambda model: torch.optim.SGD(model.dense_weights() + model.table_weights(), lr=0.1),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.01),
    "weight decay on dense": lambda model: torch.optim.SGD(
        [{"params": model.table_weights()}, {"params": model.dense_weights(), "weight_decay": 0.1}], lr=0.1
    ),
    "sparse adam and adam": lambda model: [
        torch.optim.SparseAdam(model.table_weights(), lr=0.01),
        torch.optim.Adam(model.dense_weights(), lr=0.01),
    ],
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_single_worker_loop_equals_plain_pytorch(name):
    assert_same(both(OPTIMIZERS[name], sparse="sparse" in name))


def test_prepare_returns_optimizers_in_the_given_structure():
    model, dataset = clicks.make()
    _, back, _ = st.join().prepare(model, [sgd(model)], dataset)
    assert isinstance(back, list)
    assert isinstance(back[0], torch.optim.Optimizer)


def test_schedulers_change_table_and_dense_rates_before_or_after_prepare():
    results = []
    for when in ("plain", "before", "after"):
        model, dataset = clicks.make()
        optimizer = sgd(model, lr=0.5)
        batches = clicks.plain(dataset, 20)
        if when == "before":
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if when != "plain":
            model, optimizer, batches = st.join().prepare(model, optimizer, dataset, batch_size=20, shuffle=False)
        if when != "before":
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        losses = []
        for batch in batches:
            losses += clicks.train(model, optimizer, [batch])
            scheduler.step()
        results.append(losses)
    assert results[1] == pytest.approx(results[0], abs=1e-6)
    assert results[2] == pytest.approx(results[0], abs=1e-6)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_gradient_clipping_includes_tables(clip):
    results = []
    for served in (False, True):
        model, dataset = clicks.make()
        optimizer, batches = sgd(model, lr=1.0), clicks.plain(dataset, 20)
        if served:
            model, optimizer, batches = st.join().prepare(model, optimizer, dataset, batch_size=20, shuffle=False)
        kept = model

        def after(kept=kept):
            clip(kept.parameters(), 0.01)

        results.append((clicks.train(model, optimizer, batches, after), model.state_dict()))
    assert_same(results)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_gradients_accumulate_over_batches_and_clip_together(clip):
    results = []
    for served in (False, True):
        model, dataset = clicks.make()
        optimizer, batches = sgd(model, lr=0.5), clicks.plain(dataset, 20)
        if served:
            model, optimizer, batches = st.join().prepare(model, optimizer, dataset, batch_size=20, shuffle=False)
        losses = []
        for number, (x, y) in enumerate(batches):
            loss = clicks.loss_of(model, x, y) / 4
            loss.backward()
            losses.append(loss.item())
            if number % 4 == 3:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        results.append((losses, model.state_dict()))
    assert_same(results)


def test_autocast_to_bfloat16_trains():
    results = []
    for served in (False, True):
        model, dataset = clicks.make()
        optimizer, batches = sgd(model), clicks.plain(dataset, 20)
        if served:
            model, optimizer, batches = st.join().prepare(model, optimizer, dataset, batch_size=20, shuffle=False)
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            loss = nn.functional.binary_cross_entropy_with_logits(out.float(), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append((losses, model.state_dict()))
    assert_same(results, tolerance=2e-3)


def test_step_skipped_by_grad_scaler_counts_as_trained():
    model, dataset = clicks.make(samples=60)
    model, optimizer, batches = st.join().prepare(model, sgd(model), dataset, batch_size=20, shuffle=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    states = [copy.deepcopy(model.state_dict())]
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = clicks.loss_of(model, x, y) * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        states.append(copy.deepcopy(model.state_dict()))
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in itertools.pairwise(states)]
    assert same == [False, True, False]


def test_grad_scaler_loop_equals_plain_pytorch():
    model, dataset = clicks.make()
    model, optimizer, batches = st.join().prepare(model, sgd(model), dataset, batch_size=20, shuffle=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = clicks.loss_of(model, x, y)
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    plain_model, plain_data = clicks.make()
    assert losses == pytest.approx(clicks.train(plain_model, sgd(plain_model), clicks.plain(plain_data, 20)), abs=1e-6)


def test_nan_gradient_is_refused_by_name_before_any_update():
    model, dataset = clicks.make()
    model, optimizer, batches = st.join().prepare(model, sgd(model), dataset, batch_size=20, shuffle=False)
    before = copy.deepcopy(model.state_dict())
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        clicks.loss_of(model, x, y).backward()
        if number == 0:
            model.mlp[0].bias.grad[2] = float("nan")
            with pytest.raises(errors.NonFiniteGradient, match=r"'mlp.0.bias' has NaN or infinity in 1 of 8"):
                optimizer.step()
        else:
            model.rows.weight.grad[0, 0] = float("inf")
            with pytest.raises(errors.NonFiniteGradient, match="rows"):
                optimizer.step()
            break
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_evaluation_reads_rows_and_trains_nothing():
    model, dataset = clicks.make()
    model, optimizer, batches = st.join().prepare(model, sgd(model), dataset, batch_size=20, shuffle=False)
    clicks.train(model, optimizer, batches)
    state = copy.deepcopy(model.state_dict())
    model.eval()
    with torch.no_grad():
        first = model(dataset.tensors[0])
        second = model(dataset.tensors[0])
    assert torch.equal(first, second)
    plain_model, _ = clicks.make()
    plain_model.load_state_dict(state)
    torch.testing.assert_close(plain_model(dataset.tensors[0]), first)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_state_dict_round_trips_between_plain_and_served_models():
    trained, dataset = clicks.make(seed=5)
    model, _ = clicks.make(seed=6)
    model, optimizer, _ = st.join().prepare(model, sgd(model), dataset)
    model.load_state_dict(trained.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups is optimizer.own.param_groups


def test_frozen_tables_and_layers_stay_unchanged():
    def frozen(model):
        model.rows.weight.requires_grad_(False)
        model.mlp[0].weight.requires_grad_(False)
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    results = both(frozen)
    assert_same(results)
    assert torch.equal(results[1][1]["rows.weight"], clicks.make()[0].state_dict()["rows.weight"])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_optimizer_may_clear_its_gradients_right_after_its_step(set_to_none):
    results = []
    for served in (False, True):
        model, dataset = clicks.make()
        optimizers = [torch.optim.SGD(model.table_weights(), lr=0.1), torch.optim.SGD(model.dense_weights(), lr=0.1)]
        batches = clicks.plain(dataset, 20)
        if served:
            model, optimizers, batches = st.join().prepare(model, optimizers, dataset, batch_size=20, shuffle=False)
        losses = []
        for batch in batches:
            loss = clicks.loss_of(model, *batch)
            loss.backward()
            for one in optimizers:
                one.step()
                one.zero_grad(set_to_none=set_to_none)
            losses.append(loss.item())
        results.append((losses, model.state_dict()))
    assert_same(results)


def test_one_of_two_optimizers_may_skip_batches():
    results = []
    for served in (False, True):
        model, dataset = clicks.make()
        optimizers = [torch.optim.SGD(model.table_weights(), lr=0.1), torch.optim.SGD(model.dense_weights(), lr=0.1)]
        batches = clicks.plain(dataset, 20)
        if served:
            model, optimizers, batches = st.join().prepare(model, optimizers, dataset, batch_size=20, shuffle=False)
        losses = []
        for number, batch in enumerate(batches):
            for one in optimizers:
                one.zero_grad()
            loss = clicks.loss_of(model, *batch)
            loss.backward()
            optimizers[number % 2].step()
            losses.append(loss.item())
        results.append((losses, model.state_dict()))
    assert_same(results)


def test_step_evaluates_its_closure_once():
    model, dataset = clicks.make(samples=20)
    model, optimizer, batches = st.join().prepare(model, sgd(model), dataset, batch_size=20)
    called = []
    for x, y in batches:

        def closure(x=x, y=y):
            called.append(1)
            optimizer.zero_grad()
            loss = clicks.loss_of(model, x, y)
            loss.backward()
            return loss

        assert optimizer.step(closure).item() > 0
    assert called == [1]


def test_table_without_a_row_count_trains():
    class Open(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = st.EmbeddingBag(DIM, init="zeros")
            self.out = nn.Linear(DIM, 1)

        def forward(self, ids):
            return self.out(self.bag(ids)).squeeze(1)

    model = Open()
    ids = torch.tensor([[2**62], [-5], [7], [2**62]])
    dataset = torch.utils.data.TensorDataset(ids, torch.ones(4))
    model, optimizer, batches = st.join().prepare(model, sgd(model), dataset, batch_size=2, epochs=3)
    losses = clicks.train(model, optimizer, batches)
    assert losses[-1] < losses[0]
    assert sorted(model.state_dict()["bag.keys"].tolist()) == [-5, 7, 2**62]


DIM = clicks.DIM


class OwnBatches(Dataset):
    """Items that are whole batches of ten samples."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset) // 10

    def __getitem__(self, number):
        if not 0 <= number < len(self):
            raise IndexError(number)
        return default_collate([self.dataset[at] for at in range(10 * number, 10 * number + 10)])


class OwnBatchStream(IterableDataset):
    def __init__(self, dataset):
        self.batches = OwnBatches(dataset)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter([self.batches[number] for number in range(len(self.batches))])


@pytest.mark.parametrize("kind", [OwnBatches, OwnBatchStream])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_dataloader_without_batch_size_trains_the_batches_of_the_data_set(kind, num_workers):
    model, dataset = clicks.make(samples=100)
    expected = clicks.train(model, sgd(model), clicks.plain(dataset, 10))
    model, _ = clicks.make(samples=100)
    job = st.join()
    loader = DataLoader(kind(dataset), batch_size=None, num_workers=num_workers)
    model, optimizer, batches = job.prepare(model, sgd(model), loader)
    assert len(batches) == 10
    assert clicks.train(model, optimizer, batches) == pytest.approx(expected, abs=1e-6)
    assert job.meter.collect().samples == 10, "a batch counts as one sample"


def test_whole_batches_cannot_be_divided_among_workers():
    model, dataset = clicks.make(samples=100)
    loader = DataLoader(OwnBatches(dataset), batch_size=None)
    with pytest.raises(errors.BadInput, match="makes whole batches, which workers cannot divide"):
        st.join().prepare(model, sgd(model), loader, scaling="global_batch")


def test_length_of_an_iterable_is_its_own_or_a_type_error():
    model, dataset = clicks.make(samples=95)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(dataset)

    _, _, batches = st.join().prepare(model, sgd(model), Stream(), batch_size=10)
    with pytest.raises(TypeError, match="IterableDataset without __len__"):
        len(batches)
    Stream.__len__ = lambda self: len(dataset)
    model, _ = clicks.make(samples=95)
    _, _, batches = st.join().prepare(model, sgd(model), Stream(), batch_size=10, epochs=2)
    assert len(batches) == 20


def test_loop_accepts_a_dataloader_an_iterable_and_reader_processes():
    for num_workers in (0, 2):
        model, dataset = clicks.make(samples=100)
        loader = DataLoader(dataset, batch_size=10, num_workers=num_workers)
        model, optimizer, batches = st.join().prepare(model, sgd(model), loader)
        assert len(batches) == 10
        plain_model, _ = clicks.make(samples=100)
        expected = clicks.train(plain_model, sgd(plain_model), clicks.plain(dataset, 10))
        assert clicks.train(model, optimizer, batches) == pytest.approx(expected, abs=1e-6)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(dataset)

    model, _ = clicks.make(samples=100)
    model, optimizer, batches = st.join().prepare(model, sgd(model), Stream(), batch_size=10, epochs=2)
    assert clicks.train(model, optimizer, batches)[:10] == pytest.approx(expected, abs=1e-6)


def test_shuffled_epochs_have_every_sample_once_in_different_orders():
    model, dataset = clicks.make(samples=50)
    numbered = torch.utils.data.TensorDataset(dataset.tensors[0], torch.arange(50))
    _, _, batches = st.join(seed=3).prepare(model, sgd(model), numbered, batch_size=7, epochs=2)
    seen = [int(i) for batch in batches for i in batch.y]
    assert sorted(seen[:50]) == sorted(seen[50:]) == list(range(50))
    assert seen[:50] != seen[50:]
    assert batches.epoch == 1


def test_step_time_terms_are_recorded():
    job = st.join()
    model, dataset = clicks.make()
    model, optimizer, batches = job.prepare(model, sgd(model), dataset, batch_size=20)
    clicks.train(model, optimizer, batches)
    total = job.meter.collect()
    assert (total.steps, total.samples) == (10, 200)
    parts = total.data_s + total.forward_s + total.backward_s + total.update_s + total.lookup_s
    assert 0 < parts <= total.total_s
    assert total.gradient_s == pytest.approx(total.forward_s + total.backward_s)


def test_non_tensor_ids_raise_an_error_in_the_loop():
    class Lists(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return [index]

    model = nn.Sequential(nn.EmbeddingBag(8, 2, mode="sum"))
    model, _, batches = st.join().prepare(model, sgd(model), Lists(), batch_size=2, collate_fn=lambda samples: samples)
    with pytest.raises(errors.BadInput, match="ids are a Batch; expected a tensor"):
        for batch in batches:
            model(batch)


def test_pickling_a_prepared_model_is_refused_with_advice():
    model, dataset = clicks.make()
    model, _, _ = st.join().prepare(model, sgd(model), dataset)
    with pytest.raises(errors.BadInput, match=r"Save model\.state_dict\(\) instead"):
        torch.save(model, io.BytesIO())
    assert copy.deepcopy(model).state_dict().keys() == model.state_dict().keys()


def test_adding_a_table_to_the_optimizer_later_is_refused_but_a_layer_is_not():
    model, dataset = clicks.make()
    first, second = model.dense_weights()[:1], model.dense_weights()[1:]
    tables = model.table_weights()
    _, optimizer, _ = st.join().prepare(model, torch.optim.SGD(first, lr=0.1), dataset)
    optimizer.add_param_group({"params": iter(second)})
    assert len(optimizer.param_groups[1]["params"]) == len(second)
    with pytest.raises(errors.BadInput, match="a served table was added to the optimizer after"):
        optimizer.add_param_group({"params": tables})


def test_job_prepares_only_one_model():
    job = st.join()
    model, dataset = clicks.make()
    job.prepare(model, sgd(model), dataset)
    other, _ = clicks.make()
    with pytest.raises(errors.BadInput, match="a job trains one model"):
        job.prepare(other, sgd(other), dataset)


def test_reports_accept_only_numbers():
    job = st.join()
    job.report(loss=torch.tensor(0.5), auc=0.75)
    with pytest.raises(errors.BadInput, match=r"report\(auc=...\) got a str"):
        job.report(auc="high")
