"""Batch-order gradient sums give a bit-identical model for any allocation of samples."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies
from torch import nn
from torch.utils.data import IterableDataset

import springtide as st
from springtide import errors
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec import job_spec
from springtide.worker.bsp import batch_order
from springtide.worker.input.batch_plan import ReadBatch
from tests.unit.worker import clicks, ranks
from tests.unit.worker.cache.test_row_cache import OPTIMIZERS, skewed

BATCH = 24


def train(workers, *, steps=6, kind="adam", servers=1, how="batch-order:4", **options):
    """Losses by sample of the whole group, and the final model; every rank's model is the same."""
    made = [skewed(steps * BATCH) for _ in range(workers)]

    def work(job):
        model, dataset = made[job.rank]
        model, optimizer, batches = job.prepare(
            model, OPTIMIZERS[kind](model.parameters()), dataset, batch_size=BATCH, reduction=how, **options
        )
        losses = {}
        for x, y in batches:
            optimizer.zero_grad()
            loss = clicks.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            losses.setdefault((batches.epoch, x.numpy().tobytes()), []).append(loss.item())
        state, use = model.state_dict(), job._wired.sharing
        job.finish()
        return losses, state, None if use is None else use.use()

    with ranks.Group(workers=workers, servers=servers) as group:
        found = group.run(work)
    losses = {}
    for one, state, _ in found:
        for name, values in one.items():
            losses.setdefault(name, []).extend(values)
        assert all(torch.equal(value, found[0][1][name]) for name, value in state.items())
    return {name: sorted(values) for name, values in losses.items()}, found[0][1], found[0][2]


def assert_same(found, expected):
    assert found[0] == expected[0], "losses"
    for name, value in expected[1].items():
        assert torch.equal(found[1][name], value), name


@pytest.mark.parametrize(
    ("kind", "workers", "options", "other"),
    [
        ("sgd", 4, dict(cache=48, allocation="random+rows"), 1),
        ("adagrad", 3, dict(cache="20%", allocation="laia", servers=2), 1),
        ("adam", 3, dict(cache="50%", allocation="anneal+gradients"), 2),
    ],
)
def test_model_is_bit_identical_for_another_allocation_and_worker_count(kind, workers, options, other):
    found = train(workers, kind=kind, **options)
    assert_same(found, train(other, kind=kind, cache="off"))
    assert found[2].looked_up > 0, "a schedule was at work"


def test_model_is_bit_identical_with_one_sample_per_unit():
    assert_same(train(3, how="batch-order", cache="20%"), train(2, how="batch-order", cache="off"))


@pytest.mark.soak
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("unit", [1, 4])
def test_model_is_bit_identical_over_two_hundred_steps(kind, unit):
    how = f"batch-order:{unit}"
    expected = train(1, steps=200, kind=kind, how=how, cache="off")
    for workers in (2, 3, 4):
        for cache, allocation in (
            ("off", "contiguous"),
            ("off", "random"),
            ("5%", "laia"),
            ("100%", "anneal+gradients"),
        ):
            found = train(workers, steps=200, kind=kind, how=how, servers=3, cache=cache, allocation=allocation)
            assert_same(found, expected)


def test_rank_order_sums_differ_for_another_number_of_workers():
    one, two = train(1, how="rank-order"), train(2, how="rank-order")
    assert any(not torch.equal(value, two[1][name]) for name, value in one[1].items())
    for name, value in one[1].items():
        assert torch.allclose(value, two[1][name], atol=1e-4), name


class Few(nn.Module):
    """A table, and a dense parameter or none: fewer floats than ranks."""

    def __init__(self, dense):
        super().__init__()
        self.bag = nn.EmbeddingBag(clicks.ROWS, 1, mode="sum")
        self.bias = nn.Parameter(torch.ones(dense, dtype=torch.float32)) if dense else None

    def forward(self, ids):
        return self.bag(ids).squeeze(1) + (0 if self.bias is None else self.bias.sum())


@pytest.mark.parametrize("dense", [0, 1])
def test_model_may_have_fewer_dense_floats_than_the_group_has_ranks(dense):
    _, dataset = skewed(2 * BATCH)
    first, made = Few(dense), []

    def work(job):
        model = made[job.rank]
        model, optimizer, batches = job.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.5), dataset, batch_size=BATCH, reduction="batch-order:4"
        )
        clicks.train(model, optimizer, batches)
        state = model.state_dict()
        job.finish()
        return state

    found = []
    for workers in (1, 2):
        made = [copy.deepcopy(first) for _ in range(workers)]
        with ranks.Group(workers=workers) as group:
            found += group.run(work)
    for name, value in found[0].items():
        assert not torch.equal(value, first.state_dict()[name]), f"{name} was not trained"
        assert all(torch.equal(value, other[name]) for other in found[1:]), name


