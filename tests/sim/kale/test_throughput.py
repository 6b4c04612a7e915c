"""Kale's Table 1 and Fig. 7 from made truth."""

import pytest

from springtide_lab.reproduce.kale import throughput
from springtide_lab.reproduce.kale.throughput import TABLE_1, measure, noisy, rows, uneven


def test_ours_is_within_the_papers_error_on_its_own_curves_and_the_others_are_not():
    found = {(one.figure, one.what): one for one in rows(range(3))}
    ours = found["Fig. 7", "MAPE, the paper's curves, 2% noise"]
    assert ours.met and ours.seeds == 3
    assert found["Fig. 7", "Ernest's MAPE, the same"].ours > 2 * ours.ours
    assert found["3.4.1", "A10 in step, F(10), samples/s"].ours == pytest.approx(30_005, abs=1)
    assert found["3.4.1", "workers for 30,000 samples/s"].ours == 10
    assert found["Table 1", "A10, sync: of 1/w, s a batch"].ours == pytest.approx(2.5726, rel=0.05)


def test_a_seed_repeats_itself_and_another_does_not():
    assert measure(noisy, 1) == measure(noisy, 1) != measure(noisy, 2)


def test_where_the_slowest_counts_and_servers_are_rounded_up_every_model_is_further_off():
    for whose in ("ours", "Ernest", "Optimus"):
        assert measure(uneven, 1).mean(whose, "mape") > measure(noisy, 1).mean(whose, "mape")


def test_without_noise_the_papers_coefficients_come_back(monkeypatch):
    monkeypatch.setattr(throughput, "NOISE", 0.0)
    found = measure(noisy, 1).coefficients
    for name, curve in TABLE_1.items():
        assert found[name] == pytest.approx(curve.coefficients, rel=1e-3, abs=1e-6)
