"""Forecasters by name, including user functions."""

from dataclasses import replace

import numpy as np
import pytest

from springtide import errors
from springtide.planning.online import forecasters
from springtide.planning.online.seasonal import forecast
from tests.unit.planning.online import generated_traffic

HERE = "tests.unit.planning.online.test_forecasters"


def twice(history, steps):
    said = forecast(history, steps)
    return replace(said, mean=said.mean * 2, member="twice")


def short(history, steps):
    return forecast(history, steps - 1)


def not_finite(history, steps):
    return replace(forecast(history, steps), high=np.full(steps, np.nan))


def other_steps(history, steps):
    return replace(forecast(history, steps), step_s=history.step_s / 2)


def a_list(history, steps):
    return [1.0] * steps


def test_unknown_forecaster_suggests_the_nearest_built_in():
    assert set(forecasters.BUILT_IN) >= {"default", "last-day", "last-week"}
    with pytest.raises(errors.UnknownName, match="Did you mean 'last-day'"):
        forecasters.load("lastday")


def test_user_forecaster_is_loaded_by_module_and_function():
    said = forecasters.load(f"{HERE}:twice")(generated_traffic.days(9), 5)
    assert said.member == "twice" and (said.high >= said.mean).all() and (said.low <= said.mean).all()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("short", r"mean of shape \(4,\); expected 5 numbers"),
        ("not_finite", "high of numbers that are not finite"),
        ("other_steps", "forecasts in steps of 900 s; expected 1800 s"),
        ("a_list", "returned a list; expected a Forecast"),
    ],
)
def test_unusable_forecaster_answer_is_refused(name, wrong):
    with pytest.raises(errors.BadInput, match=wrong):
        forecasters.load(f"{HERE}:{name}")(generated_traffic.days(9), 5)
