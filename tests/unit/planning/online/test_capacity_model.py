"""Throughput of a number of workers, from a few measurements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample, fit, learn
from springtide_lab.reproduce.kale import throughput

KALE_A10 = CapacityCurve(kind="sync", coefficients=(0.00035, 2.5726, 0.9824, 0.02786), batch=16384)
"""Fitted by the paper's authors, for their ranking model in step on A10s (Table 1; its order there is another)."""


def mape(curve, seen):
    return float(np.mean([abs(curve(one.workers) - one.throughput) / one.throughput for one in seen]))


@given(
    st.sampled_from(["sync", "async"]),
    st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
    st.floats(1, 1e5),
)
def test_capacity_curve_is_recovered_from_its_own_values(kind, coefficients, batch):
    used = tuple(coefficients if kind == "sync" else coefficients[:3])
    truth = CapacityCurve(kind=kind, coefficients=used, batch=batch)
    seen = [CapacitySample(workers, truth(workers)) for workers in (1, 2, 3, 4, 6, 8, 12, 16)]
    found = fit(kind, seen, batch=batch)
    assert mape(found, seen) < 1e-6
    assert found(24) == pytest.approx(truth(24), rel=1e-3)


def test_capacity_fit_uses_relative_errors():
    chance = np.random.default_rng(3)
    seen = [CapacitySample(w, KALE_A10(w) * chance.normal(1, 0.02)) for w in range(1, 17)]
    errors_by_kind = {kind: mape(fit(kind, seen, batch=16384), seen) for kind in ("sync", "ernest", "optimus")}
    assert errors_by_kind["sync"] < 0.02
    assert errors_by_kind["sync"] <= min(errors_by_kind.values()) + 1e-9


def test_unusable_throughput_measurements_are_refused():
    for seen in ([], [CapacitySample(0, 5.0)], [CapacitySample(2, 0.0)], [CapacitySample(2, float("nan"))]):
        with pytest.raises(errors.BadInput, match="measurements of throughput"):
            fit("sync", seen)
    with pytest.raises(errors.UnknownName):
        fit("linear", [CapacitySample(1, 1.0)])


def test_capacity_is_proportional_with_one_measured_worker_count():
    curve = learn("async", [CapacitySample(4, 400.0), CapacitySample(4, 90.0), CapacitySample(4, 410.0)])
    assert curve(4) == pytest.approx(400) and curve(8) == pytest.approx(800) and curve(1) == pytest.approx(100)
    assert learn("sync", [CapacitySample(4, 400.0)], batch=512)(8) == pytest.approx(800)


def test_capacity_bends_with_two_measured_worker_counts():
    curve = learn("async", [CapacitySample(1, 100.0), CapacitySample(4, 200.0)])
    assert curve(1) == pytest.approx(100, rel=0.02) and curve(4) == pytest.approx(200, rel=0.02)
    assert 200 < curve(16) < 300


def test_nonlinear_capacity_needs_clear_evidence():
    noise = learn("async", [CapacitySample(4, 400.0), CapacitySample(5, 440.0)])
    assert noise(10) > 600  # exactly through both: 550
    clear = learn("async", [CapacitySample(2, 200.0), CapacitySample(10, 520.0)])
    assert clear(10) == pytest.approx(520, rel=0.02) and clear(20) < 750


def test_learned_capacity_models_contention_that_kales_curve_cannot():
    """Throughput that rises, stands and falls: between 8 and 16 workers, of which no more than 8 were seen."""
    truth = {w: 100 * w / (1 + 0.03 * (w - 1) + 0.01 * w * (w - 1)) for w in range(1, 17)}
    seen = [CapacitySample(w, truth[w]) for w in (1, 2, 3, 4, 6, 8)]
    curve, kale = learn("async", seen), fit("async", seen)
    assert curve.peak(32) == 10 == max(truth, key=truth.__getitem__)
    assert curve(12) == pytest.approx(truth[12], rel=0.02) and curve(16) == pytest.approx(truth[16], rel=0.03)
    assert kale(12) > 1.15 * truth[12] and kale.peak(32) == 32


def test_underestimated_worker_count_is_not_extrapolated_to_fewer():
    """Weights of 1 / w² would favour one unseen worker twice as much as the two delayed ones."""
    seen = [CapacitySample(2, 194.0), CapacitySample(3, 300.0), CapacitySample(4, 400.0), CapacitySample(5, 500.0)]
    assert abs(learn("async", seen)(1) - 100) < 0.75 * abs(fit("async", seen)(1) - 100)


def test_small_measurement_errors_do_not_bend_the_curve():
    """Real throughput of one to five workers, which four coefficients predicted 2.5% off."""
    seen = [CapacitySample(w, w * each) for w, each in enumerate((3291, 3280, 3375, 3262, 3320), start=1)]
    found = throughput.left_out("async", seen)
    assert found["learned"].mape < 0.015 and found["learned"].worst < 0.03
    assert found["learned"].mape <= min(found["ernest"].mape, found["optimus-async"].mape)


def test_learned_capacity_predicts_better_when_linear_and_no_worse_otherwise():
    """Over a hundred draws of errors of 2%, each number foretold from the others."""
    off = {truth: {"learned": 0.0, "kale": 0.0} for truth in ("in proportion", "half is shared")}
    for seed in range(100):
        chance = np.random.default_rng(seed)
        for truth, of in off.items():
            shared = 0.5 if truth == "half is shared" else 0.0
            seen = [CapacitySample(w, w / (1 - shared + shared * w) * chance.normal(100, 2)) for w in range(1, 6)]
            found = throughput.left_out("async", seen)
            of["learned"] += found["learned"].mape
            of["kale"] += found["async"].mape
    assert off["in proportion"]["learned"] < 0.85 * off["in proportion"]["kale"]
    assert off["half is shared"]["learned"] < 1.05 * off["half is shared"]["kale"]


@given(st.sampled_from(["sync", "async"]), st.lists(st.floats(0.01, 10), min_size=4, max_size=4))
def test_learned_capacity_is_accurate_with_enough_measurements(kind, coefficients):
    truth = CapacityCurve(kind=kind, coefficients=tuple(coefficients[: 4 if kind == "sync" else 3]))
    seen = [CapacitySample(workers, truth(workers)) for workers in (1, 2, 4, 8, 16)]
    assert mape(learn(kind, seen), seen) < 0.03


def test_only_known_training_modes_are_learned():
    with pytest.raises(errors.UnknownName, match="way of training"):
        learn("ernest", [CapacitySample(1, 1.0)])
