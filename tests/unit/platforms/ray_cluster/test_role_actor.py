"""The actor of a role process, without Ray: start, news, end, and leftovers."""

import asyncio
import stat
import tempfile

import pytest

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.ray_cluster import role_actor
from springtide.platforms.ray_cluster.role_actor import RoleActor

LIFE = Life(Role(RoleKind.WORKER, 0), 3)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node by the name of `here`."""
    monkeypatch.setattr(role_actor, "node_id", lambda: "here")
    monkeypatch.setattr(role_actor, "node_address", lambda: "10.0.0.7")
    monkeypatch.setattr(role_actor, "variables_of_job", set)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def collect_news(held):
    """All that it has to tell, to the end."""
    said = b""
    while True:
        news = await held.news()
        said += news.said
        if news.exit is not None:
            return said.decode(), news.exit


def test_actor_starts_its_process_once_and_reports_its_exit(node, capsys):
    async def story():
        held = RoleActor()
        assert await held.who() is None
        launch = RoleLaunch(life=LIFE, module="calendar", arguments=("2026",))
        started = await held.start(launch, {"secret": b"ab"})
        assert await held.start(launch, {}) is started
        found = await held.who()
        said, ended = await collect_news(held)
        await held.leave()
        return started, found, said, ended

    started, found, said, ended = asyncio.run(story())
    assert (started.node, started.host) == ("here", "10.0.0.7")
    assert found[0].life == LIFE and found[1] is started
    assert "December" in said and "December" in capsys.readouterr().out, "the actor's own log has it too"
    assert (ended.code, ended.incarnation, ended.pid) == (0, 3, started.pid)
    assert list(node.iterdir()) == [], "nothing of it is left on the node"


def test_killed_role_process_is_reported_with_its_signal(node):
    async def story():
        held = RoleActor()
        await held.start(RoleLaunch(life=LIFE, module="http.server", arguments=("0",)), {})
        await held.end(kill=True)
        try:
            return await collect_news(held)
        finally:
            await held.leave()

    _, ended = asyncio.run(story())
    assert (ended.code, ended.signal) == (None, "SIGKILL")


def test_final_error_of_a_server_is_reported_with_its_exit(node):
    async def story():
        held = RoleActor()
        await held.start(RoleLaunch(life=Life(Role(RoleKind.SERVER, 0)), module="timeit", arguments=("1/0",)), {})
        try:
            return await collect_news(held)
        finally:
            await held.leave()

    _, ended = asyncio.run(story())
    assert str(ended).endswith("exited with status 1: ZeroDivisionError: division by zero")


def test_role_settings_use_paths_of_its_own_node(tmp_path):
    settings = {"member": "worker-0", "master_file": "/steward/master.json", "secret_file": "/steward/secret"}
    environment = {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1"}
    launch = RoleLaunch(life=LIFE, module="m", settings=settings, environment=environment, given={"MINE": "1"})
    told = role_actor.told_where(launch, tmp_path, "10.0.0.7", {"OMP_NUM_THREADS"})
    assert told.settings == {
        "member": "worker-0",
        "host": "10.0.0.7",
        "master_file": str(tmp_path / "master.json"),
        "secret_file": str(tmp_path / "secret"),
    }
    assert told.given == {"PYTHONUNBUFFERED": "1", "MINE": "1"}, "what the job sets itself stays as it is"
    sealed = role_actor.told_where(RoleLaunch(life=LIFE, module="m", settings={"tls": "/steward/tls"}), tmp_path, "::1")
    assert sealed.settings["tls"] == str(tmp_path / "tls")


def test_role_files_are_readable_only_by_their_user(tmp_path):
    role_actor.write(tmp_path / "secret", b"one")
    role_actor.write(tmp_path / "secret", b"two")
    assert (tmp_path / "secret").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_leftovers_of_a_killed_actor_are_removed_by_the_next(tmp_path):
    living = tmp_path / f"{role_actor.PREFIX}1-abc"
    dead = tmp_path / f"{role_actor.PREFIX}{2**22 + 1}-abc"
    others = tmp_path / f"{role_actor.PREFIX}notes"
    for folder in (living, dead, others):
        folder.mkdir()
    role_actor.sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, others])
