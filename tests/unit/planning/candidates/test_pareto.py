"""The front is that of brute force: nothing on it is dominated, nothing that is worth having is missing."""

import itertools
import math
from dataclasses import replace

import numpy
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import GIB, MemoryNeed, Prices, ResourceBudget, Shape, ShapeBounds, cost
from springtide.domain.plan.view import LaunchTime
from springtide.planning.candidates import grids, pareto, switch_cost
from springtide.planning.candidates.enumeration import FrontQuery
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients, Shapes
from springtide.planning.perf_model.shape_columns import columns
from tests.unit.planning.planted import FACTS, TRUE

LEAST = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
MOST = Shape(workers=6, servers=4, worker_cpu=4.0, server_cpu=3.0, worker_memory=8 * GIB, server_memory=16 * GIB)
BOUNDS = ShapeBounds(least=LEAST, most=MOST)
LAUNCHES = tuple(
    LaunchTime(kind=kind, cpu=cpu, memory=GIB, seconds=10 + 5 * cpu)
    for kind in (RoleKind.WORKER, RoleKind.SERVER)
    for cpu in (1.0, 2.0, 4.0)
)


def every_shape(ask):
    """All shapes within bounds, each with the memory it needs, one by one."""
    bounds, need = ask.bounds, grids.rounded(ask.need, ask.bounds)
    for w, p, a, b in itertools.product(bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus):
        server_memory = max(need.of_server(p), bounds.least.server_memory)
        shape = Shape(
            workers=w, servers=p, worker_cpu=a, server_cpu=b, worker_memory=need.worker, server_memory=server_memory
        )
        if bounds.most.worker_memory == 0 or bounds.holds(shape):
            yield shape


def brute_force(ask):
    """Points (cost, gain) that no other dominates."""
    points = set()
    before = equations.throughput(ask.coefficients, ask.facts, ask.now) if ask.now else 0.0
    for shape in every_shape(ask):
        worth = min(ask.pace[0] * shape.workers * shape.worker_cpu, ask.pace[1] * shape.servers * shape.server_cpu)
        after = min(equations.throughput(ask.coefficients, ask.facts, shape), worth)
        gain = after - before
        if ask.launches is not None and ask.now and math.isfinite(ask.horizon_s):
            lost = switch_cost.lost_samples(ask.now, columns([shape]), ask.launches, before, numpy.array([after]))
            gain -= float(lost[0]) / ask.horizon_s
        points.add((round(cost(shape, ask.prices), 5), round(gain, 5)))  # servers' shares of rows are rounded to bytes
    front, fastest = [], -math.inf
    for price, gain in sorted(points, key=lambda point: (point[0], -point[1])):
        if gain > fastest:
            front.append((price, gain))
            fastest = gain
    return front


shares = st.floats(0.0, 1.0)


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    coefficients=st.builds(
        Coefficients,
        grad=shares.map(lambda x: x * 4e-4),
        upd=shares.map(lambda x: x / 25),
        sync=shares.map(lambda x: x * 4),
        emb=shares.map(lambda x: x * 2e-7),
        beta=st.floats(1e-4, 0.01),
    ),
    prices=st.builds(Prices, cpu=st.floats(0.1, 2.0), memory=st.floats(0.0, 0.5)),
    need=st.builds(
        MemoryNeed,
        worker=st.integers(0, 6).map(lambda g: g * GIB),
        server=st.integers(0, 3).map(lambda g: g * GIB),
        rows=st.integers(0, 40).map(lambda g: g * GIB),
    ),
    quota=st.sampled_from([math.inf, 12.0, 20.0]),
    memory=st.sampled_from([math.inf, 40.0 * GIB]),
    least_server=st.sampled_from([0, 4 * GIB]),
    now=st.sampled_from([None, LEAST, Shape(workers=3, servers=2, worker_cpu=2.0, server_cpu=1.0)]),
    horizon_s=st.sampled_from([math.inf, 600.0]),
    pace=st.sampled_from([pareto.NO_LIMIT, (900.0, math.inf), (math.inf, 1500.0), (3000.0, 4000.0)]),
)
def test_the_front_is_that_of_brute_force(
    coefficients, prices, need, quota, memory, least_server, now, horizon_s, pace
):
    bounds = ShapeBounds(
        least=replace(LEAST, server_memory=least_server), most=MOST, quota=ResourceBudget(cpu=quota, memory=memory)
    )
    ask = FrontQuery(
        coefficients=coefficients,
        facts=FACTS,
        bounds=bounds,
        now=now,
        need=need,
        prices=prices,
        launches=LAUNCHES,
        horizon_s=horizon_s,
        pace=pace,
    )
    found = pareto.front_of(ask)
    assert found.how == "exact"
    mine = list(zip(found.cost.tolist(), found.gain.tolist(), strict=True))
    wanted = brute_force(ask)
    for one, other in ((mine, wanted), (wanted, mine)):  # each point of one is met or beaten by a point of the other
        for price, gain in one:
            assert any(c <= price + 1e-4 and g >= gain - 1e-4 for c, g in other), (price, gain)
    assert (numpy.diff(found.cost) > 0).all() and (numpy.diff(found.gain) > 0).all()
    for index in range(len(found)):
        assert bounds.holds(found.shape(index))
        assert cost(found.shape(index), prices) == pytest.approx(float(found.cost[index]))


