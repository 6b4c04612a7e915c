"""The Pareto front equals that of brute force."""

import itertools
import math
from dataclasses import replace

import numpy
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from springtide.domain.core.shape import GIB, MemoryNeed, Prices, ResourceBudget, Shape, ShapeBounds, cost
from springtide.planning.candidates import pareto
from springtide.planning.candidates.pareto import FrontQuery
from springtide.planning.perf_model import equations, measurements
from springtide.planning.perf_model.equations import Coefficients, Shapes
from springtide.planning.perf_model.measurements import CoreSpeed
from springtide.planning.perf_model.shape_columns import columns
from tests.unit.planning.planted import FACTS, TRUE

LEAST = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
MOST = Shape(workers=6, servers=4, worker_cpu=4.0, server_cpu=3.0, worker_memory=8 * GIB, server_memory=16 * GIB)
BOUNDS = ShapeBounds(least=LEAST, most=MOST)


def front_of(**given):
    return pareto.front(FrontQuery(**({"coefficients": TRUE, "facts": FACTS, "bounds": BOUNDS} | given)))


def every_shape(ask):
    """All shapes within bounds, each with the memory it needs, one by one."""
    bounds, need = ask.bounds, pareto.rounded(ask.need, ask.bounds)
    for w, p, a, b in itertools.product(bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus):
        server_memory = max(need.of_server(p), bounds.least.server_memory)
        sizes = {"worker_cpu": a, "server_cpu": b, "worker_memory": need.worker, "server_memory": server_memory}
        shape = Shape(workers=w, servers=p, **sizes, worker_gpu=bounds.least.worker_gpu)
        if bounds.most.worker_memory == 0 or bounds.holds(shape):
            yield shape


def brute_force(ask):
    """Points (cost, throughput) that no other dominates."""
    points = set()
    for shape in every_shape(ask):
        worth = min(ask.pace[0] * shape.workers * shape.worker_cpu, ask.pace[1] * shape.servers * shape.server_cpu)
        speed = min(equations.throughput(ask.coefficients, ask.facts, shape), worth)
        points.add((round(cost(shape, ask.prices), 5), round(speed, 5)))  # servers' shares of rows are rounded to bytes
    front, fastest = [], -math.inf
    for price, speed in sorted(points, key=lambda point: (point[0], -point[1])):
        if speed > fastest:
            front.append((price, speed))
            fastest = speed
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
    prices=st.builds(Prices, cpu=st.floats(0.1, 2.0), memory=st.floats(0.0, 0.5), gpu=st.floats(0.0, 20.0)),
    need=st.builds(
        MemoryNeed,
        worker=st.integers(0, 6).map(lambda g: g * GIB),
        server=st.integers(0, 3).map(lambda g: g * GIB),
        rows=st.integers(0, 40).map(lambda g: g * GIB),
    ),
    quota=st.sampled_from([math.inf, 12.0, 20.0]),
    memory=st.sampled_from([math.inf, 40.0 * GIB]),
    least_server=st.sampled_from([0, 4 * GIB]),
    pace=st.sampled_from([CoreSpeed(), CoreSpeed(900.0), CoreSpeed(math.inf, 1500.0), CoreSpeed(3000.0, 4000.0)]),
    gpu=st.sampled_from([(0.0, math.inf), (0.0, 0), (1.0, 3), (0.5, 2), (0.4, math.inf)]),
)
def test_pareto_front_matches_brute_force(coefficients, prices, need, quota, memory, least_server, pace, gpu):
    bounds = ShapeBounds(
        least=replace(LEAST, server_memory=least_server, worker_gpu=gpu[0]),
        most=replace(MOST, worker_gpu=gpu[0]),
        quota=ResourceBudget(cpu=quota, memory=memory, gpu=gpu[1]),
    )
    ask = FrontQuery(coefficients=coefficients, facts=FACTS, bounds=bounds, need=need, prices=prices, pace=pace)
    found = pareto.front(ask)
    mine = list(zip(found.cost.tolist(), found.throughput.tolist(), strict=True))
    wanted = brute_force(ask)
    for one, other in ((mine, wanted), (wanted, mine)):  # each point of one is met or beaten by a point of the other
        for price, gain in one:
            assert any(c <= price + 1e-4 and g >= gain - 1e-4 for c, g in other), (price, gain)
    assert (numpy.diff(found.cost) > 0).all() and (numpy.diff(found.throughput) > 0).all()
    for index in range(len(found)):
        assert bounds.holds(found.shapes.shape(index))
        assert cost(found.shapes.shape(index), prices) == pytest.approx(float(found.cost[index]))


