import pytest

from springtide_lab.bench.core import growth


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power):
    sizes = [1, 2, 4, 8, 16]
    curve = growth.Curve(what="size", sizes=sizes, seconds=[0.003 * size**power for size in sizes])
    assert curve.exponent == pytest.approx(power)


def test_fixed_costs_at_small_sizes_do_not_hide_a_quadratic_tail():
    sizes = [1, 2, 4, 8, 16, 32]
    curve = growth.Curve(what="size", sizes=sizes, seconds=[1 + 0.1 * size**2 for size in sizes])
    assert curve.exponent > 1.5


def test_a_slope_needs_two_positive_points():
    with pytest.raises(ValueError, match="two positive points"):
        growth.slope([1], [1])
    with pytest.raises(ValueError, match="two positive points"):
        growth.slope([1, 2], [1, 0])


def test_the_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    curve = growth.Curve(what="tables", sizes=[1, 2, 4], seconds=[0.1, 0.2, 0.4])
    growth.plot([curve, curve], tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
