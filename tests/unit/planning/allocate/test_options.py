"""Options of a job are evaluated the same alone and in a table of many."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.domain.core.shape import Shape
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.allocate import choose
from springtide.planning.allocate.choose import Bid
from springtide.planning.perf_model.shape_columns import columns

points = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=12)


def worthwhile_option(cost, speed, least_marginal):
    """Along the upper hull, point by point: one row at a time."""
    order = np.lexsort((-speed, cost))
    hull = []
    for x, y, which in zip(cost[order], speed[order], order, strict=True):
        if hull and not y > hull[-1][1]:
            continue
        while hull:
            x0, y0 = hull[-2][:2] if len(hull) > 1 else (0.0, 0.0)
            x1, y1, _ = hull[-1]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y, which))
    at = 0
    while at + 1 < len(hull):
        (x, y, _), (dearer, faster, _) = hull[at], hull[at + 1]
        if (faster - y) * x < least_marginal * y * (dearer - x):
            break
        at += 1
    return hull[at][2]


def test_worthwhile_options_end_where_the_marginal_gain_is_too_small():
    cost = np.array([[1.0, 2.0, 4.0, 8.0, 16.0]])
    speed = np.array([[10.0, 19.0, 30.0, 31.0, 31.1]])
    assert [int(choose.worth_having(cost, speed, least)[0]) for least in (0.0, 0.01, 0.5)] == [4, 3, 2]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(points, min_size=1, max_size=6), least_marginal=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
def test_vectorized_worthwhile_options_match_each_row_alone(rows, least_marginal):
    width = max(map(len, rows))
    cost, speed = np.full((len(rows), width), np.inf), np.full((len(rows), width), -np.inf)
    for at, row in enumerate(rows):
        cost[at, : len(row)], speed[at, : len(row)] = np.array(row, dtype=float).T
    found = choose.worth_having(cost, speed, least_marginal)
    for at, row in enumerate(rows):
        alone = worthwhile_option(*np.array(row, dtype=float).T, least_marginal)
        mine = int(found[at])
        assert (cost[at, mine], speed[at, mine]) == (cost[at, alone], speed[at, alone])


def bid(name, drawn):
    now = Shape(workers=int(drawn.integers(1, 8)), servers=int(drawn.integers(1, 4)), worker_cpu=2.0, server_cpu=2.0)
    count = int(drawn.integers(1, 20))
    shapes = columns(
        Shape(workers=int(w), servers=int(p), worker_cpu=float(c), server_cpu=2.0)
        for w, p, c in drawn.uniform((1, 1, 1), (30, 9, 4), (count, 3))
    )
    here = float(drawn.uniform(10, 1000))
    return Bid(
        job=name,
        now=now,
        throughput_now=here,
        shapes=shapes,
        throughput=drawn.uniform(10, 3000, count),
        samples_left=float(drawn.uniform(1e3, 1e6)),
    )


def test_job_is_evaluated_the_same_in_a_table_of_many():
    drawn, config = np.random.default_rng(5), PlanningConfig()
    bids = [bid(f"job-{number}", drawn) for number in range(40)]
    together = choose.considered(bids, config)
    for at, one in enumerate(bids):
        alone, count = choose.considered([one], config), int(together.there[at].sum())
        assert alone.there.all() and alone.cost.shape == (1, count) and alone.stays[0] == together.stays[at]
        for mine, other in (
            *zip(alone.shapes, together.shapes, strict=True),
            (alone.cost, together.cost),
            (alone.effective, together.effective),
        ):
            assert (mine[0] == other[at, :count]).all()
        assert (np.diff(alone.cost[0]) >= 0).all()