def test_overflow_in_one_unit_of_one_rank_skips_the_step_on_all_ranks():
    made = [skewed(BATCH) for _ in range(2)]

    def work(job):
        model, dataset = made[job.rank]
        model, optimizer, batches = job.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.5), dataset, batch_size=BATCH, reduction="batch-order:4"
        )
        scaler, states = torch.amp.GradScaler("cpu", init_scale=4.0), [copy.deepcopy(model.state_dict())]
        for passes in range(2):
            for number, (x, y) in enumerate(batches):
                optimizer.zero_grad()
                overflows = passes == 0 and job.rank == 1 and number == 1
                scaler.scale(clicks.loss_of(model, x, y) * (float("inf") if overflows else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
            states.append(copy.deepcopy(model.state_dict()))
        steps = batches._step.count
        job.finish()
        return states, steps

    with ranks.Group(workers=2) as group:
        for states, steps in group.run(work):
            same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in itertools.pairwise(states)]
            assert (same, steps) == ([True, False], 2)


def test_overflow_in_an_abandoned_batch_skips_no_other_batch():
    changed = []

    def work(model, optimizer, batches):
        before = copy.deepcopy(model.state_dict())
        for leaves in (True, False):
            for x, y in batches:
                optimizer.zero_grad()
                clicks.loss_of(model, x, y).backward()
                optimizer.found_inf = torch.tensor(float(leaves))
                optimizer.step()
                if leaves or batches._step.count == 1:
                    break
        changed.append(any(not torch.equal(value, before[name]) for name, value in model.state_dict().items()))

    loop(work)
    assert changed == [True]


# ---- data workers ----


def test_units_of_a_split_batch_carry_no_crossings():
    order = SimpleNamespace(places=np.arange(8), whole=np.arange(8), indices=np.arange(8))
    picker = SimpleNamespace(pick=lambda batch, indices, mine, jagged: batch[mine])
    cutting = batch_order.UnitSplitter(SimpleNamespace(settled=False), picker, 4)
    cut = list(cutting.units(ReadBatch(order, np.arange(8), crossing=("of all eight",))))
    assert [(one.batch.tolist(), one.crossing) for one in cut] == [([0, 1, 2, 3], None), ([4, 5, 6, 7], None)]


@pytest.mark.parametrize(("how", "moves"), [("rank-order", True), ("batch-order:4", False)])
def test_forward_is_not_split_when_batches_are_cut_in_units(how, moves):
    def work(job):
        model, dataset = skewed(BATCH)
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=BATCH, reduction=how)
        return job._splitting._enabled

    with ranks.Group(workers=1, feeding=FeedRules()) as group:
        assert group.run(work) == [moves]


# ---- what is not supported ----


@pytest.mark.parametrize(
    ("given", "unit"), [(None, 0), ("rank-order", 0), ("batch-order", 1), ("batch-order:1", 1), ("batch-order:32", 32)]
)
def test_reduction_parses_an_order_with_an_optional_unit_size(given, unit):
    assert job_spec.unit_of(given) == unit


@pytest.mark.parametrize("given", ["batch", "batch-order:", "batch-order:0", "batch-order:-1", "batch-order:x", ""])
def test_unknown_reductions_are_refused(given):
    with pytest.raises(errors.BadInput, match="batch-order:8"):
        job_spec.unit_of(given)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


def prepare(group, model, dataset, **options):
    def work(job):
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, **options)

    group.run(work)


@pytest.mark.parametrize(
    ("layer", "options", "said"),
    [
        (nn.BatchNorm1d(3), {}, "layer '1' .BatchNorm1d. looks across samples"),
        (nn.Dropout(0.1), {}, "layer '1' .Dropout. draws random numbers"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), {}, "layer '1' .LSTM. draws random numbers"),
        (nn.Identity(), dict(sync="async"), 'needs sync="bsp"'),
        (nn.Identity(), dict(dataset=Endless()), "needs a data set whose samples have indices"),
        (nn.Identity(), dict(batch_size=12, reduction="batch-order:16"), "each of 1 workers needs 16"),
    ],
)
def test_batch_order_refuses_unsupported_models_by_name(layer, options, said):
    plain, dataset = clicks.make()
    model = nn.Sequential(plain, layer)
    with ranks.Group(workers=1) as group, pytest.raises(errors.BadInput, match=said):
        prepare(group, model, options.pop("dataset", dataset), **{"reduction": "batch-order", **options})


def loop(work):
    """Run one rank whose loop is `work(model, optimizer, batches)`."""
    model, dataset = skewed(4 * BATCH)

    def one(job):
        _, optimizer, batches = job.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=BATCH, reduction="batch-order:4"
        )
        work(model, optimizer, batches)
        job.finish()

    with ranks.Group(workers=1) as group:
        group.run(one)


