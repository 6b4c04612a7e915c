"""Options within capacity: the greedy and the exact solver."""

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
def test_allotment_stays_within_capacity_and_the_exact_one_is_optimal(case):
    options, limits = case
    best = best_by_hand(options, limits)
    found = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=4_000)
    if found is None:  # the cheapest do not fit together, so none are given
        assert not limits.fits(*options.used(np.zeros(len(options.scale), dtype=np.int64)))
        return
    greedy, _ = knapsack.allot(options, limits, exact_seconds=0.0, exact_options=4_000)
    for taken in (found[0], greedy):
        assert limits.fits(*options.used(taken))
    assert options.total(found[0]) == pytest.approx(best, rel=1e-4, abs=1e-6)
    assert options.total(greedy) <= options.total(found[0]) + 1e-9


def test_greedy_allotment_reaches_99_percent_and_the_final_choice_the_optimum():
    generator, greedy, chosen = np.random.default_rng(7), [], []
    for _ in range(20):
        options, limits = plan.instance(generator)
        best = options.total(knapsack.solve(options, limits, seconds=10.0))
        for shares, seconds in ((greedy, 0.0), (chosen, 10.0)):
            taken, _ = knapsack.allot(options, limits, exact_seconds=seconds, exact_options=4_000)
            shares.append(options.total(taken) / best)
    assert np.mean(greedy) >= 0.99
    assert np.mean(chosen) >= 0.999 and min(chosen) >= 0.99


def test_greedy_allotment_is_used_when_the_exact_solver_times_out(monkeypatch):
    options, limits = plan.instance(np.random.default_rng(0))
    exact, by = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=4_000)
    late, _ = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=0)  # too many to be tried
    assert by == "exact" and options.total(exact) > options.total(late)
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(status=1, x=None))  # its time is over
    taken, by = knapsack.allot(options, limits, exact_seconds=10.0, exact_options=4_000)
    assert by == "greedy" and taken.tolist() == late.tolist()


def test_ample_capacity_gives_each_job_its_best_option():
    rows = [(np.array([0.0, 5.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]))] * 3
    options, limits = plan.options_of(rows, np.zeros(3)), ResourceBudget(cpu=6, memory=6)
    taken, _ = knapsack.allot(options, limits, exact_seconds=0.5, exact_options=4_000)
    assert taken.tolist() == [1, 1, 1]


def test_job_with_a_dominant_weight_is_served_first():
    rows = [(np.array([0.0, 5.0]), np.array([1.0, 3.0]), np.array([1.0, 3.0]), np.zeros(2))] * 3
    options = plan.options_of(rows, np.array([-900.0, 0.0, -400.0]))
    assert list(knapsack.greedy(options, ResourceBudget(cpu=5, memory=0))) == [0, 1, 0]
    assert list(knapsack.greedy(options, ResourceBudget(cpu=7, memory=0))) == [0, 1, 1]
