"""Identities in slots: every batch handed out and pushed, stepped or not, on every server."""

import pytest
import torch

from springtide import _native, errors
from tests.unit.worker import clicks
from tests.unit.worker.conftest import SLOTS

SAMPLES = 200


def prepare_job(job, **options):
    model, dataset = clicks.make(samples=SAMPLES)
    settings = {"batch_size": 20, "shuffle": False, **options}
    return job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, **settings)


def remembered_ranges(job):
    """Ranges of samples, the same at every slot of its owner."""
    return [run for run in all_remembered(job) if run[0] != _native.FIRST_VALUES]


def all_remembered(job):
    owned = [job.stores[slot % len(job.stores)].applied(slot) for slot in range(SLOTS)]
    assert all(one == owned[0] for one in owned), "slots have different histories"
    return owned[0]


def shards(count):
    """The first `count` shards, whole: so small a data set has a shard a batch."""
    return [(0, 0, count - 1, None)]


def first_values(tables):
    """The identity range that stands for first values of the first `tables` tables."""
    return (_native.FIRST_VALUES, 0, _native.FIRST_VALUES, tables)


@pytest.mark.parametrize("servers", [1, 2])
def test_every_slot_records_every_batch_of_every_epoch(served_job, servers):
    job = served_job(servers=servers)
    clicks.train(*prepare_job(job, epochs=2))
    assert remembered_ranges(job) == shards(20)


@pytest.mark.parametrize(("sync", "tables"), [("async", 4), ("bsp", 3)])
def test_every_slot_records_the_initial_values_of_all_tables(served_job, sync, tables):
    job = served_job(servers=2, sync=sync)
    prepare_job(job, sync=sync)
    assert all_remembered(job) == [first_values(tables)], "the embeddings, and async the dense parameters"


def test_second_pass_has_identities_distinct_from_the_first(served_job):
    job = served_job()
    model, optimizer, batches = prepare_job(job)
    clicks.train(model, optimizer, batches)
    weights = model.mlp[0].weight.detach().clone()
    clicks.train(model, optimizer, batches)
    assert not torch.equal(weights, model.mlp[0].weight), "the second pass was skipped as if it had been trained"
    assert remembered_ranges(job) == shards(20)


def test_batches_accumulated_into_one_step_share_one_identity(served_job):
    job = served_job(servers=2)
    model, optimizer, batches = prepare_job(job, accumulate=3)
    for x, y in batches:  # ten batches: the last sum has one
        clicks.loss_of(model, x, y).backward()
        if batches.completes_step:
            optimizer.step()
            optimizer.zero_grad()
    assert remembered_ranges(job) == shards(4)


def test_gradients_left_for_a_later_batch_are_refused_with_advice(served_job):
    model, _, batches = prepare_job(served_job())
    with pytest.raises(errors.BadInput, match="accumulate=4"):
        for x, y in batches:
            clicks.loss_of(model, x, y).backward()


def test_leftover_gradients_of_a_model_without_tables_are_detected(served_job):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    dataset = torch.utils.data.TensorDataset(torch.randn(60, 3), torch.randn(60, 1))
    model, _, batches = served_job().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=20)
    with pytest.raises(errors.BadInput, match="accumulate=4"):
        for x, y in batches:
            (model(x) - y).square().mean().backward()


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_skips_a_batch_even_without_tables(served_job, to_none):
    job, model = served_job(), torch.nn.Linear(3, 1)
    dataset = torch.utils.data.TensorDataset(torch.randn(60, 3), torch.randn(60, 1))
    model, optimizer, batches = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=20)
    for x, y in batches:
        (model(x) - y).square().mean().backward()
        optimizer.zero_grad(set_to_none=to_none)
    assert remembered_ranges(job) == shards(3)


def test_skipped_batch_is_pushed_under_its_own_identity(served_job):
    job = served_job()
    model, optimizer, batches = prepare_job(job)
    for number, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        if number % 2:
            continue
        clicks.loss_of(model, x, y).backward()
        if number % 3:
            optimizer.zero_grad()  # thought better of it
        else:
            optimizer.step()
    assert remembered_ranges(job) == shards(10)


def test_skipped_step_still_records_its_identity(served_job):
    job = served_job()
    model, optimizer, batches = prepare_job(job)
    before = model.mlp[0].weight.detach().clone()
    for x, y in batches:
        optimizer.zero_grad()
        clicks.loss_of(model, x, y).backward()
        optimizer.found_inf = torch.tensor(1.0)  # what torch.amp.GradScaler leaves for an optimizer that unscales
        optimizer.step()
    assert torch.equal(before, model.mlp[0].weight)
    assert remembered_ranges(job) == shards(10)


def test_batch_in_progress_at_break_is_not_recorded(served_job):
    job = served_job()
    model, optimizer, batches = prepare_job(job)
    for number, (x, y) in enumerate(batches):
        if number == 4:
            break
        optimizer.zero_grad()
        clicks.loss_of(model, x, y).backward()
        optimizer.step()
    assert remembered_ranges(job) == shards(4)


def test_identities_off_records_nothing(served_job):
    job = served_job(identities=False)
    losses = clicks.train(*prepare_job(job))
    assert len(losses) == 10
    assert remembered_ranges(job) == []


def test_bsp_uses_the_step_number_as_identity(served_job):
    job = served_job(sync="bsp")
    clicks.train(*prepare_job(job))
    assert remembered_ranges(job) == []
