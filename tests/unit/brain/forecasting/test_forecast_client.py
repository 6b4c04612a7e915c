"""A forecaster in a process of its own: whatever becomes of it, there is a forecast, and it says whose it is."""

import asyncio
import contextlib
import os
import signal
import threading
from dataclasses import replace

import pytest

from springtide import errors
from springtide.brain.forecasting import forecast_client
from springtide.brain.forecasting.forecast_client import Forecasting
from springtide.planning.online.seasonal import forecast
from tests.unit.planning.online import traffic_made
from tests.unit.planning.online.traffic_made import STEP_S

HERE = "tests.unit.brain.forecasting.test_forecast_client"
PAST = traffic_made.days(9)
LONG = 60.0


def thrice(history, steps):
    print("into the frame?", flush=True)
    os.write(1, b"into the frame!")
    said = forecast(history, steps)
    return replace(said, mean=said.mean * 3, member="thrice")


def hangs(history, steps):
    threading.Event().wait()


def dies(history, steps):
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.asynccontextmanager
async def asked(name, **how):
    it = Forecasting(name if ":" not in name else f"{HERE}{name}", **how)
    try:
        yield it
    finally:
        await it.close()


def test_the_default_answers_in_place():
    async def one():
        async with asked("default") as it:
            said = await it.forecast(PAST, 7, at=0.0)
            assert list(said.mean) == list(forecast(PAST, 7).mean) and it.pid is None

    asyncio.run(one())


def test_names_are_looked_at_before_anything_is_asked():
    with pytest.raises(errors.UnknownName, match="Did you mean 'default'"):
        Forecasting("defualt")


@pytest.mark.process
def test_a_process_is_asked_once_and_what_it_said_lasts_until_it_is_asked_again():
    async def one():
        async with asked(":thrice", patience_s=LONG) as it:
            now = await it.forecast(PAST, 6, at=100.0)
            assert now.member == "thrice" and now.mean == pytest.approx(3 * forecast(PAST, 6).mean)
            later = await it.forecast(PAST, 6, at=100.0 + STEP_S)
            assert list(later.mean[:5]) == list(now.mean[1:]) and it.trouble == ""

    asyncio.run(one())


@pytest.mark.process
def test_one_that_is_killed_is_answered_for_by_the_default_and_asked_again_later():
    async def one():
        async with asked(":dies", patience_s=LONG) as it:
            said = await it.forecast(PAST, 6, at=0.0)
            trouble = "its process ended with -9 before it answered"
            assert trouble in said.why and ": the default model is used; " in said.why and trouble in it.trouble
            assert list(said.mean) == list(forecast(PAST, 6).mean)
            await it.forecast(PAST, 6, at=forecast_client.FIRST_RETRY_S - 1)
            assert it.pid is None
            it.name = f"{HERE}:thrice"
            assert (await it.forecast(PAST, 6, at=forecast_client.FIRST_RETRY_S)).member == "thrice"
            assert it.trouble == ""

    asyncio.run(one())


@pytest.mark.process
def test_one_that_hangs_holds_nobody_up_and_is_ended_at_its_limit():
    async def one():
        async with asked(":hangs", patience_s=0.01, limit_s=3.0) as it:
            said = await it.forecast(PAST, 6, at=0.0)
            assert "is still working: the default model" in said.why
            async with asyncio.timeout(LONG):
                while not it.trouble:
                    await it.forecast(PAST, 6, at=1.0)
            assert "no answer in 3 s" in (await it.forecast(PAST, 6, at=2.0)).why and it.pid is None

    asyncio.run(one())


@pytest.mark.process
def test_auto_chooses_by_the_streams_own_days_and_remembers_it_for_a_day():
    async def one():
        async with asked("auto", patience_s=LONG, again_s=1.0) as it:
            said = await it.forecast(PAST, 6, at=0.0)
            assert it.chosen in ("default", "last-day", "last-week") and said.tried
            assert f"{it.chosen} is chosen" in it.chosen_why
            await it.forecast(PAST, 6, at=2.0)
            assert it._chosen_at == 0.0

    asyncio.run(one())
