"""The longest delay of the last seconds is known at any time."""

import pytest

from springtide.master.core.loop_lag import WINDOW_S, LoopLag


def test_the_longest_delay_is_that_of_the_window():
    lag = LoopLag(lambda: 0.0)
    assert lag.longest_s == 0.0
    for second, late in enumerate([0.01, 0.5, 0.02, 0.3, 0.1]):
        lag.note(late, at=float(second))
    assert lag.longest_s == 0.5
    lag.note(0.0, at=1 + WINDOW_S + 0.5)
    assert lag.longest_s == pytest.approx(0.3)
    lag.note(-0.001, at=100.0)
    assert lag.longest_s == 0.0