def test_pareto_front_rises_in_cost_and_throughput():
    found = front_of()
    assert (numpy.diff(found.cost) > 0).all() and (numpy.diff(found.throughput) > 0).all()
    assert found.why == f"{len(found)} of {len(pareto.sides(BOUNDS)):,} shapes are worth having"


def test_unsatisfiable_memory_need_gives_an_empty_front_with_a_reason():
    found = front_of(need=MemoryNeed(rows=65 * GIB))
    assert len(found) == 0 and "has enough memory" in found.why
    assert len(front_of(need=MemoryNeed(worker=9 * GIB))) == 0


def test_rows_too_large_for_one_server_need_more_servers():
    found = front_of(need=MemoryNeed(rows=40 * GIB))
    assert found.shapes.servers.min() == 3


def test_overloaded_servers_get_more_cores():
    bounds = replace(BOUNDS, quota=ResourceBudget(cpu=12.0, memory=math.inf))
    free = front_of(bounds=bounds)
    before = free.shapes.shape(len(free) - 1)
    worth = 0.5 * float(free.throughput[-1]) / (before.servers * before.server_cpu)
    found = front_of(bounds=bounds, pace=CoreSpeed(math.inf, worth))
    after = found.shapes.shape(len(found) - 1)
    assert after.servers * after.server_cpu > before.servers * before.server_cpu
    assert found.throughput[-1] > 0.5 * free.throughput[-1]


def test_job_with_zero_cost_has_only_the_cheapest_candidate():
    nothing = Coefficients(grad=0.0, upd=0.0, sync=0.0, emb=0.0, beta=0.0)
    found = front_of(coefficients=nothing)
    assert [found.shapes.shape(0)] == [LEAST] and len(found) == 1


def test_thinned_front_keeps_its_ends():
    whole = front_of()
    thinned = whole.thin(5)
    assert 2 <= len(thinned) <= 5 < len(whole)
    assert (thinned.cost[0], thinned.throughput[-1]) == (whole.cost[0], whole.throughput[-1])
    assert whole.thin(1000) is whole


def test_candidate_space_too_large_to_list_is_coarsened(monkeypatch):
    monkeypatch.setattr(pareto, "MOST", 200)
    assert len(front_of()) > 3


WIDE = replace(
    BOUNDS,
    most=Shape(
        workers=40, servers=14, worker_cpu=16.0, server_cpu=16.0, worker_memory=64 * GIB, server_memory=32 * GIB
    ),
    quota=ResourceBudget(cpu=120.0, memory=900.0 * GIB),
)


def front_by_all_pairs(ask):
    """Cost and samples a second of the front, from a list of all shapes."""
    whole = columns(every_shape(ask))
    speed = equations.throughput(ask.coefficients, ask.facts, Shapes(*whole[:4]))
    speed = numpy.minimum(speed, measurements.ceiling(ask.pace, whole))
    price = whole.cost(ask.prices)
    order = numpy.lexsort((-speed, price))
    price, speed = price[order], speed[order]
    kept = numpy.append(True, speed[1:] > numpy.maximum.accumulate(speed)[:-1] * (1 + 1e-9))
    return price[kept], speed[kept]


def draw_request(random):
    """Draw a random request; no two have anything in common."""
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
        pace=CoreSpeed(
            float(random.choice([math.inf, random.uniform(50, 5000)])),
            float(random.choice([math.inf, random.uniform(50, 5000)])),
        ),
    )


def test_pareto_front_matches_a_search_over_all_pairs():
    random = numpy.random.default_rng(11)
    asks = [draw_request(random) for _ in range(25)]
    for ask in asks:
        found = pareto.front(ask)
        price, speed = front_by_all_pairs(ask)
        assert len(found) >= 1
        # each of the one is met by the other: at no more money as fast, but for rounding
        best = found.throughput[numpy.searchsorted(found.cost, price * (1 + 1e-9), side="right") - 1]
        assert (best >= speed * (1 - 1e-9)).all()
        true = speed[numpy.searchsorted(price, found.cost * (1 + 1e-9), side="right") - 1]
        assert (found.throughput <= true * (1 + 1e-9)).all()
