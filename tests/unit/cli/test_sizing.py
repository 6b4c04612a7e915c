"""What `springtide run` makes of what was given and what was not."""

import asyncio
import pathlib

import pytest

from springtide import errors
from springtide.brain.embedded import Embedded
from springtide.cli import sizing
from springtide.domain.own_machine import Fixed
from springtide.domain.shape import UNBOUNDED, Shape
from springtide.domain.stages import Stage
from springtide.domain.view import PastJob
from springtide.platforms import cgroups


@pytest.fixture(autouse=True)
def held(monkeypatch):
    """Cores can be held, whatever this machine lets us do."""
    monkeypatch.setattr(cgroups, "why_not", lambda: "")


def start(fixed=None, cores=2, say=lambda _: None, **more):
    asked = sizing.Asked(script=pathlib.Path("train.py"), name="train", fixed=fixed or Fixed(), **more)
    return sizing.start(asked, cores=cores, say=say)


def test_a_job_whose_size_is_open_begins_small_and_plans():
    begun = start()
    assert (begun.workers, begun.servers, begun.worker_cpu, begun.threads) == (1, 1, 1.0, 1)
    assert begun.planning.on and begun.planning.stage is Stage.SAMPLING
    assert begun.planning.config.total_cpu == 2.0 and begun.planning.features["script"] == "train.py"
    assert begun.planning.overlap and not start(Fixed(quota=1.5)).planning.overlap


def test_what_is_fixed_is_pinned_and_the_rest_is_planned():
    begun = start(Fixed(workers=2))
    limits = begun.planning.bounds
    assert begun.workers == limits.least.workers == limits.most.workers == 2
    assert limits.most.servers > 1


@pytest.mark.parametrize(
    ("fixed", "more"),
    [(Fixed(workers=2, servers=2), {}), (Fixed(), {"plan": False}), (Fixed(), {"sync": "bsp"})],
)
def test_a_job_whose_numbers_are_fixed_that_says_so_or_is_bsp_does_not_plan(fixed, more):
    begun = start(fixed, **more)
    assert not begun.planning.on and begun.worker_cpu is None


def test_planning_can_be_asked_for_where_only_cores_are_open():
    assert start(Fixed(workers=2, servers=1), plan=True).planning.on
    assert start(sync="bsp", plan=True).planning.on


def test_where_cores_cannot_be_held_only_numbers_are_planned_and_that_is_said(monkeypatch):
    monkeypatch.setattr(cgroups, "why_not", lambda: "no permission")
    said = []
    begun = start(say=said.append)
    assert "no permission" in said[0] and begun.worker_cpu is begun.server_cpu is None
    assert begun.planning.on and not begun.planning.resize


def test_settings_go_where_they_belong():
    begun = start(
        settings=("policy=es", "sample_s=5", "between_changes=7", "cpu_step=0.25", "window=2", "sample_steps=9")
    )
    rules = begun.planning
    assert (rules.config.policy, rules.config.sample_s, rules.config.between_changes_s) == ("es", 5.0, 7.0)
    assert (rules.bounds.cpu_step, rules.window_s, rules.config.sample_steps) == (0.25, 2.0, 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [("sampel_s=5", "sample_s"), ("sample_s=often", "NAME=VALUE"), ("rho", "NAME"), ("policy=sprintide", "springtide")],
)
def test_settings_that_make_no_sense_are_refused(text, why):
    with pytest.raises(errors.BadInput, match=why):
        start(settings=(text,))


def test_more_cores_than_there_are_are_refused():
    with pytest.raises(errors.BadInput, match="2 cores"):
        start(Fixed(quota=3.0))


def test_a_job_begins_as_jobs_like_it_ended(tmp_path):
    history = str(tmp_path / "history.db")
    begun = start(history=history)
    assert begun.planning.stage is Stage.SAMPLING and not (tmp_path / "history.db").exists()
    final = Shape(workers=2, servers=1, worker_cpu=0.7, server_cpu=0.6)
    seen = {"tables": 2.0, "dim": 64.0, "dense_bytes": 1e5, "batch": 512.0, "samples": 1e6}  # once it ran
    past = PastJob(
        name="train", user=begun.planning.user, features={**begun.planning.features, "sync": "async", **seen},
        initial=final, shape=final, ended_at=1e9,
    )  # fmt: skip

    async def remember():
        brain = Embedded(history, begun.planning.config, UNBOUNDED)
        await brain.conclude(past)
        await brain.close()

    asyncio.run(remember())
    again = start(history=history)
    assert (again.workers, again.servers, again.worker_cpu, again.server_cpu) == (2, 1, 0.7, 0.6)
    assert again.planning.stage is Stage.OPTIMIZING and "warm start" in again.planning.why


def test_a_brain_whose_secret_is_nowhere_is_the_users_to_mend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.BadInput, match="the brain's secret"):
        start(brain="localhost:7999")


def test_a_brain_that_is_away_is_done_without(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".springtide/brain").mkdir(parents=True)
    (tmp_path / ".springtide/brain/secret").write_text("ab" * 32)
    begun = start(brain="127.0.0.1:9")
    assert begun.workers == 1 and begun.planning.brain == "127.0.0.1:9"
