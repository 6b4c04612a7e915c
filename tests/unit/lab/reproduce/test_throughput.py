"""Accuracy of throughput models on unseen measurements."""

import pytest

from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample
from springtide_lab.reproduce.kale.throughput import (
    judge,
    judged,
    left_out,
)

TRUTH = CapacityCurve(kind="async", coefficients=(0.000566, 0.000224, 0.0))


def measured(*numbers):
    return [CapacitySample(workers, TRUTH(workers)) for workers in numbers]


def test_error_measures_match_their_definitions():
    off = judged([90, 220], [100, 200])
    assert off.mape == pytest.approx(0.1) and off.mae == 15 and off.rmse == pytest.approx(250**0.5)
    assert off.worst == pytest.approx(0.1)


def test_model_of_the_true_form_predicts_best():
    found = judge("async", measured(1, 2, 4, 8, 16), measured(3, 6, 12, 24))
    assert found["async"].mape < 1e-6
    assert min(found["ernest"].mape, found["optimus-async"].mape) > 0.01


def test_few_measurements_are_predicted_by_leave_one_out():
    found = left_out("async", measured(1, 2, 3, 4, 5))
    assert set(found) == {"learned", "async", "ernest", "optimus-async"} and found["async"].worst < 1e-6
