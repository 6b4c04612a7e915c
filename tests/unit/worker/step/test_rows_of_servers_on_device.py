"""A bsp group of one worker trains the rows of its servers in device memory, and writes them back.

The device is the CPU here, so that pure torch kernels run the whole path. The servers are real.
"""

import contextlib

import numpy as np
import pytest
import torch

from springtide import errors
from springtide.domain.model import cache_rules
from springtide.embedding.device import backing
from springtide.embedding.lookup import device_tables
from tests.unit.worker import clicks, ranks

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


def images_on(group):
    """Every row with its optimizer state, as the servers have it."""
    found = {}
    for store in group.stores:
        for table in store.tables():
            for slot in range(ranks.SLOTS):
                keys, _ = store.scan(table.id, slot)
                ids = np.full(len(keys), table.id | 0x8000, dtype=np.uint16)
                out = np.empty(store.row_floats(ids), dtype=np.float32)
                store.pull(ids, keys, out)
                rows = np.split(out, len(keys)) if len(keys) else []
                found.update({(table.name, key): row.tobytes() for key, row in zip(keys.tolist(), rows, strict=True)})
    return {name: row for name, row in found.items() if not name[0].startswith("springtide")}


def train(make, *, after=lambda job, number, group: None, rules=None, seen=lambda job: None, every=1):
    """Train two passes, with a step after `every` batches."""
    rules = rules or cache_rules.rules()
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(ranks.Group(1, servers=2, rules=rules))

        def work(job):
            model, data = clicks.make()
            model, optimizer, batches = job.prepare(model, make(model.parameters()), data, batch_size=20)
            losses = []
            for _ in range(2):
                for number, (x, y) in enumerate(batches):
                    loss = clicks.loss_of(model, x, y)
                    loss.backward()
                    losses.append(loss.item())
                    if number % every == every - 1:
                        optimizer.step()
                        optimizer.zero_grad()
                        after(job, number, group)
            seen(job)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            job.finish()
            return losses, state

        ((losses, state),) = group.run(work)
        return losses, state, images_on(group)


def on_device(job):
    return bool(job._wired.client.on_device.by_name)


def assert_on_device(job):
    assert on_device(job) and not job._wired.client.ahead_of_servers


def assert_same_bits(one, other):
    assert one[0] == other[0]
    assert all(torch.equal(value, other[1][name]) for name, value in one[1].items())
    assert one[2] == other[2]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_end_with_the_rows_that_they_would_have_trained(rows_in_device, name):
    ours = train(OPTIMIZERS[name], seen=assert_on_device)
    rows_in_device(False)
    assert_same_bits(ours, train(OPTIMIZERS[name]))


def test_flush_writes_changed_rows_back_in_portions(rows_in_device, monkeypatch):
    monkeypatch.setattr(device_tables, "WRITE_BYTES", 100)
    written = []

    def flush(job, number, group):
        if number == 4:
            before = images_on(group)
            assert job._wired.step.bound
            job.flush()
            assert not job._wired.step.bound
            written.append(sum(row != before.get(name) for name, row in images_on(group).items()))
            job.flush()

    ours = train(OPTIMIZERS["adagrad"], after=flush)
    assert written[0] > 50 and written[1] > 50
    rows_in_device(False)
    assert_same_bits(ours, train(OPTIMIZERS["adagrad"]))


def test_rows_leave_the_device_before_the_group_forms_again(rows_in_device):
    def regroup(job, number, group):
        if number == 5:
            step = job._wired.step
            step.regroup(step._group.place.generation)
            assert not on_device(job)

    ours = train(OPTIMIZERS["adam"], after=regroup, seen=assert_on_device)
    rows_in_device(False)
    assert_same_bits(ours, train(OPTIMIZERS["adam"]))


def test_accumulated_gradients_train_rows_on_the_device(rows_in_device):
    ours = train(OPTIMIZERS["adagrad"], every=2, seen=assert_on_device)
    rows_in_device(False)
    native = train(OPTIMIZERS["adagrad"], every=2)
    torch.testing.assert_close(ours[0], native[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[1], native[1], rtol=1e-5, atol=1e-6)


def test_rows_are_read_in_the_middle_of_a_pass(rows_in_device):
    def read(job, number, group):
        if number == 3:
            client = job._wired.client
            assert client.ahead_of_servers
            assert not np.array_equal(client.read("rows", np.arange(50)), rows_of(group, "rows"))

    train(OPTIMIZERS["sgd"], after=read)


def rows_of(group, name):
    images = images_on(group)
    return np.stack([np.frombuffer(images[name, key], dtype=np.float32)[: clicks.DIM] for key in range(50)])


def test_status_shows_the_rows_as_a_cache_that_holds_all(rows_in_device):
    used = []
    train(OPTIMIZERS["sgd"], seen=lambda job: used.append(job._wired.cache_use))
    assert used[0].on and used[0].rows == 150 and used[0].hits == 2 * 200 * 3 and not used[0].dirty
    assert "all rows of 3 tables are in the GPU memory of this worker" in str(used[0])


@pytest.mark.parametrize("size", ["50%", "2%", 4000])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_that_do_not_fit_are_trained_in_the_memory_of_the_worker(rows_in_device, name, size, monkeypatch, caplog):
    monkeypatch.setattr(backing, "STEPS_AN_EXCHANGE", 2)
    monkeypatch.setattr(device_tables, "WRITE_BYTES", 1000)
    used = []

    def flush(job, number, group):
        if number == 4:
            job.flush()
            used.append(job._wired.cache_use)

    ours = train(OPTIMIZERS[name], rules=cache_rules.rules(size), after=flush, seen=assert_on_device)
    assert "of 150 rows of 'bags.0', 'bags.1', 'rows'" in caplog.text
    assert 0 < used[0].rows < 150 and used[1].pulled > 0 and not used[1].dirty
    assert "of 150 rows of 3 tables are in the GPU memory" in str(used[0])
    rows_in_device(False)
    assert_same_bits(ours, train(OPTIMIZERS[name]))


@pytest.mark.parametrize("size", ["off", 100])
def test_rows_stay_on_servers_without_a_cache(rows_in_device, size, caplog):
    ours = train(OPTIMIZERS["adagrad"], rules=cache_rules.rules(size), seen=elsewhere)
    assert ("GPU memory lacks room for the index" in caplog.text) == (size == 100)
    rows_in_device(False)
    assert_same_bits(ours, train(OPTIMIZERS["adagrad"]))


def elsewhere(job):
    tables = job._wired.client.on_device
    assert tables is None or not tables.by_name


def test_bad_gradient_is_found_before_its_rows_are_written_back(rows_in_device):
    with ranks.Group(1, servers=2, rules=cache_rules.rules()) as group:

        def work(job):
            model, data = clicks.make()
            model, optimizer, batches = job.prepare(model, OPTIMIZERS["sgd"](model.parameters()), data, batch_size=20)
            before = images_on(group)
            with pytest.raises(errors.NonFiniteGradient):
                for number, (x, y) in enumerate(batches):
                    optimizer.zero_grad()
                    loss = clicks.loss_of(model, x, y) if number != 8 else (model.rows(x[:, 2]) * torch.inf).sum()
                    loss.backward()
                    optimizer.step()
            assert number == 9 and images_on(group) == before
            job.finish()

        group.run(work)
