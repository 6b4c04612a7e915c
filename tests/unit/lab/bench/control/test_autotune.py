"""Shapes that `bench autotune` tries, and its judgement."""

import itertools

from springtide.domain.core.shape import Shape
from springtide_lab.bench.control import autotune
from springtide_lab.bench.control.autotune import Alone
from springtide_lab.bench.core import harness


def grid():
    return [shape for some in autotune.tried(autotune.FULL.bounds) for shape in some]


def test_only_shapes_that_use_the_whole_budget_are_tried():
    bounds, step = autotune.FULL.bounds, autotune.FULL.bounds.cpu_step
    tried = set(grid())
    assert {(one.workers, one.servers) for one in tried} == set(itertools.product((1, 2, 3), (1, 2)))
    every = itertools.product(bounds.workers, bounds.servers, bounds.worker_cpus, bounds.server_cpus)
    for workers, servers, worker_cpu, server_cpu in every:
        shape = Shape(workers=workers, servers=servers, worker_cpu=worker_cpu, server_cpu=server_cpu)
        if not bounds.quota.holds(shape):
            assert shape not in tried
        elif shape not in tried:  # then one that is nowhere smaller fits too
            larger = [(worker_cpu + step, server_cpu), (worker_cpu, server_cpu + step)]
            assert any(
                max(more) < 1.0 + step / 2 and workers * more[0] + servers * more[1] <= bounds.quota.cpu * (1 + 1e-9)
                for more in larger
            ), shape


def test_tried_shapes_are_within_the_loops_bounds():
    bounds = autotune.FULL.bounds
    assert all(bounds.holds(shape) for shape in grid())
    assert max(shape.cpu for shape in grid()) <= 1.6 * (1 + 1e-9)


def judge_rounds(auto, best, *, settled=True):
    shapes = grid()
    alone = Alone(shape=shapes[0], settled=settled, seconds=40.0, changes=("2 workers: faster",))
    rounds = harness.Rounds(figures={"auto": auto, "best": best})
    return autotune.judge(autotune.FULL, {one: 100.0 + at for at, one in enumerate(shapes)}, alone, shapes[-1], rounds)


def test_ratio_of_neighbouring_rounds_has_an_interval():
    told = judge_rounds([90.0, 95.0, 100.0, 85.0], [100.0] * 4)
    (goal,) = told.goals
    assert goal.id == "vs_best" and goal.value == 0.925 and goal.met
    assert goal.spread == (0.8875, 0.9625)
    assert "change: 2 workers: faster" in told.notes


def test_slow_or_unsettled_loop_misses_its_goal():
    (goal,) = judge_rounds([80.0] * 4, [100.0] * 4).goals
    assert not goal.met
    (goal,) = judge_rounds([95.0] * 4, [100.0] * 4, settled=False).goals
    assert goal.value is None and not goal.met and goal.why == "the loop had not settled after 40 s"
