"""Forecasters that need extras: found by name, said what to install, right on traffic that repeats itself."""

import importlib.util

import numpy as np
import pytest

from springtide import errors
from springtide.brain.forecasting import registry
from springtide.brain.forecasting.forecast_process import ForecastReply, answer, question
from springtide.rpc.transport import frames
from tests.unit.planning.online import traffic_made
from tests.unit.planning.online.traffic_made import DAY


def fails(history, steps):
    raise RuntimeError("out of ideas")


def test_all_have_names_and_a_missing_package_is_said(monkeypatch):
    assert set(registry.names()) >= {"auto", "default", "last-day", "last-week", "mstl"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.MissingExtra, match=r"forecaster 'mstl' needs `pip install 'springtide\[forecast\]'`"):
        registry.load("mstl")
    assert "mstl" not in registry.installed()


def test_an_answer_is_a_forecast_again_and_a_wrong_one_is_no_answer():
    past = traffic_made.days(9)
    said = answer(question("last-day", past, 5, ""))
    assert said.forecast(past.step_s, 5).mean == pytest.approx(past.values[-DAY : -DAY + 5])
    for broken in (ForecastReply(), ForecastReply(mean=b"123"), said):
        with pytest.raises(frames.BadFrame, match="6 were requested"):
            broken.forecast(past.step_s, 6)
    assert answer(question(f"{__name__}:fails", past, 5, "")).failed == "RuntimeError: out of ideas"
    assert answer(question("nobody", past, 5, "")).failed.startswith("UnknownName: no forecaster named 'nobody'")


def test_a_model_that_takes_too_long_is_left_out_of_the_choice_and_that_is_said(monkeypatch):
    times = iter(range(0, 10_000, 300))
    monkeypatch.setattr(registry, "installed", lambda: ("default",))
    choice = registry.choose(traffic_made.days(9), clock=lambda: float(next(times)))
    assert choice.name == "default" and "default could not answer: it takes 300 s a forecast" in choice.why


@pytest.mark.extra("statsforecast")
def test_mstl_finds_days_and_weeks():
    past = traffic_made.days(22, levels=0, noise=0.01)
    said = registry.load("mstl")(past.before(21 * DAY), DAY)
    came = past.values[-DAY:]
    assert np.abs(said.mean - came).sum() / came.sum() < 0.1
    assert said.tried == 6 and "mstl" in said.why
    assert "mstl needs 16 days" in registry.load("mstl")(traffic_made.days(5), DAY).why
