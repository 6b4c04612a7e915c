"""Results of `bench reduction`: cost per unit, and bit-identical models."""

import pytest

from springtide_lab.bench.core import harness
from springtide_lab.bench.train import reduction

ROUNDS = harness.Rounds(
    figures={"rank-order": [100.0, 120.0], "batch-order:1": [10.0, 6.0], "batch-order:8": [50.0, 60.0]}
)


def test_reduction_costs_are_per_round_ratios_and_the_goal_is_one_model():
    models = {"rank-order": {"a", "b"}, "batch-order:1": {"c"}, "batch-order:8": {"d"}}
    result = reduction.judge(ROUNDS, models)
    assert result.details == pytest.approx({"batch_order_1": 0.075, "batch_order_8": 0.5})
    assert [row[3] for row in result.rows] == ["no", "yes", "yes"]
    assert result.goals[0].id == "same_to_the_bit" and result.goals[0].met


def test_reduction_order_with_two_models_misses_the_goal():
    models = {"rank-order": {"a"}, "batch-order:1": {"c", "e"}, "batch-order:8": {"d"}}
    goal = reduction.judge(ROUNDS, models).goals[0]
    assert goal.value == 0.5 and not goal.met
