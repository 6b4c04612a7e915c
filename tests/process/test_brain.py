"""`springtide brain serve` as a user starts it: masters, kill -9, a successor, and inspection commands."""

import asyncio
import json
import signal

import pytest

from springtide import errors
from springtide.brain.service import serve
from springtide.brain.service.advisers import EmbeddedAdviser, FailoverAdviser, RemoteAdviser
from springtide.cli import app
from springtide.domain.plan.view import PastJob
from springtide.domain.spec.planning_config import PlanningConfig
from tests.process import running
from tests.unit.planning import views

pytestmark = pytest.mark.process
CONFIG = PlanningConfig(exact_seconds=0)


def serve_in(folder):
    return running.springtide("brain", "serve", "--listen", "127.0.0.1:0", "--capacity", "64,256G", folder=folder)


def address(brain):
    return brain.wait_for("brain: serving at ").split("serving at ")[1].split(";")[0]


def test_killed_brain_is_replaced_while_masters_keep_planning(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        code = app.main(["brain", *arguments])
        return code, capsys.readouterr().out.splitlines()

    folder = tmp_path / ".springtide" / "brain"

    def secret():
        return bytes.fromhex(serve.secret_file(folder).read_text())

    async def ask_both(where):
        masters = [RemoteAdviser(where, secret(), key=key) for key in ("a", "b")]
        try:
            return await asyncio.gather(*(one.advise(views.waiting(), epoch=0, now=0.0) for one in masters))
        finally:
            for one in masters:
                await one.close()

    async def plan_without(where):
        remote = RemoteAdviser(where, secret(), connect_s=0.1)
        either = FailoverAdviser(remote, EmbeddedAdviser("", CONFIG, views.AMPLE))
        try:
            return await either.advise(views.waiting(), epoch=0, now=0.0)
        finally:
            await either.close()

    async def end(where):
        master = RemoteAdviser(where, secret(), key="b")
        await master.conclude(PastJob(name="job", shape=views.shape(), ended_at=1000.0))
        await master.close()

    with serve_in(tmp_path) as brain:
        first = address(brain)
        one, two = asyncio.run(ask_both(first))
        assert one.plan.shape.cpu + two.plan.shape.cpu <= 64
        code, out = command("status", "--json")
        shown = json.loads(out[-1])
        assert code == 0 and len(shown["jobs"]) == 2 and shown["consults"] == 2
        assert "2 live jobs" in " ".join(command("status")[1])
        brain.process.kill()
        brain.process.wait()
        alone = asyncio.run(plan_without(first))
        assert alone.plan is not None and "planned without the brain" in alone.notes[0]
    with serve_in(tmp_path) as brain:
        second = address(brain)
        code, out = command("executors", "2")
        assert code == 0 and out[-1] == "2 executors from now on"
        shown = json.loads(command("status", "--json")[1][-1])
        assert {job["promised"]["workers"] for job in shown["jobs"]} == {one.plan.shape.workers}
        assert shown["executors"]["wanted"] == 2
        asyncio.run(end(second))
        code, out = command("history", "--json")
        assert code == 0 and [job["name"] for job in json.loads(out[-1])["jobs"]] == ["job"]
        brain.send(signal.SIGINT)
        brain.wait_for("brain: stopped")
        assert brain.finish()[0] == 0
    with pytest.raises(errors.BrainUnreachable):
        asyncio.run(end(second))
