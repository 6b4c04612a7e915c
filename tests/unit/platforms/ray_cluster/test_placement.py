"""Roles leave draining Ray nodes in time, and old run folders are removed."""

import asyncio
import os

import pytest

from springtide import errors
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.rpc.messages import messages

pytestmark = pytest.mark.extra("ray")

WORKER, SERVER = Life(Role(RoleKind.WORKER, 0)), Life(Role(RoleKind.SERVER, 1), 2)


def test_roles_on_a_draining_node_hand_over_and_then_end(monkeypatch):
    from springtide.platforms.ray_cluster import placement

    monkeypatch.setattr(placement, "NOTICE_S", 0.0)
    placed, ended, asked = {WORKER: "a", SERVER: "b"}, [], []
    answers = [errors.MasterUnreachable("away"), messages.EvictionReply(free=False), messages.EvictionReply(free=True)]

    async def ask(request):
        asked.append(request)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(life):
        ended.append(life)
        del placed[life]

    async def work():
        leaving = placement.NodeDrain(lambda: {"b": 0}, lambda: placed, ask, end)
        for _ in range(50):
            leaving.poll()
            await asyncio.sleep(0)

    asyncio.run(work())
    assert ended == [SERVER] and not answers
    assert {(each.role, each.incarnation) for each in asked} == {(SERVER.role, 2)}


def test_failed_drain_check_is_repeated(monkeypatch, caplog):
    from springtide.platforms.ray_cluster import placement

    monkeypatch.setattr(placement, "DRAIN_POLL_S", 0.0)
    looks = []

    async def work():
        seen = asyncio.Event()

        def announced():
            looks.append(1)
            if len(looks) == 1:
                raise RuntimeError("the head does not answer")
            seen.set()
            return {}

        task = asyncio.create_task(placement.NodeDrain(announced, dict, None, None).keep())
        await asyncio.wait_for(seen.wait(), 10)
        task.cancel()

    asyncio.run(work())
    assert len(looks) >= 2 and "cannot list the nodes" in caplog.text


def test_old_run_folders_are_removed_and_others_kept(tmp_path):
    from springtide.platforms.ray_cluster import steward

    day, now = 86_400.0, 1_800_000_000.0

    def run(name, *, age_s, over):
        folder = tmp_path / name
        (folder / "logs").mkdir(parents=True)
        (folder / "logs" / "master.log").touch()
        if over:
            steward.mark_over(folder)
        for path in (*folder.glob("logs/*"), *folder.glob("*"), folder):
            os.utime(path, (now - age_s, now - age_s))
        return folder

    old, lost = run("old", age_s=8 * day, over=True), run("lost", age_s=31 * day, over=False)
    kept = [run("new", age_s=6 * day, over=True), run("runs", age_s=8 * day, over=False)]
    assert set(steward.sweep(tmp_path, at=now)) == {old, lost}
    assert sorted(tmp_path.iterdir()) == sorted(kept)