def test_a_front_rises_in_cost_and_gain():
    found = pareto.front(TRUE, FACTS, bounds=BOUNDS, now=LEAST)
    assert (numpy.diff(found.cost) > 0).all() and (numpy.diff(found.gain) > 0).all()
    assert found.gain[0] == pytest.approx(0.0)
    assert found.why == f"{len(found)} of {grids.count(BOUNDS):,} shapes are worth having"


def test_memory_that_no_shape_has_leaves_nothing_and_says_so():
    found = pareto.front(TRUE, FACTS, bounds=BOUNDS, need=MemoryNeed(rows=65 * GIB))
    assert len(found) == 0 and "has memory enough" in found.why
    assert len(pareto.front(TRUE, FACTS, bounds=BOUNDS, need=MemoryNeed(worker=9 * GIB))) == 0


def test_rows_that_one_server_cannot_hold_are_shared_by_more():
    found = pareto.front(TRUE, FACTS, bounds=BOUNDS, need=MemoryNeed(rows=40 * GIB))
    assert found.shapes.servers.min() == 3


def test_servers_that_cannot_serve_what_workers_could_do_get_the_cores():
    bounds = replace(BOUNDS, quota=ResourceBudget(cpu=12.0, memory=math.inf))
    free = pareto.front(TRUE, FACTS, bounds=bounds)
    before = free.shape(len(free) - 1)
    worth = 0.5 * float(free.throughput[-1]) / (before.servers * before.server_cpu)
    found = pareto.front(TRUE, FACTS, bounds=bounds, pace=(math.inf, worth))
    after = found.shape(len(found) - 1)
    assert after.servers * after.server_cpu > before.servers * before.server_cpu
    assert found.throughput[-1] > 0.5 * free.throughput[-1]


def test_a_job_that_takes_no_time_has_one_candidate_the_cheapest():
    nothing = Coefficients(grad=0.0, upd=0.0, sync=0.0, emb=0.0, beta=0.0)
    found = pareto.front(nothing, FACTS, bounds=BOUNDS)
    assert [found.shape(0)] == [LEAST] and len(found) == 1


def test_a_thinned_front_keeps_its_ends():
    whole = pareto.front(TRUE, FACTS, bounds=BOUNDS)
    thinned = whole.thin(5)
    assert 2 <= len(thinned) <= 5 < len(whole)
    assert (thinned.cost[0], thinned.gain[-1]) == (whole.cost[0], whole.gain[-1])
    assert whole.thin(1000) is whole


def test_a_horizon_of_nothing_is_refused():
    with pytest.raises(errors.BadInput, match="horizon_s 0"):
        pareto.front(TRUE, FACTS, bounds=BOUNDS, horizon_s=0.0)


def test_a_space_too_large_to_be_listed_is_made_coarser_without_the_extra(monkeypatch):
    def missing(_):
        raise errors.MissingExtra("a search by NSGA-II", "brain")

    monkeypatch.setattr(pareto, "evolved_front", missing)
    monkeypatch.setattr(grids, "MOST", 200)
    found = pareto.front(TRUE, FACTS, bounds=BOUNDS)
    assert found.how == "coarse" and len(found) > 3


@pytest.mark.extra("pymoo")
@pytest.mark.filterwarnings("ignore")
def test_evolution_finds_nothing_that_the_whole_list_does_not_equal_or_beat():
    ask = FrontQuery(
        coefficients=TRUE,
        facts=FACTS,
        bounds=BOUNDS,
        need=MemoryNeed(worker=GIB, server=GIB, rows=20 * GIB),
        pace=(3000.0, 4000.0),
    )
    true, found = pareto.listed([ask])[0], pareto.evolved_front(ask, population=40, generations=25)
    assert found.how == "evolved" and len(found) > 5
    for price, gain in zip(found.cost, found.gain, strict=True):
        as_cheap = true.gain[true.cost <= price * (1 + 1e-9)]
        assert len(as_cheap) and as_cheap.max() >= gain * (1 - 1e-9)
    again = pareto.evolved_front(ask, population=40, generations=25)
    numpy.testing.assert_array_equal(again.cost, found.cost)


