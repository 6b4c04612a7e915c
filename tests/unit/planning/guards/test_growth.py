"""Row growth is extrapolated by the law that fits: steady, slowing down, or saturating."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from springtide.planning.guards import memory
from springtide.planning.guards.memory import RowCount

points = some.lists(some.tuples(some.floats(1, 1e6), some.floats(0, 1e6)), min_size=1, max_size=20).map(
    lambda pairs: [
        RowCount(float(sum(p[0] for p in pairs[: i + 1])), sum(p[1] for p in pairs[: i + 1])) for i in range(len(pairs))
    ]
)


def row_counts(rows_after, upto, count=24):
    return [RowCount(upto * (i + 1) / count, rows_after(upto * (i + 1) / count)) for i in range(count)]


@pytest.mark.parametrize(
    ("law", "rows_after"),
    [
        ("steady", lambda n: 500 + 0.3 * n),
        ("heaps", lambda n: 40 * n**0.6),
        ("running out", lambda n: 90_000 * (1 - math.exp(-n / 60_000))),
    ],
)
def test_growth_law_behind_the_points_is_found_and_extrapolated(law, rows_after):
    fitted = memory.fit(row_counts(rows_after, upto=100_000))

    assert fitted.law == law
    assert fitted.rows(300_000) == pytest.approx(rows_after(300_000), rel=0.03)
    assert fitted.cautious(300_000) >= rows_after(300_000) * 0.99


def test_growth_is_assumed_steady_with_few_points():
    fitted = memory.fit(row_counts(lambda n: 40 * n**0.6, upto=100_000, count=3))

    assert fitted.law == "steady" and fitted.rows(300_000) > 40 * 300_000**0.6


@given(points, some.floats(1, 10))
def test_forecast_rows_never_decrease_and_cautious_forecast_is_never_lower(points, times):
    fitted = memory.fit(points)
    later = points[-1].samples * times
    rows = fitted.rows(later)

    assert rows >= points[-1].rows
    assert fitted.cautious(later) >= rows
    assert fitted.rows(later * 2) >= rows * 0.999999
