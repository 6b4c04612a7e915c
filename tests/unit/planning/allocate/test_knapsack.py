"""Options within capacity: greedy, exact, and what lies between them."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.domain.core.shape import ResourceBudget
from springtide.planning.allocate import knapsack
from springtide_lab.bench.control import plan


def best_by_hand(options, limits):
    counts = [int(np.isfinite(row).sum()) for row in options.cost]
    best = None
    for taken in itertools.product(*(range(count) for count in counts)):
        chosen = np.array(taken)
        if limits.fits(*options.used(chosen)):
            value = options.total(chosen)
            best = value if best is None else max(best, value)
    return best


@st.composite
def instances(draw):
    rows, scale = [], []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 4))
        numbers = st.lists(st.integers(0, 12), min_size=count, max_size=count)
        cost, cpu, memory = (np.array(draw(numbers), dtype=float) for _ in range(3))
        value = np.array([0, *draw(numbers)][:count], dtype=float)
        order = np.argsort(cost, kind="stable")
        rows.append((value, cost[order], cpu[order], memory[order]))
        scale.append(draw(st.sampled_from([-3.0, 0.0, 0.7])))
    limits = ResourceBudget(cpu=draw(st.integers(0, 40)), memory=draw(st.integers(0, 40)))
    return plan.options_of(rows, np.array(scale)), limits


@given(instances())
@settings(max_examples=40, deadline=None)
def test_no_allotment_is_over_capacity_nor_above_its_bound_and_the_exact_one_is_the_best(case):
    options, limits = case
    best = best_by_hand(options, limits)
    found = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=4_000)
    if found is None:  # the cheapest do not fit together, so none are given
        assert not limits.fits(*options.used(np.zeros(len(options.scale), dtype=np.int64)))
        return
    assert limits.fits(*options.used(found.taken))
    assert found.value == pytest.approx(best, abs=1e-6)
    assert found.greedy_value <= found.value + 1e-9
    assert found.value == pytest.approx(options.total(found.taken))
    greedy = knapsack.allot(options, limits, exact_seconds=0.0, exact_options=4_000)
    assert limits.fits(*options.used(greedy.taken))
    assert greedy.bound >= best - 1e-6 * max(1.0, best)


def test_the_greedy_reaches_nearly_all_of_the_optimum_and_the_choice_all_of_it():
    generator = np.random.default_rng(7)
    found = [knapsack.allot(*plan.instance(generator), exact_seconds=10.0, exact_options=4_000) for _ in range(20)]
    assert np.mean([1.0 - one.gap for one in found]) >= 0.99
    chosen = [one.value / one.bound for one in found]
    assert np.mean(chosen) >= 0.999 and min(chosen) >= 0.99


def test_an_exact_answer_that_does_not_come_in_time_leaves_the_greedy_one_and_what_it_may_have_missed(monkeypatch):
    options, limits = plan.instance(np.random.default_rng(0))
    known = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=4_000)
    assert known.by == "exact" and known.gap > 0
    late = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=0)  # too many to be tried
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(status=1, x=None))  # its time is over
    for found in (late, knapsack.allot(options, limits, exact_seconds=10.0, exact_options=4_000)):
        assert found.by == "greedy" and found.value == known.greedy_value
        assert found.bound >= known.value and found.gap >= known.gap


def test_where_there_is_enough_for_all_each_has_its_best():
    rows = [(np.array([0.0, 5.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]))] * 3
    found = knapsack.allot(
        plan.options_of(rows, np.zeros(3)), ResourceBudget(cpu=6, memory=6), exact_seconds=0.5, exact_options=4_000
    )
    assert list(found.taken) == [1, 1, 1]
    assert found.gap == 0.0


def test_a_job_that_outweighs_the_others_by_far_is_served_first_and_the_rest_share_what_is_left():
    rows = [(np.array([0.0, 5.0]), np.array([1.0, 3.0]), np.array([1.0, 3.0]), np.zeros(2))] * 3
    options = plan.options_of(rows, np.array([-900.0, 0.0, -400.0]))
    assert list(knapsack.greedy(options, ResourceBudget(cpu=5, memory=0))) == [0, 1, 0]
    assert list(knapsack.greedy(options, ResourceBudget(cpu=7, memory=0))) == [0, 1, 1]


def test_thousands_of_jobs_are_shared_out_with_a_bound_on_what_was_missed():
    generator = np.random.default_rng(3)
    rows = []
    for _ in range(2_000):
        cpu = np.cumsum(generator.uniform(1, 8, size=30))
        speed = np.sort(cpu / (cpu + generator.uniform(5, 100)))
        rows.append((speed - speed[0], cpu, cpu, cpu * 2))
    options = plan.options_of(rows, np.zeros(2_000))
    limits = ResourceBudget(cpu=60_000.0, memory=200_000.0)
    found = knapsack.allot(options, limits, exact_seconds=0.0, exact_options=4_000)
    assert limits.fits(*options.used(found.taken))
    assert found.gap < 0.002
