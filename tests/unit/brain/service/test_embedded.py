"""The brain embedded in a master: the same policies, a local history, and no blocking."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from springtide import errors
from springtide.brain.service.advisers import EmbeddedAdviser
from springtide.domain.plan.plan import Decision, ShapePlan, nothing
from springtide.domain.plan.view import PastJob
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.policy import registry
from tests.unit.planning import views

CONFIG = PlanningConfig(exact_seconds=0)


@asynccontextmanager
async def embedded(url, config=CONFIG):
    brain = EmbeddedAdviser(str(url), config, views.AMPLE)
    try:
        yield brain
    finally:
        await brain.close()


def ask_embedded(url, view, config=CONFIG):
    async def ask():
        async with embedded(url, config) as brain:
            return await brain.advise(view, epoch=7, now=1000.0)

    return asyncio.run(ask())


def test_new_job_gets_its_first_plan(tmp_path):
    advice = ask_embedded(tmp_path / "history.db", views.waiting())
    assert advice.epoch == 7 and advice.plan.stage is PlanningStage.SAMPLING and advice.why == advice.plan.reason


def test_finished_jobs_are_recorded_for_similar_ones(tmp_path):
    like = {"model": "wide", "user": "ada", "batch": 512.0}

    async def live():
        async with embedded(tmp_path / "history.db") as first:
            for at in range(6):
                past = PastJob(name=f"job-{at}", features=like, shape=views.shape(workers=6), ended_at=float(at))
                await first.conclude(past)
        async with embedded(tmp_path / "history.db") as second:
            return await second.advise(views.waiting(features=like), epoch=0, now=1000.0)

    advice = asyncio.run(live())
    assert advice.plan.shape.workers == 6


def test_unchanged_job_gets_its_own_reason(monkeypatch):
    said = nothing("none of 2 jobs is to be changed", "job: a sample is under way", "other: too", "all is well")
    monkeypatch.setitem(registry.POLICIES, "said", lambda view, config: said)
    advice = ask_embedded("", views.running(), PlanningConfig(policy="said"))
    assert advice.plan is None and advice.why == "a sample is under way" and advice.notes == ("all is well",)


def test_refused_plan_is_the_reason(monkeypatch):
    wild = ShapePlan(job="job", shape=views.shape(workers=999), reason="more")
    monkeypatch.setitem(registry.POLICIES, "wild", lambda view, config: Decision(plans=(wild,), why="wild"))
    advice = ask_embedded("", views.running(), PlanningConfig(policy="wild"))
    assert advice.plan is None and "not within the job's bounds" in advice.why


def test_broken_history_is_reported_and_planning_continues_without(tmp_path):
    path = tmp_path / "history.db"
    path.write_text("no database " * 100)
    advice = ask_embedded(path, views.waiting())
    assert advice.plan is not None and "without history" in advice.notes[0] and "not a database" in advice.notes[0]


def test_job_that_cannot_be_recorded_is_logged(tmp_path):
    path = tmp_path / "history.db"
    path.write_text("no database " * 100)

    async def end():
        async with embedded(path) as brain:
            await brain.conclude(PastJob(name="job"))

    with pytest.raises(errors.HistoryUnavailable):
        asyncio.run(end())


def test_without_a_url_no_history_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def end():
        async with embedded("") as brain:
            await brain.conclude(PastJob(name="job"))

    asyncio.run(end())
    assert not list(tmp_path.iterdir())


def test_unknown_policy_raises_our_error():
    with pytest.raises(errors.UnknownName, match="springtide"):
        ask_embedded("", views.waiting(), PlanningConfig(policy="springtied"))
