"""Kale's Table 1 and Fig. 7 from generated measurements."""

import pytest

from springtide_lab.reproduce.kale import throughput
from springtide_lab.reproduce.kale.throughput import TABLE_1, measure, noisy, rows, uneven


def test_our_capacity_model_is_within_the_papers_error_on_its_own_curves():
    found = {(one.figure, one.what): one for one in rows(range(3))}
    ours = found["Fig. 7", "MAPE, the paper's curves, 2% noise"]
    assert ours.met and ours.seeds == 3
    assert found["Fig. 7", "Ernest's MAPE, the same"].ours > 2 * ours.ours
    assert found["3.4.1", "A10 in step, F(10), samples/s"].ours == pytest.approx(30_005, abs=1)
    assert found["3.4.1", "workers for 30,000 samples/s"].ours == 10
    assert found["Table 1", "A10, sync: of 1/w, s a batch"].ours == pytest.approx(2.5726, rel=0.05)


def test_same_seed_repeats_and_another_differs():
    assert measure(noisy, 1) == measure(noisy, 1) != measure(noisy, 2)


def test_uneven_workers_and_rounding_increase_every_models_error():
    for whose in ("ours", "Ernest", "Optimus"):
        assert measure(uneven, 1).mean(whose, "mape") > measure(noisy, 1).mean(whose, "mape")


def test_without_noise_the_papers_coefficients_are_recovered(monkeypatch):
    monkeypatch.setattr(throughput, "NOISE", 0.0)
    found = measure(noisy, 1).coefficients
    for name, curve in TABLE_1.items():
        assert found[name] == pytest.approx(curve.coefficients, rel=1e-3, abs=1e-6)
