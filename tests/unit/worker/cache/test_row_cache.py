"""A group with a row cache has bit-identical losses, parameters and rows to one without."""

import threading

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from springtide import errors
from springtide.domain.model import cache_rules
from springtide.embedding.schedule import scheduler
from springtide.embedding.schedule.scheduler import FeatureIds
from springtide.planning.guards import cache_benefit
from springtide.worker.bsp import group as train_group
from springtide.worker.cache import auto_cache, coordinator
from springtide.worker.cache.row_cache import Planner
from tests.unit.worker import clicks, ranks

BATCH = 24
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


def skewed(samples, seed=0):
    """Clicks with skewed ids: rows are shared, trained by one worker, evicted and reloaded."""
    torch.manual_seed(seed)
    model = clicks.Clicks()
    ids = (clicks.ROWS * torch.rand(samples, clicks.FIELDS) ** 3).long()
    return model, TensorDataset(ids, (torch.rand(samples) < 0.4).float())


def train(group, *, steps, kind="sgd", passes=1, keep=True, after=lambda job, number: None, **options):
    """Losses and final model of each rank, and what its cache has done. Without `keep` the schedule is the same, as if
    there were caches, but nobody keeps a row."""
    made = [skewed(steps * BATCH) for _ in range(group.workers)]

    def work(job):
        model, dataset = made[job.rank]
        model, optimizer, batches = job.prepare(
            model, OPTIMIZERS[kind](model.parameters()), dataset, batch_size=BATCH, **options
        )
        sharing, losses = job._wired.sharing, []
        if not keep:
            sharing.cache = None
        for _ in range(passes):
            for number, (x, y) in enumerate(batches):
                optimizer.zero_grad()
                loss = clicks.loss_of(model, x, y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                after(job, number)
        job.finish()
        return losses, model.state_dict(), sharing.use()

    return group.run(work)


def assert_identical(found, expected):
    for (losses, state, _), (other_losses, other_state, _) in zip(found, expected, strict=True):
        assert losses == other_losses
        for name, value in other_state.items():
            assert torch.equal(state[name], value), name


@pytest.mark.parametrize(
    ("workers", "servers", "kind", "cache", "allocation"),
    [
        (3, 2, "sgd", "20%", "laia"),
        (2, 1, "adagrad", 40, "random"),  # one row
        (2, 2, "adam", "100%", "contiguous"),
        (1, 1, "adam", "10%", "laia"),
    ],
)
def test_row_cache_leaves_losses_parameters_and_rows_bit_identical(workers, servers, kind, cache, allocation):
    results = []
    for keep in (True, False):
        with ranks.Group(workers=workers, servers=servers) as group:
            results.append(train(group, steps=20, kind=kind, keep=keep, cache=cache, allocation=allocation))
    assert_identical(*results)
    for _, _, use in results[0]:
        assert use.saved > 0 and use.dirty == 0 and (use.hits > 0 or cache == 40)


@pytest.mark.soak
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("cache", [48, "5%", "100%"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_row_cache_is_bit_identical_over_five_hundred_steps(kind, cache, workers):
    results = []
    for keep in (True, False):
        with ranks.Group(workers=workers, servers=3) as group:
            results.append(train(group, steps=500, kind=kind, keep=keep, cache=cache, allocation="laia"))
    assert_identical(*results)


def test_worker_to_worker_transfers_reduce_server_traffic_bit_identically():
    results = []
    for keep, way in ((True, "rows"), (True, "gradients"), (False, "rows"), (False, "gradients")):
        with ranks.Group(workers=3, servers=2) as group:
            results.append(train(group, steps=20, kind="adam", keep=keep, cache="50%", allocation=f"laia+{way}"))
    rows, gradients, *without = results
    assert_identical(rows, without[0])
    assert_identical(gradients, without[1])
    assert sum(use.passed for _, _, use in rows) > 0
    assert sum(use.pushed for _, _, use in gradients) < sum(use.pushed for _, _, use in rows)


def test_pass_ends_with_all_rows_on_servers_and_the_next_starts_with_empty_caches():
    results = []
    for keep in (True, False):
        with ranks.Group(workers=2) as group:
            results.append(train(group, steps=8, passes=3, kind="adagrad", keep=keep, cache="20%", allocation="laia"))
    assert_identical(*results)


@pytest.mark.parametrize("allocation", ["laia", "laia+gradients"])
def test_mid_pass_row_reads_need_a_flush(allocation):
    seen = {}

    def look(job, number):
        model = job._wired.model
        if number == 9:
            with pytest.raises(errors.BadInput, match=r"job\.flush\(\)"):
                model.state_dict()
            with torch.no_grad(), pytest.raises(errors.BadInput, match=r"job\.flush\(\)"):
                model(torch.arange(30).view(10, 3))
        if number in (6, 9):
            job.flush()
            seen[job.rank, number] = model.state_dict()
            with torch.no_grad():
                model(torch.arange(30).view(10, 3))

    with ranks.Group(workers=2) as group:
        found = train(group, steps=15, after=look, cache="20%", allocation=allocation)
    states = {}

    def note(job, number):
        states[job.rank, number] = job._wired.model.state_dict()

    with ranks.Group(workers=2) as group:
        expected = train(group, steps=15, after=note, keep=False, cache="20%", allocation=allocation)
    assert_identical(found, expected)
    for place, state in seen.items():
        for name, value in state.items():
            assert torch.equal(value, states[place][name]), (place, name)


def test_rows_of_an_incomplete_flush_are_lost_with_a_rank(monkeypatch):
    seen = []
    await_complete = train_group.BspGroup.await_complete

    def watch(self, step):
        seen.append(steps[0].bound)
        await_complete(self, step)
        seen.append(steps[0].bound)

    steps = []

    def flush(job, number):
        if number == 9:
            steps.append(job._wired.step)
            with monkeypatch.context() as patched:
                patched.setattr(train_group.BspGroup, "await_complete", watch)
                job.flush()
            assert not job._wired.step.bound

    with ranks.Group(workers=1) as group:
        train(group, steps=12, after=flush, cache="50%", allocation="laia")
    assert seen == [True, True]


def test_flush_before_the_batch_is_stepped_is_refused():
    model, dataset = skewed(10 * BATCH)

    def work(job):
        _, optimizer, batches = job.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=BATCH, cache="20%"
        )
        for x, y in batches:
            with pytest.raises(errors.BadInput, match="right after optimizer"):
                job.flush()
            clicks.loss_of(model, x, y).backward()
            optimizer.step()
        job.finish()

    with ranks.Group(workers=1) as group:
        group.run(work)


@pytest.mark.parametrize("how", ["left early", "accumulated", "skipped"])
def test_cached_loops_that_break_accumulate_or_skip_steps_lose_no_update(how):
    results = []
    for size in ("20%", "off"):
        made = [skewed(20 * BATCH) for _ in range(2)]

        def work(job, made=made, size=size):
            model, dataset = made[job.rank]
            optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
            model, optimizer, batches = job.prepare(
                model, optimizer, dataset, batch_size=BATCH, cache=size, allocation="contiguous", shuffle=False
            )
            for number, (x, y) in enumerate(batches):
                if how == "left early" and number == 12:
                    break
                clicks.loss_of(model, x, y).backward()
                if how == "accumulated" and number > 8 and number % 2:
                    continue
                if how == "skipped" and number == 9:
                    optimizer.found_inf, optimizer.grad_scale = torch.tensor(1.0), torch.tensor(1.0)
                optimizer.step()
                optimizer.found_inf = optimizer.grad_scale = None
                optimizer.zero_grad()
            state = model.state_dict()
            job.finish()
            return [], state, None

        with ranks.Group(workers=2) as group:
            results.append(group.run(work))
    assert_identical(*results)


def test_model_with_batch_norm_is_allocated_contiguously_unless_asked_otherwise():
    across = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    rules = cache_rules.CacheRules(share=0.1)
    assert coordinator.for_model(rules, across).policy == "contiguous"
    assert coordinator.for_model(rules, across[0]) == rules
    asked = cache_rules.CacheRules(policy="laia")
    assert coordinator.for_model(asked, across) == asked


def test_dirty_rows_above_the_limit_are_written_back():
    rules = cache_rules.CacheRules(share=1.0, policy="laia", dirty=64)
    with ranks.Group(workers=2, rules=rules) as group:
        found = train(group, steps=20)
    assert all(use.flushes > 5 for _, _, use in found)


def test_ranks_start_and_stop_the_auto_cache_together(monkeypatch):
    for name in ("WATCHED", "COLD", "TRIED", "WARM"):
        monkeypatch.setattr(auto_cache, name, 4)
    looked = []
    plain = coordinator.paper_schedule

    def paper_schedule(*how):
        simulate = plain(*how)
        return lambda *what: looked.append(threading.get_ident()) or simulate(*what)

    monkeypatch.setattr(coordinator, "paper_schedule", paper_schedule)
    monkeypatch.setattr(cache_benefit, "decide", lambda measured: cache_benefit.CacheVerdict(True, "it pays"))
    monkeypatch.setattr(
        cache_benefit, "keep", lambda before, after, risk, sums: cache_benefit.CacheVerdict(False, "it does not")
    )
    monkeypatch.setattr(cache_benefit, "LEAST_GAIN", 0.0)
    seen = {}

    def look(job, number):
        seen[job.rank, number] = job._wired.sharing.use()

    with ranks.Group(workers=2, rules=cache_rules.rules("auto")) as group:
        found = train(group, steps=30, after=look)
    for rank in range(2):
        on = [number for number in range(30) if seen[rank, number].on]
        assert on and on == list(range(on[0], on[-1] + 1)) and on[-1] < 29, "it begins once, and stops once"
        assert found[rank][2].hits > 0 and found[rank][2].dirty == 0
    assert len(set(looked)) == 2, "every rank schedules on paper, so that the price of it is seen"
    whys = {use.why for (rank, _), use in seen.items() if rank == 0}
    assert {"it pays", "it does not"} <= whys
    for name, value in found[0][1].items():
        assert torch.equal(value, found[1][1][name]), name


@pytest.mark.parametrize(("policy", "least", "most"), [("anneal", 1, 20), ("laia", 3, 3)])
def test_scheduler_effort_fits_the_available_time(policy, least, most):
    settings = scheduler.ScheduleSettings(workers=2, capacity_rows=10, tables=(0, 1, 2), policy=policy)
    planner = Planner(settings)
    ids = np.arange(8, dtype=np.int64)
    assert planner.effort_within(0.0) == most  # the first ones say what they cost
    for effort in (0, 5, 2):
        planner.schedule([FeatureIds(table, ids, None) for table in range(3)], 8, effort=effort)
    assert planner.effort_within(0.0) == least
    assert planner.effort_within(60.0) == most
