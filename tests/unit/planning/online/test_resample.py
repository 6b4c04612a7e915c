"""Forecasts by half hours, told by smaller steps."""

import numpy as np
import pytest

from springtide.planning.online.seasonal import coarsely, last_day


@pytest.mark.parametrize(("day", "sees"), [(144, 48), (1440, 48), (48, 48), (24, 24), (100, 100)])
def test_a_member_sees_half_hours_or_what_there_is(day, sees):
    seen = []

    def member(past, steps_of_a_day, steps):
        seen.append((len(past), steps_of_a_day))
        return last_day(past, steps_of_a_day, steps)

    said = coarsely(member)(np.arange(3.0 * day), day, day // 2 + 1)
    assert seen == [(3 * sees, sees)] and len(said) == day // 2 + 1


def test_the_newest_half_hour_is_whole():
    past = np.concatenate([[99.0], np.repeat([1.0, 2.0, 3.0] * 48, 3)])
    said = coarsely(last_day)(past, 144, 144)
    assert said.max() <= 3 and said.min() >= 1
