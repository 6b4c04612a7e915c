"""User forecasters: there is always a forecast, and it names its source."""

import asyncio
import contextlib
import threading
from dataclasses import replace

import pytest

from springtide import errors
from springtide.master.autoscale.forecast import JobForecaster
from springtide.planning.online.seasonal import forecast
from tests.unit.planning.online import generated_traffic

PAST = generated_traffic.days(9)
LONG = 60.0
release = threading.Event()


def thrice(history, steps):
    made = forecast(history, steps)
    return replace(made, mean=made.mean * 3, member="thrice")


def hangs(history, steps):
    release.wait(LONG)
    return thrice(history, steps)


def fails(history, steps):
    raise ValueError("no idea")


@contextlib.contextmanager
def forecasting(name, **how):
    forecaster = JobForecaster(name if ":" not in name else f"{__name__}{name}", **how)
    try:
        yield lambda: asyncio.run(forecaster.forecast(PAST, 6)), forecaster
    finally:
        release.set()
        forecaster.close()


def test_default_forecaster_answers_in_process():
    with forecasting("default") as (ask, _):
        assert list(ask().mean) == list(forecast(PAST, 6).mean)


def test_forecaster_name_is_resolved_before_any_forecast():
    with pytest.raises(errors.UnknownName, match="Did you mean 'default'"):
        JobForecaster("defualt")


def test_user_forecaster_answers():
    with forecasting(":thrice", patience_s=LONG) as (ask, forecaster):
        assert ask().mean == pytest.approx(3 * forecast(PAST, 6).mean) and forecaster.trouble == ""


def test_default_forecast_replaces_a_failed_one():
    with forecasting(":fails", patience_s=LONG) as (ask, forecaster):
        made = ask()
        assert "ValueError: no idea" in forecaster.trouble and "the default model is used" in made.why
        assert list(made.mean) == list(forecast(PAST, 6).mean)


def test_hanging_forecaster_delays_no_decision():
    release.clear()
    with forecasting(":hangs", patience_s=0.01) as (ask, forecaster):
        assert "no answer in 0.01 s" in ask().why
        assert "still busy" in ask().why and forecaster.trouble
