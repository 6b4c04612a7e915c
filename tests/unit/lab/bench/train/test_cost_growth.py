"""The exponents of `bench cost-growth`."""

import pytest

from springtide_lab.bench.train import cost_growth


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponent_of_a_power_law_is_found(power):
    sizes = [1, 2, 4, 8, 16]
    assert cost_growth.exponent(sizes, [0.003 * size**power for size in sizes]) == pytest.approx(power)


def test_fixed_costs_at_small_sizes_do_not_hide_a_quadratic_tail():
    sizes = [1, 2, 4, 8, 16, 32]
    assert cost_growth.exponent(sizes, [1 + 0.1 * size**2 for size in sizes]) > 1.5
