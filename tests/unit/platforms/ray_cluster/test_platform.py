import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray import exceptions

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.spec.elastic_job import RayWish
from springtide.domain.spec.job_spec import JobPhase
from springtide.platforms.ray_cluster import cluster, job_order, platform, steward
from springtide.rpc.messages.types import JobStatus
from springtide.telemetry import logs


class Full:
    """An actor that lives, on a node without room on its disk."""

    @property
    def who(self):
        async def remote():
            raise exceptions.RayTaskError("who", "cannot write on this node: no space left", OSError())

        return SimpleNamespace(remote=remote)


def test_live_actor_that_cannot_start_its_process_was_not_evicted(tmp_path, monkeypatch):
    ends, killed = [], []
    monkeypatch.setattr(cluster, "kill", killed.append)

    async def work():
        wanted = SimpleNamespace(name="ctr", wish=RayWish(pending_s=10.0))
        roles = platform.RayPlatform(wanted, logs.RunFiles(tmp_path))
        life = Life(Role(RoleKind.WORKER, 0), 0)
        await roles._tend(platform.ActorEntry(life, Full(), ends.append))
        roles.leave()

    asyncio.run(work())
    (end,) = ends
    assert len(killed) == 1, "what it asked of its node is free again"
    assert (end.signal, end.evicted, end.oom) == ("SIGKILL", False, False), "else it is tried for ever"


def test_steward_restarted_after_the_end_only_exits(tmp_path, monkeypatch):
    left = threading.Event()
    status = JobStatus(name="ctr", phase=JobPhase.FINISHED, why="done", elapsed_s=1.0)
    record = job_order.RayJobRecord(
        name="ctr", script="train.py", began_at=3.0, begun=True, ended_at=5.0, status=status
    )
    monkeypatch.setattr(job_order, "read_record", lambda name: record)
    monkeypatch.setattr(job_order, "write_record", lambda record: None)
    monkeypatch.setattr(steward.Steward, "_end_all", lambda self: None)
    monkeypatch.setattr(steward.Steward, "_leave", lambda self: left.set())
    plan = SimpleNamespace(spec=SimpleNamespace(name="ctr"), debug=False, script="train.py", arguments=())
    again = steward.Steward(SimpleNamespace(name="ctr", plan=plan, run_folder=str(tmp_path), began_at=3.0))
    assert left.wait(60)
    assert again.status() == status
    again._loop.close()
