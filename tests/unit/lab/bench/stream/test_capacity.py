"""Results of `bench capacity` for jobs with known capacity."""

import contextlib
import itertools
import types

import pytest

from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample
from springtide_lab.bench.stream import capacity

TRUE = CapacityCurve(kind="async", coefficients=(3e-4, 2e-5, 2e-5))


def measured(numbers, truth=TRUE, rounds=3):
    return [[CapacitySample(workers, truth(workers)) for workers in numbers]] * rounds


def test_only_our_model_predicts_a_job_of_its_equations_exactly():
    told = capacity.judge({"async": measured(capacity.FULL["async"]), "bsp": measured(capacity.FULL["bsp"])})
    pace, step = told.goals
    assert (pace.id, step.id) == ("capacity_mape_async", "capacity_mape_bsp")
    assert pace.met and pace.value < 0.02
    off = {(row[0], row[1]): row[2] for row in told.rows}
    assert off["async, servers = workers", "Kale"] < off["async, servers = workers", "Ernest"]
    assert [len(one) for one in told.details["async"]] == [5, 5, 5] and told.rounds == 3


def test_too_few_shapes_give_no_figure():
    (goal,) = capacity.judge({"async": measured(capacity.QUICK["async"], rounds=1)}).goals
    assert goal.value is None and not goal.met and goal.why == "too few shapes"


def test_shape_delayed_in_one_round_only_widens_the_interval():
    fine = measured(capacity.FULL["async"])[0]
    held_up = [one._replace(throughput=one.throughput / 2) if one.workers == 4 else one for one in fine]
    assert not capacity.judge({"async": [held_up] * 3}).goals[0].met
    once = capacity.judge({"async": [fine, held_up, fine]})
    (goal,) = once.goals
    assert goal.met and goal.spread[0] <= goal.value < capacity.TARGET < goal.spread[1]
    assert ("async, single windows", "their median", pytest.approx(0.5 / 15), 0.5) in once.rows


def test_identical_rounds_have_no_interval():
    (goal,) = capacity.judge({"bsp": measured(capacity.FULL["bsp"])}).goals
    assert goal.spread == (goal.value, goal.value)


@pytest.mark.parametrize(
    ("budget_s", "takes_s", "rounds"), [(100, 30, 3), (100, 24, 4), (100, 50, 3), (1e9, 1, capacity.MOST_ROUNDS)]
)
def test_number_of_rounds_fits_the_time_and_is_at_least_three(budget_s, takes_s, rounds):
    now = itertools.count(0, takes_s)
    taken = capacity.within(itertools.count(), budget_s, least=3, label="", clock=lambda: next(now))
    assert taken == list(range(rounds))


def test_rounds_alternate_direction_within_one_job(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(capacity, "QuotaJob", lambda *_, **__: contextlib.nullcontext(types.SimpleNamespace(trains=id)))
    monkeypatch.setattr(capacity, "_seen", lambda _, shape, __: asked.append(shape.workers) or shape.workers)
    with contextlib.closing(capacity.one_job(tmp_path, "async", [1, 2], 1.0)) as rounds:
        assert [next(rounds), next(rounds)] == [[1, 2], [2, 1]] and asked == [1, 2, 2, 1]


@pytest.mark.parametrize("sync", ["async", "bsp"])
def test_measured_shapes_fit_two_cores(sync):
    assert max(capacity.FULL[sync]) * (capacity.WORKER_CPU + capacity.SERVER_CPU) <= 1.5