def test_unit_without_a_step_is_refused():
    def work(model, optimizer, batches):
        for x, y in batches:
            clicks.loss_of(model, x, y).backward()

    with pytest.raises(errors.BadInput, match=r"without optimizer\.step"):
        loop(work)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("lr", 0.09, "the learning rate"), ("momentum", 0.5, "momentum"), ("betas", (0.8, 0.9), "betas")],
)
def test_learning_rate_change_within_a_batch_is_refused(name, value, said):
    def work(model, optimizer, batches):
        optimizer.param_groups[0].setdefault(name, (0.9, 0.9))
        for x, y in batches:
            optimizer.zero_grad()
            clicks.loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.param_groups[0][name] = value

    with pytest.raises(errors.BadInput, match=f"^{said} changed in the middle of a batch"):
        loop(work)


def test_loop_left_in_the_middle_of_a_batch_applies_only_whole_batches():
    steps = []

    def work(model, optimizer, batches):
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            clicks.loss_of(model, x, y).backward()
            optimizer.step()
            if number == 8:
                break
        steps.append(batches._step.count)

    loop(work)
    assert steps == [1]


def test_batch_order_changes_nothing_for_a_single_worker():
    model, dataset = clicks.make()
    job = st.join()
    _, _, batches = job.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=50, reduction="batch-order"
    )
    assert len(batches) == 4


DIMS = {0: 1, 1: 3, 7: 2}


def row_gradients(entries, seed=0):
    """Rows for (table, key, place) with values depending on all three, so that order matters."""
    parts = []
    for table, key, place in entries:
        chance = np.random.default_rng((seed, table, key % 2**64, place))
        values = (chance.normal(size=DIMS[table]) * 10.0 ** (place % 9 - 4)).astype(np.float32)
        keys, places, dims = (np.array([one], np.int64) for one in (key, place, DIMS[table]))
        parts.append(batch_order.RowGradients(np.array([table], np.uint16), keys, places, dims, values))
    return batch_order.join_rows(parts)


def summed_by_hand(entries):
    sums = {}
    for table, key, place in sorted(entries, key=lambda one: one[2]):
        value = row_gradients([(table, key, place)]).grads
        known = sums.get((table, key))
        sums[table, key] = value if known is None else known + value
    return sums


entries = strategies.sets(
    strategies.tuples(
        strategies.sampled_from(sorted(DIMS)),
        strategies.integers(-(2**63), 2**63 - 1) | strategies.integers(0, 3),
        strategies.integers(0, 12),
    ),
    max_size=40,
)


@given(entries, strategies.randoms(use_true_random=False))
def test_row_gradients_are_summed_unit_by_unit_in_order(found, chance):
    shuffled = sorted(found)
    chance.shuffle(shuffled)
    sums, expected = batch_order.sum_rows(row_gradients(shuffled)), summed_by_hand(found)
    ends = np.cumsum(sums.dims)
    got = {
        (int(table), int(key)): sums.grads[end - dim : end]
        for table, key, dim, end in zip(sums.tables, sums.keys, sums.dims, ends, strict=True)
    }
    assert list(got) == sorted(expected)
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes()


def test_row_of_a_single_unit_keeps_its_bits_even_negative_zero():
    one = row_gradients([(0, 5, 3)])._replace(grads=np.array([-0.0], np.float32))
    assert np.signbit(batch_order.sum_rows(one).grads[0])


@given(entries)
def test_row_gradients_survive_the_exchange_between_ranks(found):
    sent = row_gradients(sorted(found))
    for column, other in zip(batch_order.RowGradients.from_bytes(sent.to_bytes()), sent, strict=True):
        assert column.dtype == other.dtype and np.array_equal(column, other)


@given(strategies.lists(entries, min_size=1, max_size=4))
def test_lowest_rank_with_a_row_sums_it(found):
    known = []
    for one in found:
        pairs = sorted({(table, key) for table, key, _ in one})
        known.append((np.array([p[0] for p in pairs], np.uint16), np.array([p[1] for p in pairs], np.int64)))
    for rank, (tables, keys) in enumerate(known):
        home = batch_order.home_ranks(known, rank)
        for table, key, lowest in zip(tables, keys, home, strict=True):
            have = [r for r, one in enumerate(found) if any((t, k) == (table, key) for t, k, _ in one)]
            assert lowest == min(have)


@pytest.mark.parametrize("wanted", [[True, False, True], [False] * 3])
def test_row_gradients_filter_keeps_matching_gradients(wanted):
    three = row_gradients([(1, 4, 0), (7, 2, 0), (0, 9, 1)])
    some = three.where(np.array(wanted))
    assert some.keys.tolist() == [key for key, here in zip([4, 2, 9], wanted, strict=True) if here]
    assert some.grads.tolist() == [*three.grads[:3], three.grads[5]] if wanted[0] else not some.grads.size
