"""Figures as Prometheus reads them."""

import math

import pytest

from springtide import errors
from springtide.telemetry.prometheus import Family, one, text


def test_each_figure_has_its_help_its_kind_and_its_labels():
    lag = Family(name="lag_seconds", help="How long.", values=(({"partition": "3"}, 1.5), ({}, 2.0)))
    assert text([lag], {"job": "a"}) == (
        "# HELP lag_seconds How long.\n# TYPE lag_seconds gauge\n"
        'lag_seconds{job="a",partition="3"} 1.5\nlag_seconds{job="a"} 2\n'
    )


def test_what_is_not_known_is_not_told():
    assert one("x", "X.", None) == [] and text(one("x_total", "X.", 3, kind="counter"), {}).endswith("\nx_total 3\n")


def test_words_with_quotes_and_lines_stay_in_their_place():
    made = text([Family(name="x", help='two\nlines \\ "q"', values=(({"name": 'a"b\\c\n'}, 1.0),))], {})
    assert made.splitlines() == ['# HELP x two\\nlines \\\\ "q"', "# TYPE x gauge", 'x{name="a\\"b\\\\c\\n"} 1']


@pytest.mark.parametrize(
    ("value", "said"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (0.1, "0.1"), (1e300, "1e+300")]
)
def test_numbers_that_are_none_have_names(value, said):
    assert text(one("x", "X.", value), {}).splitlines()[-1] == f"x {said}"


def test_a_counter_is_called_so():
    with pytest.raises(errors.BadInput, match="end in _total"):
        Family(name="things", help="", kind="counter", values=())
    with pytest.raises(errors.BadInput, match="wanted letters"):
        Family(name="a-b", help="", values=())
