"""What `bench capacity` says of jobs whose truth is known."""

import pytest

from springtide.bench import capacity
from springtide.planning.online.shapes import SeenShape, Surface

TRUE = Surface(kind="async", coefficients=(3e-4, 2e-5, 0.0, 2e-5))


def measured(numbers, truth=TRUE):
    return [SeenShape(workers, servers, truth(workers, servers)) for workers, servers in numbers]


def test_a_job_that_keeps_to_the_equations_is_foretold_exactly_by_ours_alone():
    told = capacity.judge({"async": measured(capacity.FULL["async"]), "bsp": measured(capacity.FULL["bsp"])})
    pace, step = told.goals
    assert (pace.id, step.id) == ("capacity_mape_async", "capacity_mape_bsp")
    assert pace.met and pace.value < 0.02
    off = {(row[0], row[1]): row[2] for row in told.rows}
    assert off["async, any servers", "Kale"] < 1e-6 < off["async, any servers", "Optimus"]
    assert off["async, any servers", "ours"] < 0.2
    assert off["async, servers = workers", "Kale"] < off["async, servers = workers", "Ernest"]
    assert len(told.details["async"]) == 8


def test_too_few_shapes_are_no_figure():
    (goal,) = capacity.judge({"async": measured(capacity.QUICK["async"])}).goals
    assert goal.value is None and not goal.met and goal.why == "too few shapes"


def test_a_shape_that_was_held_up_shows():
    seen = [
        one._replace(throughput=one.throughput / 2) if one[:2] == (4, 4) else one
        for one in measured(capacity.FULL["async"])
    ]
    assert not capacity.judge({"async": seen}).goals[0].met


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_shapes_that_are_measured_have_room_on_two_cores(sync):
    for workers, servers in capacity.FULL[sync]:
        assert workers * capacity.WORKER_CPU + servers * capacity.SERVER_CPU <= 1.5
