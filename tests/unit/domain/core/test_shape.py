"""Shapes: totals, costs, and errors for invalid ones."""

import math
from dataclasses import replace

import msgspec
import pytest

from springtide import errors
from springtide.domain.core import shape
from springtide.domain.core.shape import GIB, MemoryNeed, Prices, ResourceBudget, Shape, ShapeBounds
from springtide.planning.perf_model import shape_columns

SMALL = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
LARGE = Shape(workers=8, servers=4, worker_cpu=4.0, server_cpu=2.0, worker_memory=2 * GIB, server_memory=8 * GIB)


def test_shape_totals_are_sums_over_its_roles():
    assert LARGE.cpu == 40.0
    assert LARGE.memory == 48 * GIB
    assert shape.cost(LARGE, Prices(cpu=1.0, memory=0.5)) == 64.0


def test_budget_without_gpus_survives_encoding():
    budget = ResourceBudget(cpu=4.0, memory=2.0**40)
    assert msgspec.json.decode(msgspec.json.encode(budget), type=ResourceBudget) == budget
    assert budget.holds(replace(LARGE, workers=4, servers=1, worker_cpu=0.5, worker_gpu=1.0)), "any number of GPUs"


@pytest.mark.parametrize(("each", "gpus"), [(0.0, 0), (1.0, 8), (0.5, 4), (0.4, 4), (0.3, 3), (0.01, 1)])
def test_workers_share_gpus_without_splitting_one_over_two(each, gpus):
    on_gpus = replace(LARGE, worker_gpu=each)
    assert on_gpus.gpus == shape_columns.columns([on_gpus]).gpus[0] == gpus
    assert shape.cost(on_gpus, Prices()) == shape.cost(LARGE, Prices()) + 50 * gpus
    assert shape_columns.columns([on_gpus]).cost(Prices())[0] == pytest.approx(shape.cost(on_gpus, Prices()))
    assert shape_columns.columns([on_gpus]).shape(0) == on_gpus
    assert ResourceBudget(cpu=99.0, memory=1e15, gpu=gpus).holds(on_gpus)
    assert not gpus or not ResourceBudget(cpu=99.0, memory=1e15, gpu=gpus - 1).holds(on_gpus)


def test_shape_prints_its_roles():
    assert str(replace(SMALL, worker_gpu=0.5)) == "1 worker (1 CPU, 0.5 GPU), 1 server (1 CPU)"
    assert str(LARGE) == "8 workers (4 CPU, 2G), 4 servers (2 CPU, 8G)"
    assert str(SMALL) == "1 worker (1 CPU), 1 server (1 CPU)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"servers": 0},
        {"worker_cpu": 0.0},
        {"worker_cpu": math.nan},
        {"server_cpu": math.inf},
        {"worker_memory": -1},
        {"server_memory": -1},
        {"worker_gpu": 2.0},
        {"worker_gpu": math.nan},
    ],
)
def test_impossible_shape_is_refused(wrong):
    with pytest.raises(errors.BadInput, match=r"shape: "):
        Shape(**{"workers": 1, "servers": 1, "worker_cpu": 1.0, "server_cpu": 1.0, **wrong})


def test_contradictory_bounds_are_refused():
    with pytest.raises(errors.BadInput, match="workers from 8 to 1; the least is above the most"):
        ShapeBounds(least=LARGE, most=SMALL)
    with pytest.raises(errors.BadInput, match="takes more than the quota, 1 cores"):
        ShapeBounds(least=SMALL, most=LARGE, quota=ResourceBudget(cpu=1.0, memory=math.inf))
    with pytest.raises(errors.BadInput, match="worker_step 0"):
        ShapeBounds(least=SMALL, most=LARGE, worker_step=0)
    with pytest.raises(errors.BadInput, match="cpu_step"):
        ShapeBounds(least=SMALL, most=LARGE, cpu_step=math.nan)


def test_bounds_list_the_possible_sizes():
    bounds = ShapeBounds(least=SMALL, most=LARGE, worker_step=3)
    assert bounds.workers == (1, 4, 7, 8)
    assert bounds.servers == (1, 2, 3, 4)
    assert bounds.worker_cpus == (1.0, 1.5, 2.0, 3.0, 4.0)
    assert ShapeBounds(least=SMALL, most=LARGE, cpu_step=0.5).server_cpus == (1.0, 1.5, 2.0)


def test_large_role_counts_use_larger_steps():
    assert shape.counts(1, 18, None) == (*range(1, 17), 18)
    assert shape.counts(15, 45, None) == (15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 45)


@pytest.mark.parametrize(
    ("least", "most", "step", "wanted"),
    [
        (0.3, 0.9, None, (0.3, 0.375, 0.5, 0.75, 0.9)),
        (1.0, 1.0, None, (1.0,)),
        (0.1, 0.4, 0.1, (0.1, 0.2, 0.3, 0.4)),
        (1.0, 2.2, 0.5, (1.0, 1.5, 2.0, 2.2)),
    ],
)
def test_sizes_range_from_least_to_most(least, most, step, wanted):
    assert shape.sizes(least, most, step) == wanted


def test_bounds_accept_shapes_within_them_and_the_quota():
    bounds = ShapeBounds(least=SMALL, most=LARGE, quota=ResourceBudget(cpu=20.0, memory=math.inf))
    assert bounds.holds(SMALL)
    assert not bounds.holds(LARGE)
    assert not bounds.holds(Shape(workers=9, servers=1, worker_cpu=1.0, server_cpu=1.0))


def test_sums_of_fractions_reach_a_limit_without_passing_it():
    assert ResourceBudget(cpu=0.4, memory=0).holds(Shape(workers=3, servers=1, worker_cpu=0.1, server_cpu=0.1))


def test_servers_share_the_memory_of_rows():
    need = MemoryNeed(worker=GIB, server=100, rows=1001)
    assert [need.of_server(servers) for servers in (1, 2, 3)] == [1101, 601, 434]


@pytest.mark.parametrize("wrong", [{"cpu": -1.0}, {"memory": -0.1}, {"cpu": math.nan}, {"cpu": 0.0, "memory": 0.0}])
def test_negative_prices_are_refused(wrong):
    with pytest.raises(errors.BadInput, match="prices"):
        Prices(**wrong)


def test_negative_capacity_and_need_are_refused():
    with pytest.raises(errors.BadInput, match="capacity"):
        ResourceBudget(cpu=math.nan, memory=1.0)
    with pytest.raises(errors.BadInput, match="memory need"):
        MemoryNeed(rows=-1)