WIDE = replace(
    BOUNDS,
    most=Shape(
        workers=40, servers=14, worker_cpu=16.0, server_cpu=16.0, worker_memory=64 * GIB, server_memory=32 * GIB
    ),
    quota=ResourceBudget(cpu=120.0, memory=900.0 * GIB),
)


def without_a_rough_look(ask):
    """Cost and samples a second of the front, from a list of all shapes."""
    need = grids.rounded(ask.need, ask.bounds)
    grid = grids.grid(ask.bounds, ask.prices, need)
    fits = pareto.fitting(ask, grid.shapes, grid.memory)
    shapes = grid.shapes if fits is None else Shapes(*(column[fits] for column in grid.shapes))
    whole = pareto.with_memory(ask, *shapes)
    speed = pareto.capped(ask, whole, equations.throughput(ask.coefficients, ask.facts, shapes))
    price = whole.cost(ask.prices)
    order = numpy.lexsort((-speed, price))
    price, speed = price[order], speed[order]
    kept = numpy.append(True, speed[1:] > numpy.maximum.accumulate(speed)[:-1] * (1 + 1e-9))
    return price[kept], speed[kept]


def drawn(random):
    """What any job may be like: no two have anything in common."""
    least = Shape(
        workers=int(random.integers(1, 4)),
        servers=int(random.integers(1, 3)),
        worker_cpu=float(random.uniform(0.5, 2)),
        server_cpu=float(random.uniform(0.5, 2)),
        server_memory=int(random.integers(0, 2)) * 3 * GIB,
    )
    most = replace(
        WIDE.most,
        workers=int(random.integers(5, 40)),
        servers=int(random.integers(3, 14)),
        worker_cpu=float(random.uniform(2, 16)),
    )
    quota = ResourceBudget(
        cpu=float(random.choice([60.0, 200.0, math.inf])), memory=float(random.choice([300 * GIB, math.inf]))
    )
    return FrontQuery(
        coefficients=Coefficients(
            grad=float(random.uniform(0, 1e-3)),
            upd=float(random.uniform(0, 0.05)),
            sync=float(random.uniform(0, 3)),
            emb=float(random.choice([0.0, random.uniform(0, 2e-6)])),
            beta=float(random.uniform(1e-4, 0.02)),
        ),
        facts=replace(FACTS, batch=int(random.integers(64, 4096))),
        bounds=ShapeBounds(least=least, most=most, quota=quota),
        need=MemoryNeed(
            worker=int(random.integers(0, 9 * GIB)),
            server=int(random.integers(0, 2 * GIB)),
            rows=int(random.integers(0, 60 * GIB)),
        ),
        prices=Prices(cpu=float(random.uniform(0.1, 2)), memory=float(random.choice([0.0, random.uniform(0, 0.5)]))),
        pace=(
            float(random.choice([math.inf, random.uniform(50, 5000)])),
            float(random.choice([math.inf, random.uniform(50, 5000)])),
        ),
    )


def test_the_rough_look_leaves_out_nothing_that_is_on_a_front():
    random = numpy.random.default_rng(11)
    asks = [drawn(random) for _ in range(60)]
    for ask, found in zip(asks, pareto.fronts(asks), strict=True):
        price, speed = without_a_rough_look(ask)
        assert len(found) >= 1 and found.how == "exact"
        # each of the one is met by the other: at no more money as fast, but for rounding
        best = found.throughput[numpy.searchsorted(found.cost, price * (1 + 1e-9), side="right") - 1]
        assert (best >= speed * (1 - 1e-9)).all()
        true = speed[numpy.searchsorted(price, found.cost * (1 + 1e-9), side="right") - 1]
        assert (found.throughput <= true * (1 + 1e-9)).all()


def test_jobs_together_have_the_fronts_that_each_has_alone():
    random = numpy.random.default_rng(12)
    asks = [drawn(random) for _ in range(40)]
    for ask, together in zip(asks, pareto.fronts(asks), strict=True):
        alone = pareto.front_of(ask)
        assert all((one == other).all() for one, other in zip(alone.shapes, together.shapes, strict=True))
        assert (alone.throughput == together.throughput).all() and alone.why == together.why
